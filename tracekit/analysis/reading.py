"""What was read of traces: slices, of which marker, on which thread of which rank, from when until when.

Nothing else of an event is kept. What is too much for memory lies in a temporary file (`tracekit.analysis.ordered_rows`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.file_account import FileAccount
from tracekit.analysis.markers import MOST_MARKERS, Markers
from tracekit.analysis.ordered_rows import merged_windows
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analysis.counters import CounterCollector
    from tracekit.analysis.ordered_rows import OrderedRows, Scratch
    from tracekit.analysis.recordings import Recording
    from tracekit.collectives.parts import Collective
    from tracekit.spill import Row

__all__ = ["MOST_TRACKS", "Process", "Reading", "Thread", "TraceFile", "Track"]

StepColumns = tuple["array[int]", "array[int]", "array[int]"]

MOST_TRACKS: Final = 100_000
"""Slices on further tracks are counted and left out: no real trace has so many."""


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
        source: As it is opened.
        rank: The rank that it states; None for a merged trace, and where it states none.
        merged: Whether it is the result of a merge.
        base_ns: What its times are relative to.
        events: How many it holds.
        recordings: What tracekit recorded of which process, as far as the file tells.
        content: What its copies share with it, and few other files: its rank metadata, how many events it holds and when its
            first slice is; None where it has no rank metadata, or no slice.
        collectives: Those that were looked for, by rank; of a trace that is not merged, under None.
        account: What it says about itself.
        ranks: Whose each ``pid`` of a merged trace is; None of other traces.
        counters: Those that were asked for.
    """

    path: str
    source: str = ""
    rank: int | None = None
    merged: bool = False
    base_ns: int = 0
    events: int = 0
    recordings: list[Recording] = field(default_factory=list)
    content: tuple[str, int, int] | None = None
    collectives: dict[int | None, list[Collective]] = field(default_factory=dict)
    account: FileAccount = field(default_factory=FileAccount)
    ranks: dict[Any, int] | None = None
    counters: CounterCollector | None = None


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
