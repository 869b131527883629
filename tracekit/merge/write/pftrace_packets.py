"""Records of events in order, as the packets of one sequence of a native Perfetto trace.

A slice is two packets, and its end closes the innermost open slice of its track. So the packets of a track at one time must
come in the right order. Slices are in the order of Perfetto's JSON importer: ends first, then whole slices (``X``), longer ones
first, then begins (``B``) and slices of no duration as they came. Instants and flow events follow. Inputs have no such order
(Kineto writes Python's functions after all operators), hence the records of a track are sorted before they are written. Tracks
follow one after the other.

The importer shows a slice of no duration as an instant: instants of one time nest in each other, and the next begin is
their sibling. So it is written as a marked instant.

`tracekit.core._merge.PftraceEncoder` does the same, to the byte.
"""

from __future__ import annotations

import sys
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tracekit.formats import pftrace
from tracekit.formats.pftrace import block, number_field, packet
from tracekit.structs import Struct
from tracekit.traces.external_sort import ExternalSort
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.core import _merge

    AnyStore: TypeAlias = "_merge.PftraceEncoder | PacketStore"

SLICE, FLOW, NEXT_FLOW, INSTANT, BEGIN, END, COUNTER = range(7)
"""Kinds of records. The end of a flow is a `NEXT_FLOW` if it belongs to the next slice."""

CATEGORIES, NAMES, KEYS, TEXTS = 1, 2, 3, 29
"""Tables of interned texts, by their field in ``InternedData``."""

_HASHED: Final = 1 << 63
"""Tracks from here on are neither processes nor threads."""

GROUPS, COUNTERS, ASYNC = 1 << 20, 1 << 21, 1 << 22
"""Order below the threads of a process: groups, counters, async tracks."""

LAST_NS: Final = 2**63 - 2
"""The latest time."""

MAX_TEXTS: Final = 50_000
"""Texts in a table."""

_NEVER: Final = 2**63 - 1
_MASK: Final = 2**64 - 1
_MAX_TEXT_BYTES: Final = 200
_MAX_TABLE_BYTES: Final = 16 << 20
_MAX_STARTS: Final = 1 << 19
_DEFINED_AT_ONCE: Final = 500
_PIECE_PACKETS: Final = 4096
_TYPES: Final = {
    SLICE: number_field(9, pftrace.BEGIN),
    INSTANT: number_field(9, pftrace.INSTANT),
    BEGIN: number_field(9, pftrace.BEGIN),
    COUNTER: number_field(9, pftrace.COUNTER),
    FLOW: b"",
    NEXT_FLOW: b"",
}
# A slice that is only there for a flow event has an id as its mark, a slice of no duration has the duration.
_PLACE: Final = block(6, number_field(6, 0))
_END: Final = block(11, number_field(9, pftrace.END))
_END_OF_PLACE: Final = block(11, number_field(9, pftrace.END) + _PLACE)
_EMPTY: Final = _TYPES[INSTANT] + block(6, number_field(3, 0))


def process_uuid(pid: int) -> int:
    """Return the track of a process of the merged trace."""
    return pid << 32


def thread_uuid(pid: int, tid: int) -> int:
    """Return the track of a thread; ``tid`` is never 0."""
    return pid << 32 | tid


def uuid_of(*parts: bytes) -> int:
    """Return a number for any other track, from what makes it the one it is (FNV-1a)."""
    found = 0xCBF29CE484222325
    for byte in b"\0".join(parts):
        found = (found ^ byte) * 0x100000001B3 & _MASK
    return _HASHED | found >> 1


class _Track(Struct):
    """A track. It has a name if no process or thread describes it."""

    number: int
    uuid: int
    parent: int = 0
    name: bytes = b""
    unit: bytes | None = None
    first_ns: int = _NEVER
    lane: _Track | None = None
    items: ExternalSort | None = None  # of a lane


