"""Gap: the events that a trace file lacks, and the records that repair it. CarriedSlices: the slices that cross two files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.events import BEGIN, END, WIDTH, count_kinds, places
from tracekit.formats.chrome_writer import encode_value
from tracekit.formats.rank_trace import GAP_EVENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.events import EventBatch


class Gap:
    """Counts the events that are lost, and keeps the starts and finishes of long slices.

    A slice counts as one event, at its finish. If one half of a slice is in the file, or may still be written, the
    other half is not lost but late: ``late`` has its records, as many at most as slices are open, and ``late_events``
    counts those with only their finish there. Without it, the file would show a slice that never ends, or lack a long
    slice. Times are in ns since the epoch.
    """

    __slots__ = ("end_ns", "events", "late", "late_events", "start_ns")

    def __init__(self) -> None:
        self.events = 0
        self.late_events = 0
        self.start_ns = 0
        self.end_ns = 0
        self.late: list[Any] = []

    def __bool__(self) -> bool:
        """Return True if events are lost or records are late."""
        return bool(self.events or self.late)

    def add(self, batch: EventBatch, *, count: bool = True) -> None:
        """Add a batch that could not be written, and count it unless told not to; see `RankTrace.write_events`."""
        edges, late_events = _edges(batch.records), self.late_events
        lost = len(batch) - len(edges) + sum(self._keep(*edge) for edge in edges)
        if not count:
            self.late_events = late_events
        elif lost:
            self.extend(lost, *span_ns(batch))

    def extend(self, events: int, start_ns: int, end_ns: int) -> None:
        """Add a number of lost events; times are in ns since the epoch."""
        self.start_ns = min(start_ns, self.start_ns) if self.events else start_ns
        self.end_ns = max(end_ns, self.end_ns)
        self.events += events

    def encode(self, pid: int, base_ns: int) -> bytes:
        """Return the instant that reports the lost events, or no bytes if none are lost."""
        if not self.events:
            return b""
        args = {"lost_events": self.events, "from_ns": self.start_ns, "to_ns": self.end_ns}
        relative_ns = max(self.start_ns - base_ns, 0)
        return b'{"ph":"i","name":%b,"cat":"tracekit","s":"p","pid":%d,"tid":%d,"ts":%d.%03d,"args":%b},\n' % (
            encode_value(GAP_EVENT),
            pid,
            pid,
            *divmod(relative_ns, 1000),
            encode_value(args),
        )

    def _keep(self, label: int, time_ns: int, kind: int, track: int) -> int:
        """Keep a start or a finish; return 1 if it completes a slice that is lost as a whole."""
        if kind == END:
            for at in range(len(self.late) - WIDTH, -1, -WIDTH):
                if self.late[at + 3] == track:
                    if self.late[at + 2] != BEGIN:
                        break  # its start is in the file, like the start of the slice inside it
                    del self.late[at : at + WIDTH]
                    return 1
            self.late_events += 1
        self.late += (label, time_ns, kind, track)
        return 0


def _edges(records: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the starts and finishes of long slices, by time; at equal times, ends stay before starts."""
    if not any(count_kinds(records, BEGIN, END)):
        return []
    edges = [records[at * WIDTH : (at + 1) * WIDTH] for at in places(records, BEGIN, END)]
    return sorted(edges, key=lambda edge: edge[1])


def count_events(batch: EventBatch) -> int:
    """Return how many events a batch has, a slice counting at its finish."""
    (begins,) = count_kinds(batch.records, BEGIN)
    return len(batch) - begins


def span_ns(batch: EventBatch) -> tuple[int, int]:
    """Return the start and end of the events of a batch, ns since the epoch."""
    return min(batch.records[1::WIDTH]) + batch.offset_ns, newest_ns(batch.records) + batch.offset_ns


def newest_ns(records: Sequence[Any]) -> int:
    """Return the monotonic time of the last start or end in the records of a batch."""
    last_ns: int = max(max(records[1::WIDTH]), max(records[2::WIDTH]))  # noqa: PLW3301 - a call with 10,000 arguments
    return last_ns


class CarriedSlices:
    """Follows the starts and finishes of the slices that stay open from one batch to the next.

    A batch has the start of every slice that is open at its end, so no other state is carried over to the next batch.
    """

    __slots__ = ("_by_track",)

    def __init__(self) -> None:
        self._by_track: dict[int, list[tuple[int, int]]] = {}  # track: (label, start ns), the outermost first

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (label, start in monotonic ns, track), outer slices before inner ones."""
        for track, slices in self._by_track.items():
            for label, start_ns in slices:
                yield label, start_ns, track

    def follow(self, records: Sequence[Any]) -> None:
        """Add the records of a batch (see `tracekit.events`)."""
        edges = _edges(records)
        if not edges:
            return
        for label, time_ns, kind, track in edges:
            slices = self._by_track.setdefault(track, [])
            if kind == BEGIN:
                slices.append((label, time_ns))
            elif slices:
                slices.pop()
        self._by_track = {track: slices for track, slices in self._by_track.items() if slices}

    def begins(self, at_ns: int | None = None) -> list[Any]:
        """Return records that start every open slice, outer ones first, at ``at_ns`` or, if that is None, at its true start."""
        return [
            entry
            for label, start_ns, track in self
            for entry in (label, start_ns if at_ns is None else at_ns, BEGIN, track)
        ]

    def ends(self, at_ns: int) -> list[Any]:
        """Return records that finish every open slice at ``at_ns``, inner ones first."""
        return [entry for label, _, track in reversed(list(self)) for entry in (label, at_ns, END, track)]
