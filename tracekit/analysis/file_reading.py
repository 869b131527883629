"""The events of one file made into slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.file_account import FileAccount
from tracekit.analysis.inputs import base_of, merged_ranks, stated_rank
from tracekit.analysis.markers import Kind
from tracekit.analysis.pairs import AsyncPairs, pair_marks
from tracekit.analysis.reading import MOST_TRACKS, Process, Reading, TraceFile, Track
from tracekit.analysis.recordings import recordings_of
from tracekit.errors import StorageError, TraceFormatError
from tracekit.formats.event_fields import raw_field, raw_number, time_field
from tracekit.formats.losses import stated_losses
from tracekit.formats.rank_clock import stated_ranks
from tracekit.formats.rank_trace import COMPOSER_RANK_EVENT, METADATA_EVENT
from tracekit.formats.time_columns import parse_all_us
from tracekit.formats.trace_event import Event, decode_or_none
from tracekit.storage import size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analysis.counters import CounterCollector
    from tracekit.analysis.ordered_rows import OrderedRows
    from tracekit.collectives.parts import CollectiveCollector
    from tracekit.formats.trace_reader import TraceReader
    from tracekit.spill import Row

__all__ = ["FileReading", "file_size"]

_MOST_BATCHES: Final = 500_000
_MOST_TIME_NS: Final = 2**61
_STEP: Final = int(Kind.STEP)
_NAMES: Final = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
_MOST_CHARACTERS: Final = 200


def file_size(path: str) -> int:
    """Return the size of a file; 0 where the storage does not tell."""
    try:
        return size_bytes(path) or 0
    except StorageError:
        return 0


class FileReading:
    """Reads one file into a `Reading`.

    Args:
        reading: Where everything goes.
        reader: Of the file.
        collectives: Looks for the collectives, where these are wanted.
        counters: Collects the counters, where these are wanted.
    """

    def __init__(
        self,
        reading: Reading,
        reader: TraceReader,
        collectives: CollectiveCollector | None,
        counters: CounterCollector | None,
    ) -> None:
        self._collectives = collectives
        self._counters = counters
        self._account = FileAccount()
        self._all = reading
        self._reader = reader
        self._number = len(reading.files)
        self._metadata: dict[str, Any] = {}
        self._composer_ranks: set[int] = set()
        self._processes: dict[Any, Process] = {}
        self._tracks: dict[tuple[Any, Any], Track | None] = {}
        self._async = AsyncPairs()
        self._batches: dict[tuple[Any, Any, int], int | None] = {}
        self._order = 0
        self._thread_names = 0

    @property
    def series(self) -> int:
        """How many series of counters were kept."""
        return 0 if self._counters is None else len(self._counters.series)

    def read(self, size_bytes: int) -> Iterator[float]:
        """Read the file; yield the share of ``size_bytes`` that is read. A size of 0 is unknown."""
        all_, reader = self._all, self._reader
        size = size_bytes or 1
        for run in reader.runs():
            self._take(run)
            if self._collectives is not None:
                self._collectives.take(run)
            yield min(1.0, reader.bytes_read / (size * (10 if reader.compressed else 1)))
        if not self._tracks and not self._metadata and reader.drops and not reader.events:
            raise TraceFormatError(reader.path, "no event in it can be read", offset_bytes=reader.drops[0].offset_bytes)
        ranks = merged_ranks(reader.header)
        file = TraceFile(
            path=without_secrets(reader.path),
            rank=None
            if ranks is not None
            else stated_rank(reader.path, reader.header, self._metadata, self._composer_ranks),
            merged=ranks is not None,
            base_ns=base_of(reader.header, self._metadata),
            events=reader.events,
            account=self._account,
            ranks=ranks,
            counters=self._counters,
        )
        file.recordings = recordings_of(reader.header, self._metadata, file.rank)
        if self._collectives is not None:
            file.collectives = self._collectives.result(ranks)
        all_.files.append(file)
        all_.lost += sum(drop.count for drop in reader.drops)
        all_.unfinished += self._async.unfinished
        for process in self._processes.values():
            own = file.rank if ranks is None else ranks.get(process.pid)
            process.rank = -1 if own is None else own
            all_.processes.append(process)
        for track in self._tracks.values():
            if track is not None and track.marks is not None:
                self._pair(track, track.marks)
                track.marks = None
        self._take_account(file)
        if self._metadata and ranks is None and self._account.start_ns is not None:
            file.content = repr(sorted(self._metadata.items())), reader.events, self._account.start_ns

    def _take_account(self, file: TraceFile) -> None:
        account, reader = self._account, self._reader
        account.metadata = self._metadata
        account.repairs = {repair.kind: repair.count for repair in reader.repairs}
        account.damage = {drop.kind: drop.count for drop in reader.drops}
        account.cut = "cut_file" in account.repairs
        firsts = (track.slices.first for track in self._tracks.values() if track is not None)
        account.start_ns = min((first[0] for first in firsts if first is not None), default=None)
        if file.ranks is not None:
            account.clocks = stated_ranks(reader.header)
            account.losses = stated_losses(reader.header, set(file.ranks.values()))

    def _pair(self, track: Track, marks: OrderedRows) -> None:
        all_ = self._all

        def closed(row: Row) -> None:
            start, minus_end, _, number = row
            if all_.markers.kinds[number] & _STEP:
                batch = self._batches.pop((track.process.pid, track.tid, start), None)
                self._note_step(track.process, start, -minus_end, number, batch)

        all_.unfinished += pair_marks(marks, track.slices, all_.markers, all_.scratch, closed)

    def _take(self, run: list[Event]) -> None:
        slices = [event for event in run if event.ph == "X"]
        if slices:
            self._take_slices(slices)
            self._order += len(slices)
        if len(slices) < len(run):
            for event in run:
                phase = event.ph
                if phase == "X":
                    continue
                if phase in ("B", "E"):
                    self._take_mark(event, is_end=phase == "E")
                elif phase in ("b", "e"):
                    self._take_async(event, is_end=phase == "e")
                elif phase == "M":
                    self._take_metadata(event)
                elif phase in ("i", "I"):
                    self._account.take_instant(event)
                elif phase == "C" and self._counters is not None:
                    self._counters.take(event)
        self._all.scratch.added(len(run))

    def _take_slices(self, slices: list[Event]) -> None:
        all_ = self._all
        slices, times, durations = self._timed(slices)
        try:
            labels = [(bytes(event.name), bytes(event.cat)) for event in slices]  # type: ignore[arg-type]
        except TypeError:
            labels = [_label(event) for event in slices]
        numbers = all_.markers.numbers(labels)
        tracks = self._tracks
        first = self._order
        for order, (event, start, duration, number) in enumerate(
            zip(slices, times, durations, numbers, strict=True), first
        ):
            key = event.pid, event.tid
            track = tracks[key] if key in tracks else self._track(key)
            if track is None:
                all_.refused += 1
            else:
                track.slices.rows.append((start, -start - duration, order, number))
        kinds = all_.markers.kinds
        for number in {number for number in numbers if kinds[number] & _STEP}:
            for event, start, duration, own in zip(slices, times, durations, numbers, strict=True):
                process = self._process(event.pid) if own == number else None
                if process is not None:
                    self._note_step(process, start, start + duration, number, _batch(event))

    def _timed(self, slices: list[Event]) -> tuple[list[Event], list[int], list[int]]:
        """Return the slices with a usable time and duration, and these, in ns."""
        try:
            times = parse_all_us([event.ts for event in slices])  # type: ignore[misc]
            durations = parse_all_us([event.dur for event in slices])  # type: ignore[misc]
        except TypeError:
            times = [time_field(event.ts) for event in slices]
            durations = [time_field(event.dur) for event in slices]
        good = (
            None not in times
            and None not in durations
            and min(times) > -_MOST_TIME_NS  # type: ignore[operator, type-var]
            and max(times) < _MOST_TIME_NS  # type: ignore[operator, type-var]
            and min(durations) >= 0  # type: ignore[operator, type-var]
            and max(durations) < _MOST_TIME_NS  # type: ignore[operator, type-var]
        )
        if not good:
            usable = [
                (event, time, duration)
                for event, time, duration in zip(slices, times, durations, strict=True)
                if time is not None
                and duration is not None
                and abs(time) < _MOST_TIME_NS
                and 0 <= duration < _MOST_TIME_NS
            ]
            self._all.unusable += len(slices) - len(usable)
            slices = [event for event, _, _ in usable]
            times = [time for _, time, _ in usable]
            durations = [duration for _, _, duration in usable]
        return slices, times, durations  # type: ignore[return-value]

    def _take_mark(self, event: Event, *, is_end: bool) -> None:
        all_ = self._all
        time = time_field(event.ts)
        if time is None or abs(time) >= _MOST_TIME_NS:
            all_.unusable += 1
            return
        key = event.pid, event.tid
        track = self._tracks[key] if key in self._tracks else self._track(key)
        if track is None:
            all_.refused += 1
            return
        if track.marks is None:
            track.marks = all_.scratch.track()
        number = all_.markers[_label(event)]
        self._order += 1
        track.marks.rows.append((time, self._order, 2 * number + is_end))
        if not is_end and all_.markers.kinds[number] & _STEP and len(self._batches) < _MOST_BATCHES:
            # The arguments stand at the begin; when it ends is known when all are in order.
            self._batches[track.process.pid, track.tid, time] = _batch(event)

    def _take_async(self, event: Event, *, is_end: bool) -> None:
        all_ = self._all
        time = time_field(event.ts)
        if time is None or abs(time) >= _MOST_TIME_NS:
            all_.unusable += 1
            return
        self._order += 1
        paired = self._async.take(event, all_.markers[_label(event)], time, self._order, is_end=is_end)
        if paired is None:
            return
        key = event.pid, None
        track = self._tracks[key] if key in self._tracks else self._track(key, asynchronous=True)
        if track is None:
            all_.refused += 1
        else:
            track.slices.rows.append(paired)

    def _take_metadata(self, event: Event) -> None:
        name = decode_or_none(event.name)
        args = decode_or_none(event.args)
        if not isinstance(name, str) or not isinstance(args, dict):
            return
        if name == METADATA_EVENT:
            self._metadata = self._metadata or args
        elif name == COMPOSER_RANK_EVENT and type(args.get("value")) is int and args["value"] >= 0:
            self._composer_ranks.add(args["value"])
        elif name in _NAMES and isinstance(args.get(_NAMES[name]), str):
            process = self._process(event.pid)
            if process is not None:
                self._name(process, event, name, args[_NAMES[name]].strip()[:_MOST_CHARACTERS])
        else:
            self._account.take(name, args, raw_number(event.pid))

    def _name(self, process: Process, event: Event, what: str, name: str) -> None:
        if what == "thread_name":
            if self._thread_names < MOST_TRACKS:
                self._thread_names += 1
                process.thread_names[raw_number(event.tid)] = name
        elif what == "process_labels" or not process.label:
            process.name = name
            process.label = what == "process_labels"

    def _process(self, raw: Any) -> Process | None:
        process = self._processes.get(raw)
        if process is None:
            if len(self._processes) >= MOST_TRACKS:
                return None
            process = self._processes.setdefault(raw_number(raw), Process(self._number, raw_number(raw)))
            self._processes[raw] = process
        return process

    def _track(self, key: tuple[Any, Any], *, asynchronous: bool = False) -> Track | None:
        """Return the track of a pid and tid that are met first; None when there are too many."""
        pid, tid = raw_number(key[0]), None if asynchronous else raw_number(key[1])
        track = self._tracks.get((pid, tid))
        if track is None and len(self._all.tracks) < MOST_TRACKS:
            process = self._process(key[0])
            if process is not None:
                track = Track(process, tid, self._all.scratch.track())
                self._all.tracks.append(track)
        if len(self._tracks) < 2 * MOST_TRACKS:
            self._tracks[pid, tid] = self._tracks[key] = track
        return track

    def _note_step(self, process: Process, start: int, end: int, marker: int, batch: int | None) -> None:
        """Note when a step was, and its number: that in its name, or the batch in its arguments."""
        name = self._all.markers.table[marker].name
        columns = process.batches
        if "#" in name:
            columns, batch = process.profiler_steps, int(name.rpartition("#")[2])
        number = len(columns[0]) if batch is None else batch
        for column, value in zip(columns, (start, end, number), strict=True):
            column.append(value)


def _batch(event: Event) -> int | None:
    args = decode_or_none(event.args)
    batch = args.get("batch") if isinstance(args, dict) else None
    return batch if isinstance(batch, int) and 0 <= batch < _MOST_TIME_NS else None


def _label(event: Event) -> tuple[bytes, bytes]:
    return raw_field(event.name), raw_field(event.cat)