class PacketStore:
    """Keeps records until all are there. Texts that exceed a table are written out."""

    def __init__(self, sequence: int, max_texts: int = MAX_TEXTS, folder: str | None = None) -> None:
        self._sequence = sequence
        self._stamp = number_field(10, sequence) + number_field(13, 2)
        self._max_texts = max_texts
        self._tables: dict[int, dict[bytes, int]] = {table: {} for table in (CATEGORIES, NAMES, KEYS, TEXTS)}
        self._table_bytes = dict.fromkeys(self._tables, 0)
        self._tracks: dict[int, _Track] = {}
        self._lanes: list[_Track] = []
        self._starts: dict[tuple[bytes, ...], tuple[int, int]] = {}
        self._order = 0
        self._folder = folder
        self._items = ExternalSort(folder)
        self._halves = ExternalSort(folder)
        self._pieces: Iterator[bytes] | None = None

    def encode(self, text: bytes, at: int) -> tuple[int, int]:
        """Return the range of the events that the caller must `add`: all of them."""
        return at, len(text)

    def intern(self, table: int, text: bytes) -> int:
        """Return the number of a text in a table, 0 to write it out."""
        known = self._tables[table]
        number = known.get(text, 0)
        if number or (table == TEXTS and len(text) > _MAX_TEXT_BYTES):
            return number
        if len(known) >= self._max_texts or self._table_bytes[table] + len(text) > _MAX_TABLE_BYTES:
            return 0
        self._table_bytes[table] += len(text)
        number = known[text] = len(known) + 1
        return number

    def add(
        self, kind: int, uuid: int, pid: int, start_ns: int, end_ns: int, category: bytes, name: bytes, rest: bytes
    ) -> None:
        """Add a record. The name of a counter is that of its track, its category its unit; both are in UTF-8."""
        self._order += 1
        track = self._tracks.get(uuid)
        if track is None:
            track = self._tracks[uuid] = _Track(len(self._tracks), uuid, process_uuid(pid))
        if kind == COUNTER:
            track.name, track.unit, category, name = name, category, b"", b""
        elif uuid >= _HASHED and start_ns < track.first_ns:
            # An async track has the name of what happens first on it.
            track.first_ns, track.name = start_ns, name
        title = self._title(CATEGORIES, 3, 22, category), self._title(NAMES, 10, 23, name)
        flow = (*title, rest)
        is_start = rest[3:4] == b"s"
        if kind == FLOW and is_start and (flow in self._starts or len(self._starts) < _MAX_STARTS):
            self._starts[flow] = min(self._starts.get(flow, (start_ns, self._order)), (start_ns, self._order))
        if kind in (BEGIN, END):
            self._halves.add((track.number, start_ns, self._order, kind, *title, rest), len(rest))
        else:
            self._put(self._items, track.number, self._order, kind, start_ns, end_ns, *title, rest)

    def packets(self) -> bytes | None:
        """Return the next packets; None at the end."""
        if self._pieces is None:
            self._pieces = self._written()
        return next(self._pieces, None)

    def _written(self) -> Iterator[bytes]:
        if not self._tracks:
            return
        self._join_halves()
        yield pftrace.sequence_packet(self._sequence, b"", flags=1)
        for table, known in self._tables.items():
            entries = [block(table, number_field(1, number) + block(2, text)) for text, number in known.items()]
            for first in range(0, len(entries), _DEFINED_AT_ONCE):
                yield packet(self._stamp + block(12, b"".join(entries[first : first + _DEFINED_AT_ONCE])))
        tracks = list(self._tracks.values())
        for number, items in groupby(self._items, itemgetter(0)):
            yield from self._track(tracks[number], items)
        self._items.close()
        for lane in self._lanes:  # lanes have lanes
            assert lane.items is not None
            yield from self._track(lane, lane.items)
            lane.items.close()

    def _title(self, table: int, field: int, text_field: int, text: bytes) -> bytes:
        number = self.intern(table, text) if text else 0
        return number_field(field, number) if number else block(text_field, text) if text else b""

    @staticmethod
    def _put(items: ExternalSort, track: int, order: int, kind: int, start: int, end: int, *fields: bytes) -> None:
        place = start - end if kind == SLICE else 0 if kind in (BEGIN, END, COUNTER) else 1
        items.add((track, start, place, order, kind, end, *fields), sum(map(len, fields)))

    def _join_halves(self) -> None:
        """Make slices of begins and ends: an end belongs to the innermost open begin of its name and category."""
        for track, halves in groupby(self._halves, itemgetter(0)):
            open_: OpenSlices[tuple[Any, ...]] = OpenSlices(sys.maxsize)
            for _, time, order, kind, category, name, rest in halves:
                if kind == BEGIN:
                    open_.begin(name, category, (order, time, rest, category, name))
                elif begun := open_.end(name, category):
                    begin, start, text, *title = begun
                    self._put(self._items, track, begin, BEGIN, start, time, *title, text + rest)
                    if start == time:
                        # Slices between the two are inside of the slice, although all have the same time.
                        self._put(self._items, track, order, END, time, time, b"", b"", b"")
                else:
                    # The end of what began before the recording.
                    self._put(self._items, track, order, INSTANT, time, time, category, name, rest)
            for begin, start, text, *title in open_.slices:
                self._put(self._items, track, begin, BEGIN, start, _NEVER, *title, text)
        self._halves.close()

    def _track(self, track: _Track, items: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
        """Yield the packets of a track; what neither follows nor lies inside of the open slices goes to another one."""
        out = [packet(text + self._stamp) for text in self._begin(track)]
        clock = 0
        open_: list[int] = []
        held_ns = -1  # the time of the last slice of no duration that waits for its end
        instant_ns = -1

        def write(time: int, event: bytes) -> None:
            nonlocal clock
            out.append(packet(number_field(8, time - clock) + self._stamp + event))
            clock = time

        for _, start, _, order, kind, end, category, name, rest in items:
            if kind == FLOW and self._starts.get((category, name, rest), (start, order)) != (start, order):
                continue  # the engine takes the first start of a flow, and counts further ones as errors
            end_before = start if kind in (FLOW, NEXT_FLOW) or start == held_ns else start + 1
            while open_ and open_[-1] < end_before:
                write(open_.pop(), _END)
            if kind == END:
                if open_ and open_[-1] == end:
                    write(open_.pop(), _END)
                continue
            type_ = _TYPES[kind]
            if kind == SLICE and start == end:
                type_, instant_ns = _EMPTY, start
            elif kind in (SLICE, BEGIN):
                if open_ and end > open_[-1]:
                    self._put(self._lane(track), 0, order, kind, start, end, category, name, rest)
                    continue
                open_.append(end)
                if end == start:
                    held_ns = start
            elif kind == INSTANT:
                instant_ns = start
            has_place = kind != FLOW or open_ or instant_ns == start
            if not has_place:
                write(start, block(11, _TYPES[BEGIN] + category + name + _PLACE))
            write(start, block(11, type_ + category + name + rest))
            if not has_place:
                write(start, _END_OF_PLACE)
            if len(out) >= _PIECE_PACKETS:
                yield b"".join(out)
                out.clear()
        for end in reversed(open_):
            if end < _NEVER:
                write(end, _END)
        yield b"".join(out)

    def _begin(self, track: _Track) -> Iterator[bytes]:
        uuid, parent, name = track.uuid, track.parent, track.name
        if track.unit is not None:
            yield block(60, pftrace.counter_track(uuid, parent, name, unit=track.unit.decode(), order=COUNTERS))
        elif uuid >= _HASHED:
            yield block(60, pftrace.track(uuid, parent, name, order=ASYNC, merge=True))
        yield pftrace.begin_track(track.uuid)

    def _lane(self, track: _Track) -> ExternalSort:
        if track.lane is None:
            is_async = track.uuid >= _HASHED
            parent, name = (track.parent, track.name) if is_async else (track.uuid, b"overlap")
            uuid = uuid_of(b"lane", b"%d" % track.uuid)
            track.lane = _Track(0, uuid, parent, name, items=ExternalSort(self._folder))
            self._lanes.append(track.lane)
        assert track.lane.items is not None
        return track.lane.items
