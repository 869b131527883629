"""Which track of a native Perfetto trace everything is on, and what the viewer is told about each.

The number of a track follows from what it is, so that parts made apart from each other agree, and so that two merged
traces of one run that are appended to each other continue each other's tracks.

A rank is one process: its threads, then a group for each of its GPUs, with the streams in it, and for what its profilers
add. Its children are processes of their own, and so are its GPUs where the rank has no process.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from tracekit.formats.pftrace import process_track, thread_track, track
from tracekit.merge.process_key import CHILD, CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.merge.namespaces import Process, Thread

__all__ = ["describe_tracks", "process_uuid", "thread_uuid", "unit_of", "uuid_of"]

_HASHED: Final = 1 << 63
_GROUPS: Final = 1 << 20
"""Groups stand below the threads, counters below the groups."""
_MAX_TID: Final = 2**31 - 1
"""The engine takes larger ones for negative."""
_FREE_TIDS: Final = 3 * 2**29
"""What tracks get that stand for no thread of the system: threads of Linux end at 2**22, lanes of tracekit begin at 2**30."""
_UNITS: Final = (
    ("bytes_per_s", "bytes/s"),
    ("bytes", "bytes"),
    ("percent", "%"),
    ("ns", "ns"),
    ("us", "us"),
    ("µs", "µs"),
    ("ms", "ms"),
    ("s", "s"),
)


def process_uuid(pid: int) -> int:
    """Return the track of a process of the merged trace."""
    return pid << 32


def thread_uuid(pid: int, tid: int) -> int:
    """Return the track of a thread; ``tid`` is never 0."""
    return pid << 32 | tid


def uuid_of(*parts: object) -> int:
    """Return a number for any other track, from what makes it the one it is."""
    return (
        _HASHED | int.from_bytes(blake2b(repr(parts).encode("utf-8", "replace"), digest_size=8).digest(), "little") >> 1
    )


def unit_of(name: str) -> str:
    """Return the unit that the name of a counter's series tells, as tracekit writes them: "rss_bytes"; empty if none."""
    for ending, unit in _UNITS:
        if name == ending or name.endswith(f"_{ending}"):
            return unit
    return ""


def describe_tracks(processes: Iterable[Process]) -> Iterator[bytes]:
    """Yield the description of every process, group and thread, parents first."""
    owners: dict[int, int] = {}  # the pid of the rank's own process
    for process in processes:
        if process.key[0] == CPU:
            owners.setdefault(process.rank, process.pid)
    for order, process in enumerate(processes):
        owner = process.pid if process.key[0] in (CPU, CHILD) else owners.get(process.rank, process.pid)
        uuid = process_uuid(process.pid)
        if owner == process.pid:
            labels = [process.host] if process.host else []
            yield process_track(uuid, process.pid, process.title, order=order, labels=labels)
        else:
            yield track(uuid, process_uuid(owner), process.name, order=_GROUPS + order)
        threads = sorted(process.threads.values(), key=lambda thread: (*_rank(thread), thread.tid))
        free = _FREE_TIDS
        for place, thread in enumerate(threads):
            number, tid = thread_uuid(process.pid, thread.tid), thread.tid
            if owner == process.pid:
                if tid > _MAX_TID:
                    tid = free
                    free += 1
                yield thread_track(number, uuid, process.pid, tid, thread.name, order=place)
            else:
                yield track(number, uuid, thread.name or f"thread {thread.tid}", order=place)


def _rank(thread: Thread) -> tuple[bool, int]:
    """Return what threads are ordered by: the main thread first, then as the input asks."""
    return not thread.main, thread.sort_index or 0
