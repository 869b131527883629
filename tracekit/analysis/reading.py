"""Traces read once, as slices: of which marker, on which track of which rank, from when until when.

Nothing else of an event is kept. What is too much for memory lies in a temporary file (`tracekit.analysis.ordered_rows`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.inputs import base_of, find_traces, merged_ranks, stated_rank
from tracekit.analysis.markers import MOST_MARKERS, Kind, Markers
from tracekit.analysis.ordered_rows import merged_windows
from tracekit.analysis.pairs import AsyncPairs, pair_marks
from tracekit.analysis.text import counted
from tracekit.collectives.parts import CollectiveCollector
from tracekit.errors import StorageError, TraceFormatError
from tracekit.formats.decimal_time import parse_us
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.time_columns import parse_all_us
from tracekit.formats.trace_reader import UNSET, Event, TraceReader, decode_or_none
from tracekit.storage import basename, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.analysis.ordered_rows import OrderedRows, Scratch
    from tracekit.collectives.parts import Collective
    from tracekit.spill import Row

__all__ = ["Process", "Reading", "Thread", "TraceFile", "Track", "read_traces"]

StepColumns = tuple["array[int]", "array[int]", "array[int]"]

MOST_TRACKS: Final = 100_000
_MOST_BATCHES: Final = 500_000
_MOST_COLLECTIVES: Final = 20_000
_MOST_TIME_NS: Final = 2**61
_STEP: Final = int(Kind.STEP)
_NAMES: Final = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
_MOST_CHARACTERS: Final = 200


@dataclass(slots=True)
class Process:
    """A ``pid`` of one file.

    Attributes:
        file: Number of the file.
        pid: As it stands in the file.
        rank: Whose it is, known when the file has been read.
        name: From ``process_labels``, such as "GPU 0", else from ``process_name``.
        label: Whether the name is a label.
        batches: Start, end and number of each step that tracekit recorded of it, as three columns.
        profiler_steps: The same of torch.profiler's steps.
        thread_names: By tid.
    """

    file: int
    pid: Any
    rank: int = -1
    name: str = ""
    label: bool = False
    batches: StepColumns = field(default_factory=lambda: (array("q"), array("q"), array("q")))
    profiler_steps: StepColumns = field(default_factory=lambda: (array("q"), array("q"), array("q")))
    thread_names: dict[Any, str] = field(default_factory=dict)


@dataclass(slots=True)
class Track:
    """The slices of one thread or stream, or the asynchronous ones of a process.

    Attributes:
        process: Whose it is.
        tid: As it stands in the file; None for asynchronous slices, which do not nest.
        slices: As rows (start, -end, number of the event, marker), in the file's time.
        marks: Begins and ends that are not paired yet, as rows (time, number of the event, twice the marker + is end).
    """

    process: Process
    tid: Any
    slices: OrderedRows
    marks: OrderedRows | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread or stream with all of its tracks: several files may tell of it, one after the other or of different things.

    Attributes:
        tracks: One of each file.
        bases_ns: What the times of each are relative to.
    """

    tracks: list[Track]
    bases_ns: list[int]

    @property
    def base_ns(self) -> int:
        """What the times of `windows` are relative to."""
        return self.bases_ns[0]

    @property
    def process(self) -> Process:
        """Its process, as the file tells of it that knows most of steps."""
        return max((track.process for track in self.tracks), key=lambda process: len(process.batches[0]))

    @property
    def rank(self) -> int:
        """Whose it is."""
        return self.tracks[0].process.rank

    @property
    def nests(self) -> bool:
        """Whether its slices lie in each other; asynchronous ones do not."""
        return self.tracks[0].tid is not None

    @property
    def name(self) -> str:
        """Its name, else its number."""
        names = [track.process.thread_names.get(track.tid) for track in self.tracks]
        return next((name for name in names if name), f"thread {self.tracks[0].tid}")

    def windows(self) -> Iterator[list[Row]]:
        """Return the rows of its slices in order, a list at a time."""
        if len(self.tracks) == 1:
            return self.tracks[0].slices.windows()
        sources = []
        for track, base_ns in zip(self.tracks, self.bases_ns, strict=True):
            first, by_ns = track.slices.first, base_ns - self.base_ns
            if first is not None:
                sources.append(((first[0] + by_ns, first[1] - by_ns, *first[2:]), _shifted(track.slices, by_ns)))
        return merged_windows(sources)


