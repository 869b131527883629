"""Where everything of every input goes: processes, threads and ids that are unique in the merged trace.

A rank's processes are numbered ``rank * stride + 1, + 2 ...``: CPU processes first, then GPUs, then the rank's children
(workers of data loaders), then what the profilers add. All files of one rank that know the same real process share it, so
that a marker and the operator under it stand on one thread's track. Thread ids are kept where Perfetto takes them
(1 .. 2**32 - 1), since they are what other tools show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.event_fields import raw_number
from tracekit.formats.kineto import GPU_CATEGORIES, gpu_of_label
from tracekit.merge.lanes import DROPPED, Slices
from tracekit.merge.process_key import CHILD, CPU, DEVICE, GPU, OVERHEAD, PROFILER, ProcessKey, main_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.merge.clocks.clock_map import ClockMap
    from tracekit.merge.identities import ProcessIdentity
    from tracekit.merge.input import Input
    from tracekit.merge.input_scan import ProcessScan, ThreadScan
    from tracekit.merge.lanes import Moves

__all__ = [
    "InputMap",
    "Process",
    "RankTrack",
    "Thread",
    "Track",
    "Used",
    "add_threads",
    "better_name",
    "display_order",
    "fill",
    "free_tids",
    "number_processes",
    "number_threads",
    "spread",
    "used_processes",
]

RankTrack = tuple[int, list[tuple[Slices, int]]]
"""A track: its rank, and what `assign_lanes` takes."""

_MAX_ID: Final = 2**32 - 1
_FREE_TIDS: Final = 3 * 2**30
"""Thread ids from here on are given to tracks that have none a viewer takes; tracekit's own lanes begin at 2**30."""

_DISPLAY: Final = (CPU, GPU, DEVICE, CHILD, OVERHEAD, PROFILER)
_PSEUDO_PROCESSES: Final = frozenset({"Spans", "Traces", ""})


@dataclass(slots=True)
class Thread:
    """A track of the merged trace.

    Attributes:
        tid: Its number.
        name: What it is called.
        sort_index: Its place among the others, where an input tells.
        key: What its ``tid`` is in the inputs.
        lane: Which lane of that track it is; 0 is the track itself.
        main: Whether it is the main thread.
        scans: While it is planned, the tracks of the inputs that go to it or to its lanes, each with the number of its input.
    """

    tid: int
    name: str | None
    sort_index: int | None
    key: int | str
    lane: int = 0
    main: bool = False
    scans: list[tuple[int, ThreadScan]] = field(default_factory=list)


@dataclass(slots=True)
class Process:
    """A process of the merged trace.

    Attributes:
        inputs: The inputs that have tracks in it, by number.
    """

    rank: int
    key: ProcessKey
    pid: int = 0
    name: str = ""
    threads: dict[int | str, Thread] = field(default_factory=dict)
    host: str | None = None
    identity: ProcessIdentity | None = None
    inputs: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What the viewer shows: "rank 3 · GPU 1"."""
        prefix = f"rank {self.rank}"
        if self.name == prefix or self.name.startswith(f"{prefix} · "):
            return self.name
        return f"{prefix} · {self.name}"


@dataclass(slots=True)
class Track:
    """A track of one input, some of whose slices go to other lanes.

    Attributes:
        tid: Where the others go.
        moves: Which ones, and to which lane.
        lanes: The ``tid`` of each lane, `DROPPED` for those that go nowhere.
    """

    tid: int
    moves: Moves
    lanes: dict[int, int]


@dataclass(slots=True)
class InputMap:
    """How one input is rewritten.

    Attributes:
        number: Its place among the inputs; the namespace of its flow, async and correlation ids.
        shift_ns: What is added to its times.
        processes: ``pid`` as it stands in the file, to (new pid, {``tid`` as it stands there: new tid or `Track`}).
        shared: Whether another input has tracks in the same process.
        warp: What is added to its times besides, in the file's time, where its clock drifts.
    """

    number: int
    shift_ns: int
    processes: dict[Any, tuple[int, dict[Any, int | Track]]]
    shared: bool
    warp: ClockMap | None = None

    def file_ns(self, merged_ns: int) -> int:
        """Return which of the file's times a time of the merge is."""
        time_ns = merged_ns - self.shift_ns
        return time_ns if self.warp is None else time_ns + self.warp.inverse().offset_at(time_ns)


