"""Ranks, processes and threads of a merged trace: their names and order, as a viewer shows them.

Titles are stable: a name that is already such a title stays, so that merging a merge changes nothing.
"""

from __future__ import annotations

import math
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.merged_head import merge_decisions
from tracekit.formats.trace_event import FreeNumbers, encode_json
from tracekit.structs import Struct, field
from tracekit.traces.labels import DIMENSIONS, Labels, labels_from_json, labels_of_trace, labels_text, shown_dimensions
from tracekit.traces.process_identity import CHILD, CPU, DEVICE, GPU, OVERHEAD, PROFILER, main_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.merge.scan.input import Input
    from tracekit.traces.process_identity import ProcessIdentity, ProcessKey

GROUP_BY = ("tp", "dp", "pp", "ep", "node")  # the choices of ``--group-by``


class RankOrder(Struct):
    """Labels and order of the ranks of a merge."""

    places: dict[int, int]  # position of each rank in the viewer: the rank itself if ranks are not grouped
    labels: dict[int, Labels] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # the dimensions in the titles
    group_by: str | None = None  # the dimension that sorts the ranks, or "node". None sorts by rank

    def metadata(self) -> dict[str, Any]:
        """Return the labels and the grouping as metadata of a merged trace."""
        found = {"labels": sorted(self.labels.items()), "shown_labels": self.shown, "group_by": self.group_by}
        return {key: value for key, value in found.items() if value}

    def text(self, rank: int) -> str:
        """Return the labels of a rank as in its title."""
        return labels_text(self.labels.get(rank, {}), self.shown)

    def fits(self, item: Input) -> bool:
        """Return True if an earlier merge has the same title dimensions and grouping."""
        own = merge_decisions(item.head().header)
        return own.get("shown_labels", []) == list(self.shown) and own.get("group_by") == self.group_by


def order_ranks(inputs: Iterable[Input], group_by: str | None = None) -> RankOrder:
    """Find the labels of the ranks, and sort the ranks.

    Without a grouping, sort by rank, or like the only input if that is an earlier merge.
    """
    if group_by is not None and group_by not in GROUP_BY:
        raise ConfigError(f"group_by {group_by!r}: give one of {', '.join(GROUP_BY)}")
    ranks: set[int] = set()
    found: dict[int, Labels] = {}
    nodes: dict[int, str] = {}
    stated: list[Any] = []
    for item in inputs:
        ranks |= item.ranks
        own: dict[str, Any] = {}
        hosts, of_ranks = [(item.rank, item.host)], [(item.rank, item.labels)]
        if item.kind == "merged":
            own = merge_decisions(item.head().header)
            hosts = [(known.rank, known.host) for known in item.processes.values()]
            of_ranks = [(rank, labels) for rank, labels in _labels_of_merge(own) if rank in item.ranks]
        elif item.rank_inside is None or item.rank != item.rank_inside[0]:
            of_ranks = [(item.rank, labels_of_trace(item.name, item.head().header, item.rank))]
        stated.append(own.get("group_by"))
        for rank, labels in of_ranks:
            if labels or own:
                found[rank] = labels | found.get(rank, {})
        for rank, host in hosts:
            if host is not None:
                nodes.setdefault(rank, host)
    dimension = group_by
    if dimension is None and len(stated) == 1 and stated[0] in GROUP_BY:
        dimension = stated[0]
    places = {rank: labels[dimension] for rank, labels in found.items() if dimension in labels}
    if dimension == "node":
        first = {host: rank for rank, host in sorted(nodes.items(), reverse=True)}
        places = {rank: first[host] for rank, host in nodes.items()}
    if group_by is not None and not places:
        missing = "host" if group_by == "node" else f"place in {group_by}"
        raise ConfigError(
            f"--group-by {group_by}: no input states its {missing}, neither by its name nor in its metadata; "
            "merge without --group-by"
        )
    shown = shown_dimensions(found.get(rank, {}) for rank in ranks)
    # Ranks without a position in the grouping come last.
    ordered = sorted(ranks, key=lambda rank: (places.get(rank, math.inf), rank))
    return RankOrder(
        {rank: rank if dimension is None else place for place, rank in enumerate(ordered)},
        {rank: {key: labels[key] for key in DIMENSIONS if key in labels} for rank, labels in found.items()},
        shown,
        dimension,
    )


def _labels_of_merge(own: dict[str, Any]) -> Iterator[tuple[int, Labels]]:
    entries = own.get("labels")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int:
            yield entry[0], labels_from_json(entry[1])