def _shifted(slices: OrderedRows, by_ns: int) -> Iterator[list[Row]]:
    for window in slices.windows():
        yield [(start + by_ns, minus_end - by_ns, order, marker) for start, minus_end, order, marker in window]


@dataclass(slots=True)
class TraceFile:
    """One file that was read.

    Attributes:
        path: As it may be shown.
        rank: The rank that it states; None for a merged trace, and where it states none.
        merged: Whether it is the result of a merge.
        base_ns: What its times are relative to.
        events: How many it holds.
        collectives: Those that were looked for, by rank; of a trace that is not merged, under None.
    """

    path: str
    rank: int | None = None
    merged: bool = False
    base_ns: int = 0
    events: int = 0
    collectives: dict[int | None, list[Collective]] = field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """All that was read.

    Attributes:
        scratch: Where rows go that are too many for memory.
        markers: The names.
        files: What was read.
        processes: The processes of all files.
        tracks: Their tracks.
        notes: What the reader of the result should know, as sentences.
        unusable: Slices whose time or duration is missing, negative or beyond all bounds; they are left out.
        unfinished: Slices that begin and never end; they are left out.
        refused: Slices on tracks beyond the first `MOST_TRACKS`; they are left out.
        lost: Places in the files at which events cannot be read.
    """

    scratch: Scratch
    markers: Markers = field(default_factory=Markers)
    files: list[TraceFile] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unusable: int = 0
    unfinished: int = 0
    refused: int = 0
    lost: int = 0

    @property
    def incomplete(self) -> bool:
        """Whether something that stands in the files is not counted."""
        return bool(self.lost or self.unusable or self.refused)

    @property
    def all_notes(self) -> list[str]:
        """The notes, with what is not counted and why."""
        slices = (
            (self.unusable, "their time or duration is missing, negative or beyond all bounds"),
            (self.unfinished, "they begin and never end"),
            (self.refused, f"they are on tracks beyond the first {MOST_TRACKS:,}"),
        )
        notes = [f"{counted(count, 'slice')} not counted: {reason}" for count, reason in slices if count]
        if self.lost:
            notes.insert(
                0, f"{counted(self.lost, 'place')} in the files cannot be read: what stood there is not counted"
            )
        if self.markers.refused:
            many = counted(self.markers.refused, "slice")
            notes.append(f"{many} counted as one marker: their names are beyond the first {MOST_MARKERS:,}")
        return [*self.notes, *notes]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have slices."""
        return sorted({track.process.rank for track in self.tracks})

    def collectives(self) -> dict[int, list[Collective]]:
        """Return the collectives of each rank, in the order of their ends."""
        found: dict[int, list[Collective]] = {}
        for file in self.files:
            for rank, own in file.collectives.items():
                found.setdefault(file.rank if rank is None and file.rank is not None else rank or 0, []).extend(own)
        return found

    def threads(self) -> list[Thread]:
        """Return the threads and streams: what has one rank, pid and tid is one, whatever file tells of it."""
        found: dict[tuple[int, Any, Any], Thread] = {}
        for track in self.tracks:
            thread = found.setdefault((track.process.rank, track.process.pid, track.tid), Thread([], []))
            thread.tracks.append(track)
            thread.bases_ns.append(self.files[track.process.file].base_ns)
        return list(found.values())

    def forget(self, thread: Thread) -> None:
        """Let go of what a thread that has been looked at has in memory."""
        for track in thread.tracks:
            self.scratch.forget(track.slices)


def read_traces(
    patterns: Sequence[str],
    scratch: Scratch,
    progress: Callable[[float, str], None] | None = None,
    *,
    collectives: bool = False,
) -> Reading:
    """Read the slices of traces.

    Args:
        patterns: Files, folders, globs or URLs; merged traces or those of single ranks, JSON or Perfetto's own, plain or gzip.
        scratch: Where rows go that are too many for memory; it must stay open as long as the result is used.
        progress: Called with the share that has been read, and the file.
        collectives: Whether to look for the collectives in torch's traces, too; of each process the first 20,000.

    Raises:
        ConfigError: Nothing was named.
        StorageError: Something cannot be read.
        TraceFormatError: It is no trace.
    """
    reading = Reading(scratch)
    found = find_traces(patterns)
    sizes = [_size(path) for path, _ in found] if progress is not None else [0] * len(found)
    whole = sum(sizes) or 1
    done = 0
    left_out: list[TraceFormatError] = []
    for (path, named), size in zip(found, sizes, strict=True):
        try:
            with TraceReader(path) as reader:
                merged = merged_ranks(reader.header) is not None
                if merged and not named and len(found) > 1:
                    reading.notes.append(f"{reader.path} is left out: it is the result of a merge; name it to read it")
                    continue
                file = _FileReading(reading, reader, CollectiveCollector(_MOST_COLLECTIVES) if collectives else None)
                for share in file.read():
                    if progress is not None:
                        progress(min(1.0, (done + share * size) / whole), basename(path))
        except TraceFormatError as error:
            if named:
                raise
            left_out.append(error)
        done += size
    if left_out and not reading.files:
        raise left_out[0]
    reading.notes += [f"{error.path} is left out: {error.reason}" for error in left_out]
    _assume_ranks(reading)
    return reading


def _size(path: str) -> int:
    try:
        return size_bytes(path) or 0
    except StorageError:
        return 0


def _assume_ranks(reading: Reading) -> None:
    """Give a rank to the files that state none."""
    unknown = [number for number, file in enumerate(reading.files) if file.rank is None and not file.merged]
    taken = {process.rank for process in reading.processes}
    free = 0
    for number in unknown:
        while free in taken:
            free += 1
        taken.add(free)
        if len(reading.files) > 1:
            reading.notes.append(f"{reading.files[number].path} does not state its rank; it is called rank {free}")
        reading.files[number].rank = free
        for process in reading.processes:
            if process.file == number:
                process.rank = free


class _FileReading:
    def __init__(self, reading: Reading, reader: TraceReader, collectives: CollectiveCollector | None) -> None:
        self._collectives = collectives
        self._all = reading
        self._reader = reader
        self._number = len(reading.files)
        self._metadata: dict[str, Any] = {}
        self._processes: dict[Any, Process] = {}
        self._tracks: dict[tuple[Any, Any], Track | None] = {}
        self._async = AsyncPairs()
        self._batches: dict[tuple[Any, Any, int], int | None] = {}
        self._order = 0
        self._thread_names = 0

    def read(self) -> Iterator[float]:
        """Read the file; yields which share of it is read, as far as that is known."""
        all_, reader = self._all, self._reader
        size = _size(reader.path) or 1
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
            rank=None if ranks is not None else stated_rank(reader.path, reader.header, self._metadata),
            merged=ranks is not None,
            base_ns=base_of(reader.header, self._metadata),
            events=reader.events,
        )
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
        self._all.scratch.added(len(run))

    def _take_slices(self, slices: list[Event]) -> None:
        all_ = self._all
        slices, times, durations = self._timed(slices)
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
            times = [_time(event.ts) for event in slices]
            durations = [_time(event.dur) for event in slices]
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
        time = _time(event.ts)
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
        time = _time(event.ts)
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
        if not isinstance(args, dict):
            return
        if name == METADATA_EVENT:
            self._metadata = self._metadata or args
        elif name in _NAMES and isinstance(args.get(_NAMES[name]), str):
            process = self._process(event.pid)
            if process is not None:
                self._name(process, event, name, args[_NAMES[name]].strip()[:_MOST_CHARACTERS])

    def _name(self, process: Process, event: Event, what: str, name: str) -> None:
        if what == "thread_name":
            if self._thread_names < MOST_TRACKS:
                self._thread_names += 1
                process.thread_names[_number(event.tid)] = name
        elif what == "process_labels" or not process.label:
            process.name = name
            process.label = what == "process_labels"

    def _process(self, raw: Any) -> Process | None:
        process = self._processes.get(raw)
        if process is None:
            if len(self._processes) >= MOST_TRACKS:
                return None
            process = self._processes.setdefault(_number(raw), Process(self._number, _number(raw)))
            self._processes[raw] = process
        return process

    def _track(self, key: tuple[Any, Any], *, asynchronous: bool = False) -> Track | None:
        """Return the track of a pid and tid that are met first; None when there are too many."""
        pid, tid = _number(key[0]), None if asynchronous else _number(key[1])
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
    return (
        b"" if event.name is UNSET else bytes(event.name),
        b"" if event.cat is UNSET else bytes(event.cat),
    )


def _time(raw: Any) -> int | None:
    return None if raw is UNSET else parse_us(bytes(raw))


def _number(value: Any) -> Any:
    """Return the one spelling of a ``pid`` or ``tid``: 0 where it is absent or null, whole numbers without a fraction."""
    if value is UNSET or value is None:
        return 0
    if isinstance(value, float):
        return int(value) if abs(value) < 2**63 else 0
    return value