Used = tuple[Any, "ProcessScan", tuple[int, ProcessKey, str]]
"""A process of an input: its pid there, what is known of it, and its rank, key and name."""


def display_order(process: Process) -> tuple[int, int, str]:
    """Return what processes are sorted by."""
    return process.rank, _DISPLAY.index(process.key[0]), str(process.key[1]).zfill(20)


def used_processes(item: Input, processes: dict[Any, ProcessScan]) -> Iterator[Used]:
    """Yield the processes of an input that the merged trace shows."""
    for raw, process in processes.items():
        # Kineto declares every GPU there could be. The process of a rank trace, and what an earlier merge kept, is real.
        real = (
            (process.used and raw not in item.unwanted_pids)
            or raw in item.merged_processes
            or (item.scan.kind == "tracekit" and raw in item.pids)
        )
        # Other spellings of the same pid (absent, null, 1.0) lead to the same object.
        if real and isinstance(raw, (int, str)) and raw_number(raw) == raw:
            yield raw, process, _identify(item, raw, process)


def _identify(item: Input, raw: Any, process: ProcessScan) -> tuple[int, ProcessKey, str]:
    """Return rank, key and name of a process of an input."""
    known = item.merged_processes.get(raw)
    if known is not None:
        return known
    rank = item.rank
    if isinstance(raw, str):
        if raw in _PSEUDO_PROCESSES:
            return rank, (PROFILER, ""), "profiler"
        return rank, (DEVICE, raw), process.name or raw
    if item.scan.kind == "torch":
        gpu = gpu_of_label(process.label)
        if gpu is None and not process.label and 0 <= raw < 64:
            categories = {thread.category for thread in process.threads.values() if thread.category}
            gpu = raw if categories and categories <= GPU_CATEGORIES else None
        if gpu is not None:
            return rank, (GPU, gpu), f"GPU {gpu}"
        if raw < 0:
            return rank, (OVERHEAD, raw), "overhead"
    if item.scan.kind == "xprof":
        # Its pids are numbers of its own, 701 for every host, which a real process may have.
        name = process.name or f"process {raw}"
        return rank, (DEVICE, f"XLA {name}"), f"XLA {name}"
    return rank, item.process_keys.get(raw, (CPU, raw)), process.name or f"process {raw}"


def better_name(old: str, new: str, rank: int) -> str:
    """Prefer tracekit's name for an attempt or a child, then one that says something beyond the rank.

    Of two such, the first in the order of the alphabet.
    """
    own = [name for name in (old, new) if name.startswith(f"rank {rank} · ")]
    if own:
        return min(own)
    plain = {"", f"rank {rank}"}
    if old in plain or new in plain:
        return (new if old in plain else old) or new
    return min(old, new)


def number_processes(processes: list[Process], stride: int) -> None:
    """Number the processes of some ranks, in the order of display.

    Raises:
        MergeError: More processes than 32-bit process ids can name.
    """
    slots: dict[int, int] = {}
    for process in processes:
        slot = slots[process.rank] = slots.get(process.rank, 0) + 1
        process.pid = process.rank * stride + slot
        if process.pid > _MAX_ID:
            count = sum(other.rank == process.rank for other in processes)
            raise MergeError(
                f"rank {process.rank} with {count} processes does not fit: process ids end at {_MAX_ID}; "
                "merge fewer ranks at once"
            )