COMPUTE, NCCL, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, MEMSET, SYNC = (1 << bit for bit in range(7))
"""Kinds of work on a GPU row; bits that are combined."""

_KERNELS: Final = {COMPUTE: "compute", NCCL: "nccl"}
_COPIES: Final = {HOST_TO_DEVICE: "h2d", DEVICE_TO_HOST: "d2h", DEVICE_TO_DEVICE: "d2d"}
_OTHERS: Final = {MEMSET: "memset", SYNC: "sync"}
_COPY_NAMES: Final = (
    (b'"Memcpy HtoD', HOST_TO_DEVICE),
    (b'"Memcpy DtoH', DEVICE_TO_HOST),
    (b'"Memcpy DtoD', DEVICE_TO_DEVICE),
    (b'"Memcpy PtoP', DEVICE_TO_DEVICE),
)
_COPY: Final = HOST_TO_DEVICE | DEVICE_TO_HOST | DEVICE_TO_DEVICE
WORK_CATEGORIES: Final = {
    **dict.fromkeys((b'"kernel"', b'"Kernel"'), COMPUTE),
    **dict.fromkeys((b'"gpu_memcpy"', b'"Memcpy"'), _COPY),
    **dict.fromkeys((b'"gpu_memset"', b'"Memset"'), MEMSET),
    b'"cuda_sync"': SYNC,
}
"""The kinds of work by the category of an event, as JSON text."""
_COLLECTIVES: Final = (b'"nccl', b'"rccl', b'"msccl')

_DISPLAY: Final = (CPU, GPU, DEVICE, CHILD, OVERHEAD, PROFILER)
_SEPARATOR: Final = " · "
_ROLE: Final = re.compile(r" \(([a-z0-9, ]+)\)")
_SYNTHETIC: Final = 2**30  # first number of the rows that tracekit adds
_PROCESSES_OF_RANK: Final = 1000
_LAST_PROCESSES: Final = 10**9


class Thread(Struct):
    """A track of the merged trace."""

    tid: int
    key: int | str  # what its ``tid`` is in the inputs
    name: str | None = None
    sort_index: int | None = None  # its place among the others, where an input tells
    lane: int = 0  # which lane of that track it is; 0 is the track itself
    log: int = -1  # the number of its track among those of the unit; -1 while it has none
    work: int = 0


class Process(Struct):
    """A process of the merged trace."""

    rank: int
    key: ProcessKey
    pid: int = 0
    name: str = ""
    threads: dict[tuple[int | str, int], Thread] = field(default_factory=dict)  # its threads, by key and lane
    host: str | None = None
    identity: ProcessIdentity | None = None
    free_tids: FreeNumbers = field(default_factory=FreeNumbers)
    place: int = 0  # the place of its rank in the order of display
    labels: str = ""  # the parallelism labels of its rank, as text
    title: str = ""  # its `process_title`, when all of it is known


def process_title(process: Process) -> str:
    """Return the title of a process, such as "rank 3 · tp1 dp0 · GPU 1". Its name may begin with the rank."""
    whose = f"rank {process.rank}"
    rest = "" if process.name == whose else process.name.removeprefix(whose + _SEPARATOR)
    return _SEPARATOR.join(filter(None, (whose, process.labels, rest)))


def display_order(rank: int, process: ProcessKey) -> tuple[int, int, str]:
    """Return the key to sort processes by."""
    return rank, _DISPLAY.index(process[0]), str(process[1]).zfill(20)


def better_name(old: str, new: str, rank: int) -> str:
    """Prefer tracekit's name for an attempt or a child, then one that says something beyond the rank.

    Of two such, the first in the order of the alphabet.
    """
    own = [name for name in (old, new) if name.startswith(f"rank {rank}{_SEPARATOR}")]
    telling = [name for name in (old, new) if name not in ("", f"rank {rank}")]
    return min(own or telling, default=new)


def process_sort_index(process: Process, slot: int) -> int:
    """Return the sort index of a process: by the place of its rank; rows of the profilers themselves follow all ranks."""
    index = min(process.place, 10**6 - 1) * _PROCESSES_OF_RANK + min(slot, _PROCESSES_OF_RANK - 1)
    return index + _LAST_PROCESSES if process.key[0] == PROFILER else index


