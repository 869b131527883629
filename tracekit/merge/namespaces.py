"""Where everything of every input goes: processes, threads and ids that are unique in the merged trace.

A rank's processes are numbered ``rank * stride + 1, + 2 ...``: CPU processes first, then GPUs, then the rank's children
(workers of data loaders), then what the profilers add. All files of one rank that know the same real process share it, so
that a marker and the operator under it stand on one thread's track. Thread ids are kept where Perfetto takes them
(1 .. 2**32 - 1), since they are what other tools show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.event_fields import raw_number
from tracekit.formats.kineto import GPU_CATEGORIES, gpu_of_label
from tracekit.merge.lanes import DROPPED, Slices
from tracekit.merge.processes import CHILD, CPU, DEVICE, GPU, OVERHEAD, PROFILER, ProcessKey, main_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.clocks.clock_map import ClockMap
    from tracekit.merge.identities import ProcessIdentity
    from tracekit.merge.inputs import Input
    from tracekit.merge.lanes import Moves
    from tracekit.merge.scan import ProcessScan, ThreadScan

__all__ = ["InputMap", "Process", "RankTrack", "Thread", "Track", "plan"]

RankTrack = tuple[int, list[tuple[Slices, int]]]
"""A track: its rank, and what `assign_lanes` takes."""

_STRIDE: Final = 1000
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
        scans: The tracks of the inputs that go to it or to its lanes, each with the number of its input.
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
    """A process of the merged trace."""

    rank: int
    key: ProcessKey
    pid: int = 0
    name: str = ""
    threads: dict[int | str, Thread] = field(default_factory=dict)
    host: str | None = None
    identity: ProcessIdentity | None = None

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


def plan(
    inputs: list[Input], shifts_ns: list[int], assign: Callable[[list[RankTrack]], list[list[Moves | None]]]
) -> tuple[list[Process], list[InputMap], int]:
    """Give every used process and thread its place.

    Args:
        inputs: In the order of the output.
        shifts_ns: What is added to the times of each.
        assign: Does what `assign_lanes` does, for many tracks at once.

    Returns:
        The processes in the order of display, a map for each input, and how many slices moved to a lane of their own.

    Raises:
        MergeError: More processes than 32-bit process ids can name.
    """
    processes: dict[tuple[int, ProcessKey], Process] = {}
    places: list[list[tuple[ProcessScan, Process]]] = []
    owners: dict[int, set[int]] = {}
    for number, item in enumerate(inputs):
        found = []
        for raw, process_scan in _used(item):
            rank, key, name = _identify(item, raw, process_scan)
            process = processes.setdefault((rank, key), Process(rank, key))
            process.name = _better_name(process.name, name, rank)
            process.host = process.host or item.merged_hosts.get(raw) or item.host
            process.identity = process.identity or item.identities.get(raw)
            owners.setdefault(id(process), set()).add(number)
            found.append((process_scan, process))
        places.append(found)
    ordered = sorted(
        processes.values(),
        key=lambda process: (process.rank, _DISPLAY.index(process.key[0]), str(process.key[1]).zfill(20)),
    )
    _number(ordered)
    for number, found in enumerate(places):
        for process_scan, process in found:
            _add_threads(process, process_scan, number)
    for process in ordered:
        _number_threads(process)
    maps = [
        InputMap(number, shift, {}, any(len(owners[id(process)]) > 1 for _, process in found))
        for number, (shift, found) in enumerate(zip(shifts_ns, places, strict=True))
    ]
    moved = 0
    tracks: dict[int, Track] = {}
    threads = [(process, thread) for process in ordered for thread in process.threads.values() if thread.scans]
    found_moves = assign(
        [
            (process.rank, [(scan.slices, shifts_ns[number]) for number, scan in thread.scans])
            for process, thread in threads
        ]
    )
    # In order of their numbers, so that lanes are numbered alike whatever was merged before.
    in_order = sorted(zip(threads, found_moves, strict=True), key=lambda found: (found[0][0].pid, found[0][1].tid))
    for (process, thread), moves in in_order:
        moved += _spread(process, thread, moves, tracks)
    for number, found in enumerate(places):
        _fill(maps[number], inputs[number], found, tracks)
    return ordered, maps, moved


def _used(item: Input) -> Iterator[tuple[Any, ProcessScan]]:
    for raw, process in item.scan.processes.items():
        # Kineto declares every GPU there could be. The process of a rank trace, and what an earlier merge kept, is real.
        real = process.used or raw in item.merged_processes or (item.scan.kind == "tracekit" and raw in item.pids)
        # Other spellings of the same pid (absent, null, 1.0) lead to the same object.
        if real and isinstance(raw, (int, str)) and raw_number(raw) == raw:
            yield raw, process


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


def _better_name(old: str, new: str, rank: int) -> str:
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


def _number(processes: list[Process]) -> None:
    counts: dict[int, int] = {}
    for process in processes:
        counts[process.rank] = counts.get(process.rank, 0) + 1
    stride = _STRIDE
    while stride <= max(counts.values(), default=0):
        stride *= 10
    slots: dict[int, int] = {}
    for process in processes:
        slot = slots[process.rank] = slots.get(process.rank, 0) + 1
        process.pid = process.rank * stride + slot
        if process.pid > _MAX_ID:
            raise MergeError(
                f"rank {process.rank} with {counts[process.rank]} processes does not fit: process ids end at {_MAX_ID}; "
                "merge fewer ranks at once"
            )


def _add_threads(process: Process, scan: ProcessScan, number: int) -> None:
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


def _number_threads(process: Process) -> None:
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


def _spread(process: Process, thread: Thread, moves: list[Moves | None], tracks: dict[int, Track]) -> int:
    """Move the slices of a track that overlap to lanes of their own; returns how many moved."""
    taken = {other.tid for other in process.threads.values()}
    tids = {DROPPED: DROPPED}
    free = _FREE_TIDS
    for lane in sorted(set().union(*[part.lanes for part in moves if part])):
        while free in taken:
            free += 1
        taken.add(free)
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


def _fill(
    target: InputMap, item: Input, found: Iterable[tuple[ProcessScan, Process]], tracks: dict[int, Track]
) -> None:
    by_scan = {id(scan): process for scan, process in found}
    for raw, process_scan in item.scan.processes.items():
        process = by_scan.get(id(process_scan))
        if process is None:
            continue
        tids: dict[Any, int | Track] = {}
        for raw_tid, thread_scan in process_scan.threads.items():
            thread = process.threads.get(_thread_key(process, process_scan, raw_number(raw_tid))[0])
            if thread is not None:
                tids[raw_tid] = tracks.get(id(thread_scan), thread.tid)
        target.processes[raw] = (process.pid, tids)