def add_threads(process: Process, scan: ProcessScan, number: int) -> None:
    """Add the threads that an input has in a process.

    Args:
        process: Of the merged trace.
        scan: The same process in the input.
        number: Of the input.
    """
    for raw, thread_scan in scan.threads.items():
        if not isinstance(raw, (int, str)) or raw_number(raw) != raw:
            continue
        if not thread_scan.used and raw not in scan.thread_keys:  # what an earlier merge has numbered stays so
            continue
        key, lane = _thread_key(process, scan, raw)
        thread = process.threads.setdefault(key, Thread(0, None, None, key))
        thread.main = thread.main or key == main_thread(process.key)
        # A lane of an earlier merge goes back to its track, since there may be more to put beside it.
        thread.scans.append((number, thread_scan))
        if lane:
            continue
        name = (thread_scan.name or "").strip() or None
        if name is not None:
            # Inputs come in a fixed order, tracekit's rank traces first: their thread names say more.
            thread.name = thread.name or name
        if thread.sort_index is None:
            thread.sort_index = thread_scan.sort_index


def _thread_key(process: Process, scan: ProcessScan, raw: int | str) -> tuple[int | str, int]:
    """Return what a ``tid`` of an input stands for, and which lane of it."""
    if raw in scan.thread_keys:
        return scan.thread_keys[raw]
    # The profiler's own process takes in three pseudo-processes; one of them has a thread without a name.
    return "Record Window" if process.key[0] == PROFILER and raw == "" else raw, 0


def number_threads(process: Process) -> None:
    """Number the threads of a process, and name those whose numbers say something else than before."""
    taken = {key for key in process.threads if isinstance(key, int) and 0 < key <= _MAX_ID}
    free = _FREE_TIDS
    for key, thread in sorted(process.threads.items(), key=lambda item: (isinstance(item[0], str), item[0])):
        if key in taken:
            thread.tid = int(key)
            continue
        if key == 0 and process.pid not in taken:
            # What Perfetto itself makes of tid 0: the main thread.
            thread.tid = process.pid
        else:
            while free in taken:
                free += 1
            thread.tid = free
            free += 1
        if thread.name is None and not (key == 0 and process.key[0] == CPU):
            thread.name = key if isinstance(key, str) else f"thread {key}"


def free_tids(process: Process) -> Iterator[int]:
    """Yield thread ids that no thread of a process has."""
    taken = {other.tid for other in process.threads.values()}
    return (tid for tid in count(_FREE_TIDS) if tid not in taken)


def spread(
    process: Process, thread: Thread, moves: list[Moves | None], tracks: dict[int, Track], tids_left: Iterator[int]
) -> int:
    """Move the slices of a track that overlap to lanes of their own; returns how many moved."""
    tids = {DROPPED: DROPPED}
    for lane in sorted(set().union(*[part.lanes for part in moves if part])):
        free = next(tids_left)
        title = thread.name or f"thread {thread.tid}"
        suffix = "overlap" if lane == 1 else f"overlap {lane}"
        # What an input tells of a main thread's place does not count, since an earlier merge may have told it.
        sort_index = None if thread.main else thread.sort_index
        process.threads[f"{thread.tid} lane {lane}"] = Thread(free, f"{title} ({suffix})", sort_index, thread.key, lane)
        tids[lane] = free
    for (_, scan), part in zip(thread.scans, moves, strict=True):
        if part is not None:
            tracks[id(scan)] = Track(thread.tid, part, tids)
    return sum(part.count for part in moves if part)


def fill(
    target: InputMap,
    scans: dict[Any, ProcessScan],
    found: Iterable[tuple[ProcessScan, Process]],
    tracks: dict[int, Track],
) -> None:
    """Tell the map of an input where its processes and threads go.

    Args:
        target: The map.
        scans: The processes of the input.
        found: Those that the merged trace shows, each with its place.
        tracks: The tracks of which something leaves, by the ``id`` of the thread in the input.
    """
    by_scan = {id(scan): process for scan, process in found}
    for raw, process_scan in scans.items():
        process = by_scan.get(id(process_scan))
        if process is None:
            continue
        tids: dict[Any, int | Track] = {}
        for raw_tid, thread_scan in process_scan.threads.items():
            thread = process.threads.get(_thread_key(process, process_scan, raw_number(raw_tid))[0])
            if thread is not None:
                tids[raw_tid] = tracks.get(id(thread_scan), thread.tid)
        target.processes[raw] = (process.pid, tids)
