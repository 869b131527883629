"""Processes and threads of a merged trace: their names and order, as a viewer shows them.

Titles are stable: a name that is already such a title stays, so that merging a merge changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tracekit.formats.trace_event import FreeNumbers, encode_json
from tracekit.traces.process_identity import CHILD, CPU, DEVICE, GPU, OVERHEAD, PROFILER, main_thread

if TYPE_CHECKING:
    from tracekit.traces.process_identity import ProcessIdentity, ProcessKey

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
_SYNTHETIC: Final = 2**30
"""From here on tracekit numbers rows of its own."""
_PROCESSES_OF_RANK: Final = 1000
_LAST_PROCESSES: Final = 10**9


@dataclass(slots=True)
class Thread:
    """A track of the merged trace.

    Attributes:
        key: What its ``tid`` is in the inputs.
        sort_index: Its place among the others, where an input tells.
        lane: Which lane of that track it is; 0 is the track itself.
        log: The number of its track among those of the unit; -1 while it has none.
    """

    tid: int
    key: int | str
    name: str | None = None
    sort_index: int | None = None
    lane: int = 0
    log: int = -1
    work: int = 0


@dataclass(slots=True)
class Process:
    """A process of the merged trace.

    Attributes:
        threads: Its threads, by key and lane.
        place: The place of its rank in the order of display.
        labels: The parallelism labels of its rank, as text.
    """

    rank: int
    key: ProcessKey
    pid: int = 0
    name: str = ""
    threads: dict[tuple[int | str, int], Thread] = field(default_factory=dict)
    host: str | None = None
    identity: ProcessIdentity | None = None
    free_tids: FreeNumbers = field(default_factory=FreeNumbers)
    place: int = 0
    labels: str = ""


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
    if own:
        return min(own)
    plain = {"", f"rank {rank}"}
    if old in plain or new in plain:
        return (new if old in plain else old) or new
    return min(old, new)


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
        title = whose + (bare or _row(key)) + (f" ({role})" if role else "")
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
        metadata_event(b"process_name", pid, pid, b'{"name":%b}' % encode_json(process_title(process))),
        metadata_event(b"process_sort_index", pid, pid, b'{"sort_index":%b}' % index),
    ]
    if kind in (CPU, GPU):
        label = "CPU" if kind == CPU else f"GPU {number}"
        events.append(metadata_event(b"process_labels", pid, pid, b'{"labels":%b}' % encode_json(label)))
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
    if work == COMPUTE:
        return NCCL if name.startswith(_COLLECTIVES) else COMPUTE
    if work == _COPY:
        return next((bit for beginning, bit in _COPY_NAMES if name.startswith(beginning)), 0)
    return work


def role_text(work: int) -> str:
    """Return the role of a GPU row: its kinds of kernels, else its copies, else what else runs there."""
    if work & (COMPUTE | NCCL):
        return _words(_KERNELS, work)
    copies = _words(_COPIES, work)
    return f"memcpy {copies}" if copies else _words(_OTHERS, work)


def _device(process: Process) -> str:
    return f"rank {process.rank}{_SEPARATOR}GPU {process.key[1]}{_SEPARATOR}"


def _words(table: dict[int, str], work: int) -> str:
    return ", ".join(word for bit, word in table.items() if work & bit)


def _without_role(title: str) -> tuple[str, int]:
    """Return a title without the role at its end, and that role."""
    match = _ROLE.search(title, max(title.rfind(" ("), 0))
    if match is None or match.end() != len(title):
        return title, 0
    words = set(match[1].removeprefix("memcpy ").split(", "))
    table = _COPIES if match[1].startswith("memcpy ") else _KERNELS | _OTHERS
    found = sum(bit for bit, word in table.items() if word in words)
    return (title[: match.start()], found) if role_text(found) == match[1] else (title, 0)


def _row(thread: int | str) -> str:
    if isinstance(thread, str):
        return thread
    return f"stream {thread}" if thread >= 0 else "device"
