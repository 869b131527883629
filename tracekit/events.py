"""Events: flat fixed-width records for recording, and value objects for handlers.

A *record* is `WIDTH` consecutive entries of one flat list, because appending a tuple's items with one ``list.extend`` is
the cheapest way in Python to keep an event: it is atomic under the interpreter lock, leaves no container for the garbage
collector to visit, and needs no lock. The entries are::

    label, time, kind_or_end, track_or_values

======================  =====================  =========================================
kind_or_end             time                   track_or_values
======================  =====================  =========================================
>= 0: a whole slice     start of the slice     track; kind_or_end is its end
`INSTANT`               time of the event      track
`COUNTER`               time of the reading    the values, ``{series: number}``
`BEGIN`                 start of a slice       track; the slice is still open
`END`                   end of such a slice    track
======================  =====================  =========================================

Times are monotonic ns; labels and tracks are indices into the tables of the `EventBatch`.

The compiled core replaces the list by a sequence that keeps a record in 32 bytes and implements `count_kinds`, `places` and
`earliest` without making an object for every entry.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.timestamp import Timestamp

WIDTH: Final = 4
INSTANT: Final = -1
COUNTER: Final = -2
BEGIN: Final = -3
END: Final = -4

RECORD_BYTES: Final = 100
"""Approximate memory of a record in a list: four references and two integers. In the compiled core it takes 32."""

COUNTER_BYTES: Final = 160
"""Approximate memory of a counter's dictionary."""

SERIES_BYTES: Final = 64
"""Approximate memory of each series of a counter."""


def count_kinds(records: Sequence[Any], *kinds: int) -> list[int]:
    """Return the number of records of each kind; the kinds must not be whole slices."""
    count = getattr(records, "count_kind", None)
    if count is None:
        column = records[2::WIDTH]
        if not column or min(column) >= 0:  # the most frequent case
            return [0] * len(kinds)
        count = column.count
    return [count(kind) for kind in kinds]


def places(records: Sequence[Any], kind: int, other: int) -> list[int]:
    """Return the indices of the records of two kinds, which may be equal, in ascending order."""
    find = getattr(records, "places", None)
    if find is None:
        return [index for index, found in enumerate(records[2::WIDTH]) if found in (kind, other)]
    found_places: list[int] = find(kind, other)
    return found_places


def odd_counters(records: Sequence[Any]) -> list[int]:
    """Return the indices of the counters that may have other values than finite numbers below 2**63, or keys other than text."""
    find = getattr(records, "odd_counters", None)
    if find is None:
        return places(records, COUNTER, COUNTER)
    odd: list[int] = find()
    return odd


def has_start(records: Sequence[Any], since_ns: int, track: int) -> bool:
    """Return True if a slice or an instant of this track starts at or after a time."""
    find = getattr(records, "has_start", None)
    if find is not None:
        return bool(find(since_ns, track))
    for position in range(len(records) - WIDTH, -1, -WIDTH):
        _, time_ns, kind, what = records[position : position + WIDTH]
        if kind not in (COUNTER, END) and what == track:
            if time_ns >= since_ns:
                return True
            if 0 <= kind < since_ns:
                break  # a thread's records are in the order of their ends
    return False


def size_bytes(records: Sequence[Any]) -> int:
    """Return the approximate memory of some records, from their number and the number of series of the counters."""
    measure = getattr(records, "size_bytes", None)
    if measure is not None:
        size: int = measure()
        return size
    counters = (records[index * WIDTH + 3] for index in places(records, COUNTER, COUNTER))
    return len(records) // WIDTH * RECORD_BYTES + sum(COUNTER_BYTES + SERIES_BYTES * len(values) for values in counters)


def earliest(records: Sequence[Any]) -> int:
    """Return the earliest time of some records; there must be at least one."""
    find = getattr(records, "earliest", None)
    found: int = min(records[1::WIDTH]) if find is None else find()
    return found


@dataclass(frozen=True, slots=True)
class Label:
    """The name, categories and arguments of an event.

    Attributes:
        name: Any text.
        categories: Categories, for filtering.
        args: Arguments of every event with this label, for example the exception that ended a slice.
    """

    name: str
    categories: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Track:
    """The track of slices and instants: a thread, or a lane for events that would overlap on the track of a thread.

    Attributes:
        tid: The thread's native id, or a number from `LANE_TID` on for a lane, which is not a thread of the system.
        name: Readable name.
        sort_index: Order among the tracks of the process.
        async_id: Number of a track of async slices, which belongs to no thread; 0 for every other track. At most one such slice
            is open on it at a time.
    """

    tid: int
    name: str
    sort_index: int = 0
    async_id: int = 0


@dataclass(frozen=True, slots=True)
class SliceBegin:
    """A slice starts. Times are ns since the epoch."""

    label: Label
    track: Track
    timestamp: Timestamp
    wall_clock_time_ns: int


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """The innermost open slice of the track ends."""

    label: Label
    track: Track
    timestamp: Timestamp
    wall_clock_time_ns: int


@dataclass(frozen=True, slots=True)
class Instant:
    """An event at one moment."""

    label: Label
    track: Track
    timestamp: Timestamp
    wall_clock_time_ns: int


@dataclass(frozen=True, slots=True)
class Counter:
    """Values of one or more series at one moment."""

    label: Label
    values: Mapping[str, float]
    timestamp: Timestamp
    wall_clock_time_ns: int


Event = SliceBegin | SliceEnd | Instant | Counter

