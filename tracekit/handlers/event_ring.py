"""EventRing: the events of the last seconds, packed, in bounded memory."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import COUNTER, WIDTH, EventBatch, Timestamps
from tracekit.handlers.gap import CarriedSlices, newest_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.timestamp import Timestamp

_CHUNK_EVENTS: Final = 32_768  # A batch of more events is split, so that the limits hold to about a megabyte
_STEP_EVENTS: Final = 4_096  # events that are unpacked at once: a step of a few milliseconds
_RECORD_BYTES: Final = WIDTH * 8
_COUNTER_BYTES: Final = 280  # a dict with one float
_SERIES_BYTES: Final = 56
_TIMESTAMP_BYTES: Final = 1000  # its 14 fields, none of them shared
_CHUNK_BYTES: Final = 600


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of the delivered events as 64-bit numbers. The fourth entry of a counter is an index into ``values``."""

    records: array[int]
    values: list[Mapping[str, float]]
    timestamps: Timestamps
    last_ns: int
    size_bytes: int


class EventRing:
    """Keeps the newest events: those of ``span_ns`` before the newest, in about ``max_bytes``. Used by one thread.

    A record takes 32 bytes here (about 100 in a Python list), and the garbage collector visits none of them. A slice
    is kept as long as its end, with its true start. Events are dropped in the pieces that were delivered; ``dropped``
    counts them. ``newest_ns`` is the monotonic time of the newest event.
    """

    def __init__(self, span_ns: int, max_bytes: int) -> None:
        self._span_ns = span_ns
        self._max_bytes = max_bytes
        self._chunks: deque[_Chunk] = deque()
        self._tables: EventBatch | None = None
        self._open_before = CarriedSlices()  # slices that were open where the kept events begin
        self._begun: dict[int, Timestamp] = {}  # start of each such slice, and the training time at that moment
        self.size_bytes = 0
        self.events = 0
        self.dropped = 0
        self.newest_ns = 0

    def add(self, batch: EventBatch) -> None:
        """Keep a batch, and drop the events that now exceed the limits."""
        if not batch:
            return
        records = batch.records
        if len(records) > _CHUNK_EVENTS * WIDTH:
            records = _in_order(records)
        for position in range(0, len(records), _CHUNK_EVENTS * WIDTH):
            chunk = _pack(records[position : position + _CHUNK_EVENTS * WIDTH], batch.timestamps)
            self._chunks.append(chunk)
            self.size_bytes += chunk.size_bytes
            self.events += len(chunk.records) // WIDTH
            self.newest_ns = max(self.newest_ns, chunk.last_ns)
        self._tables = EventBatch((), batch.labels, batch.tracks, batch.timestamps, batch.offset_ns)
        while self._chunks and (
            self._chunks[0].last_ns < self.newest_ns - self._span_ns or self.size_bytes > self._max_bytes
        ):
            self._drop(self._chunks.popleft())

    def batches(self) -> Iterator[EventBatch]:
        """Yield the kept events: first the starts of the slices that were open before them, at their true time."""
        tables = self._tables
        if tables is None:
            return
        changes = dict(self._begun)
        for chunk in self._chunks:
            changes.update(chunk.timestamps.log)
        timestamps = _timestamps(sorted(changes.items(), key=lambda change: change[0]))

        def batch(records: Sequence[Any]) -> EventBatch:
            return EventBatch(records, tables.labels, tables.tracks, timestamps, tables.offset_ns)

        begins = self._open_before.begins()
        if begins:
            yield batch(begins)
        for chunk in list(self._chunks):
            for position in range(0, len(chunk.records), _STEP_EVENTS * WIDTH):
                yield batch(_unpack(chunk, position))

    def _drop(self, chunk: _Chunk) -> None:
        self.size_bytes -= chunk.size_bytes
        self.events -= len(chunk.records) // WIDTH
        self.dropped += len(chunk.records) // WIDTH
        self._open_before.follow(chunk.records)
        self._begun = {
            start_ns: self._begun.get(start_ns) or chunk.timestamps.at(start_ns) for _, start_ns, _ in self._open_before
        }


def _pack(records: Sequence[Any], timestamps: Timestamps) -> _Chunk:
    kinds = records[2::WIDTH]
    values: list[Mapping[str, float]] = []
    size_bytes = _CHUNK_BYTES + len(kinds) * _RECORD_BYTES
    if COUNTER in kinds:
        records = list(records)
        for index, kind in enumerate(kinds):
            if kind == COUNTER:
                values.append(records[index * WIDTH + 3])
                size_bytes += _COUNTER_BYTES + _SERIES_BYTES * len(values[-1])
                records[index * WIDTH + 3] = len(values) - 1
    changes = timestamps.since(min(records[1::WIDTH]))
    # The first one is shared with the previous chunk.
    size_bytes += _TIMESTAMP_BYTES * (len(changes) - 1)
    return _Chunk(array("q", records), values, _timestamps(changes), newest_ns(records), size_bytes)


def _unpack(chunk: _Chunk, position: int) -> list[Any]:
    records: list[Any] = chunk.records[position : position + _STEP_EVENTS * WIDTH].tolist()
    if chunk.values:
        for at in range(2, len(records), WIDTH):
            if records[at] == COUNTER:
                records[at + 1] = chunk.values[records[at + 1]]
    return records


def _in_order(records: Sequence[Any]) -> list[Any]:
    """Return the records sorted by their last known time; slices sort by their ends."""
    times = [max(start, kind) for start, kind in zip(records[1::WIDTH], records[2::WIDTH], strict=True)]
    order = sorted(range(len(times)), key=times.__getitem__)
    return [entry for index in order for entry in records[index * WIDTH : (index + 1) * WIDTH]]


def _timestamps(changes: list[tuple[int, Timestamp]]) -> Timestamps:
    (first_ns, first), *later = changes
    timestamps = Timestamps(first, first_ns)
    timestamps.log += later
    return timestamps