def thread_title(process: Process, thread: Thread) -> str | None:
    """Return the title of a thread, or None where the viewer's own is as good.

    A row of a GPU is "rank 3 · GPU 3 · stream 7 (compute)", the lane for slices that overlap others of it
    "rank 3 · GPU 3 · stream 7 (overlap)". Any other thread has its name.
    """
    key, name = thread.key, (thread.name or "").strip()
    title: str | None
    if process.key[0] == GPU:
        whose = _device(process)
        bare, known = _without_role(name.removeprefix(whose))
        role = "" if thread.lane else role_text(thread.work | known)
        row = key if isinstance(key, str) else f"stream {key}" if key >= 0 else "device"
        title = whose + (bare or row) + (f" ({role})" if role else "")
    elif name or (not thread.lane and (key == thread.tid or (key == 0 and process.key[0] == CPU))):
        title = name or None
    else:
        title = key if isinstance(key, str) else f"thread {key}"
    if thread.lane:
        title = f"{title} (overlap)" if thread.lane == 1 else f"{title} (overlap {thread.lane})"
    return title


def title_in_group(process: Process, title: str) -> str:
    """Return the title of a thread for a place inside a group of its process, which viewers that nest rows show above it."""
    return title.removeprefix(_device(process)) if process.key[0] == GPU else title


def thread_sort_index(process: Process, thread: Thread) -> int:
    """Return the sort index of a thread and of its lanes.

    The main thread is first, then rows with a name or a number of tracekit's own, such as "training loop"; then threads as the
    inputs declare, or by number.
    """
    key = thread.key
    if key == main_thread(process.key) and process.key[0] in (CPU, CHILD):
        return -1
    if thread.sort_index is not None:
        return thread.sort_index
    return key if isinstance(key, int) and 0 <= key < _SYNTHETIC else 0


def name_events(process: Process, slot: int) -> list[bytes]:
    """Return the metadata events that name and sort a process and its threads.

    ``slot`` is its place among those of its rank.
    """
    pid = process.pid
    kind, number = process.key
    index = b"%d" % process_sort_index(process, slot)
    events = [
        metadata_event(b"process_name", pid, pid, b'{"name":%b}' % encode_json(process.title)),
        metadata_event(b"process_sort_index", pid, pid, b'{"sort_index":%b}' % index),
    ]
    if kind in (CPU, GPU):
        label = encode_json("CPU" if kind == CPU else f"GPU {number}")
        events.append(metadata_event(b"process_labels", pid, pid, b'{"labels":%b}' % label))
    for thread in sorted(process.threads.values(), key=attrgetter("tid")):
        title = thread_title(process, thread)
        if title is not None:
            events.append(metadata_event(b"thread_name", pid, thread.tid, b'{"name":%b}' % encode_json(title)))
        index = b"%d" % thread_sort_index(process, thread)
        events.append(metadata_event(b"thread_sort_index", pid, thread.tid, b'{"sort_index":%b}' % index))
    return events


def metadata_event(name: bytes, pid: int, tid: int, args: bytes) -> bytes:
    """Return a metadata event, with the thread id as every event has it; ``args`` is JSON."""
    return b'{"ph":"M","name":"%b","pid":%d,"tid":%-10d,"args":%b}' % (name, pid, tid, args)


def work_of(category: bytes, name: bytes) -> int:
    """Return what an event on a GPU does, by its category and name as JSON text; 0 for anything else."""
    work = WORK_CATEGORIES.get(category, 0)
    if work == COMPUTE and name.startswith(_COLLECTIVES):
        return NCCL
    if work == _COPY:
        return next((bit for beginning, bit in _COPY_NAMES if name.startswith(beginning)), 0)
    return work


def role_text(work: int) -> str:
    """Return the role of a GPU row: its kinds of kernels, else its copies, else what else runs there."""
    kernels, copies, others = (
        ", ".join(word for bit, word in table.items() if work & bit) for table in (_KERNELS, _COPIES, _OTHERS)
    )
    return kernels or (f"memcpy {copies}" if copies else others)


def _device(process: Process) -> str:
    return f"rank {process.rank}{_SEPARATOR}GPU {process.key[1]}{_SEPARATOR}"


def _without_role(title: str) -> tuple[str, int]:
    """Return a title without the role at its end, and that role."""
    match = _ROLE.search(title, max(title.rfind(" ("), 0))
    if match is None or match.end() != len(title):
        return title, 0
    words = set(match[1].removeprefix("memcpy ").split(", "))
    table = _COPIES if match[1].startswith("memcpy ") else _KERNELS | _OTHERS
    found = sum(bit for bit, word in table.items() if word in words)
    return (title[: match.start()], found) if role_text(found) == match[1] else (title, 0)