Edge = tuple[int, int, int, int, int, Any]
"""(time, phase, tie, kind, label, track or values): in the order of the first three."""


def edge_order(edge: tuple[Any, ...]) -> tuple[int, int, int]:
    """Return the sort key of an edge."""
    return edge[:3]


class Timestamps:
    """The training `Timestamp` by monotonic time: events only have a time, and look up their timestamp by it.

    So the recording path does not handle timestamps. The training thread appends, the writer thread forgets, and any thread
    may call `at`. Each step is one operation on a list, which is atomic under the interpreter lock.

    Attributes:
        log: Each timestamp with its first time, in order.
    """

    __slots__ = ("log",)

    def __init__(self, first: Timestamp, monotonic_ns: int = 0) -> None:
        self.log: list[tuple[int, Timestamp]] = [(monotonic_ns, first)]

    def append(self, monotonic_ns: int, timestamp: Timestamp) -> None:
        """Make ``timestamp`` current from ``monotonic_ns`` on."""
        self.log.append((monotonic_ns, timestamp))

    def at(self, monotonic_ns: int) -> Timestamp:
        """Return the timestamp that was current at a time. Callable from any thread."""
        since_ns, newest = self.log[-1]
        if since_ns <= monotonic_ns:
            return newest
        log = self.log.copy()  # the writer may forget the first ones meanwhile
        return log[_index(log, monotonic_ns)][1]

    def since(self, monotonic_ns: int) -> list[tuple[int, Timestamp]]:
        """Return the timestamp at a time and all later ones, each with its first time."""
        return self.log[_index(self.log, monotonic_ns) :]

    def copy(self) -> Timestamps:
        """Return a copy of the present entries, for later lookups."""
        (first_ns, first), *later = self.log.copy()
        copied = Timestamps(first, first_ns)
        for monotonic_ns, timestamp in later:
            copied.append(monotonic_ns, timestamp)
        return copied

    def forget_before(self, monotonic_ns: int) -> None:
        """Drop the entries that no event from ``monotonic_ns`` on needs."""
        del self.log[: _index(self.log, monotonic_ns)]


def _index(log: list[tuple[int, Timestamp]], monotonic_ns: int) -> int:
    return max(bisect_right(log, monotonic_ns, key=_time) - 1, 0)


def _time(entry: tuple[int, Timestamp]) -> int:
    return entry[0]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events of one flush, for a handler.

    Iterate over it for values in time order (per track: starts before finishes, properly nested), or read ``records`` for
    speed.

    Attributes:
        records: Flat records, `WIDTH` entries each; see the head of this module. In no particular order.
        labels: Table of labels; grows, never changes.
        tracks: Table of tracks; grows, never changes.
        timestamps: The training time by monotonic time.
        offset_ns: Time since the epoch minus monotonic time.
        cut_ns: The monotonic time of the flush: every event up to it has been delivered, and slices that started before it
            and have not ended are open. 0 if unknown.
        running: The slice of the training batch that runs at that moment: label, start in monotonic ns, track. It is recorded
            at its end. None if no batch is known to have begun.
    """

    records: Sequence[Any]
    labels: Sequence[Label]
    tracks: Sequence[Track]
    timestamps: Timestamps
    offset_ns: int
    cut_ns: int = 0
    running: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.records) // WIDTH

    def pieces(self, events: int) -> Iterator[EventBatch]:
        """Yield batches of at most this many events, with the records of this batch in their order."""
        if len(self) <= events:
            yield self
            return
        for first in range(0, len(self.records), events * WIDTH):
            yield replace(self, records=self.records[first : first + events * WIDTH])

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in time order.

        At equal times, a finish comes before a start, an outer start before an inner one, and a slice of zero duration is not
        split.
        """
        for edge in self.edges():
            yield self.event_of(edge)

    def edges(self) -> list[Edge]:
        """Return the starts and ends of slices, the instants and the counters, in the order of `__iter__`."""
        edges: list[Edge] = []
        records = self.records
        for position in range(0, len(records), WIDTH):
            label, time_ns, kind, what = records[position : position + WIDTH]
            if kind >= 0:
                # Equal starts: the longer slice is the outer one. Equal ends: the one that started last is the inner one.
                # A slice of zero duration comes after the ends at that time, and inside the slices that start then.
                empty = kind == time_ns
                edges.append((time_ns, 1, -kind, BEGIN, label, what))
                edges.append((kind, 2 if empty else 0, -time_ns, END, label, what))
            elif kind == BEGIN:
                edges.append((time_ns, 1, -(1 << 63), BEGIN, label, what))
            elif kind == END:
                edges.append((time_ns, 0, 0, END, label, what))
            else:
                edges.append((time_ns, 3, 0, kind, label, what))
        edges.sort(key=edge_order)
        return edges

    def event_of(self, edge: Edge) -> Event:
        """Return the event for an edge of this batch."""
        time_ns, _, _, kind, label, what = edge
        timestamp = self.timestamps.at(time_ns)
        wall_ns = time_ns + self.offset_ns
        if kind == BEGIN:
            return SliceBegin(self.labels[label], self.tracks[what], timestamp, wall_ns)
        if kind == END:
            return SliceEnd(self.labels[label], self.tracks[what], timestamp, wall_ns)
        if kind == INSTANT:
            return Instant(self.labels[label], self.tracks[what], timestamp, wall_ns)
        return Counter(self.labels[label], what, timestamp, wall_ns)
