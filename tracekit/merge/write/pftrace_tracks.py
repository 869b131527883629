"""Numbers and descriptions of the tracks of a native Perfetto trace.

The number of a track depends only on its process and thread, or on its name. So parts that different workers encode agree, and
merged traces that are appended to each other continue each other's tracks.

A rank is one process: its threads, then a group for each GPU, with its streams, and for each profiler. Child processes are
processes, and so are GPUs of a rank without a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.formats.pftrace import block, process_track, sequence_packet, thread_track, track
from tracekit.merge.plan.titles import (
    process_sort_index,
    process_title,
    thread_sort_index,
    thread_title,
    title_in_group,
)
from tracekit.traces.process_identity import CHILD, CPU, PROFILER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.merge.plan.titles import Process

HASHED: Final = 1 << 63
"""Tracks from here on are neither processes nor threads."""

_MASK: Final = 2**64 - 1
_GROUPS, COUNTERS, ASYNC = 1 << 20, 1 << 21, 1 << 22
"""Order below the threads of a process: groups, counters, async tracks."""
_PROFILER: Final = 1 << 23
"""What profilers say about themselves stands below everything else of a rank."""
_SYNTHETIC_TIDS: Final = 1 << 30
"""Threads of the system have lower numbers. From here on tracekit numbers its own rows."""
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


def uuid_of(*parts: bytes) -> int:
    """Return a number for any other track, from what makes it the one it is (FNV-1a)."""
    found = 0xCBF29CE484222325
    for byte in b"\0".join(parts):
        found = (found ^ byte) * 0x100000001B3 & _MASK
    return HASHED | found >> 1


def unit_of(name: str) -> str:
    """Return the unit in the name of a counter's series, such as "rss_bytes", or an empty text."""
    for ending, unit in _UNITS:
        if name == ending or name.endswith(f"_{ending}"):
            return unit
    return ""


def describe_tracks(sequence: int, processes: Sequence[Process]) -> Iterator[bytes]:
    """Yield a packet for every process, group and thread, parents first. The packets may come before or after the events."""
    for description in _descriptions(processes):
        yield sequence_packet(sequence, block(60, description))


def _descriptions(processes: Sequence[Process]) -> Iterator[bytes]:
    owners: dict[int, int] = {}  # the pid of the rank's own process
    for process in processes:
        if process.key[0] == CPU:
            owners.setdefault(process.rank, process.pid)
    for slot, process in enumerate(processes):
        owner = process.pid if process.key[0] in (CPU, CHILD) else owners.get(process.rank, process.pid)
        uuid = process_uuid(process.pid)
        if owner == process.pid:
            labels = [process.host] if process.host else []
            order = process_sort_index(process, slot)
            yield process_track(uuid, process.pid, process_title(process), order=order, labels=labels)
        else:
            order = slot + (_PROFILER if process.key[0] == PROFILER else _GROUPS)
            yield track(uuid, process_uuid(owner), process.name, order=order)
        threads = sorted(process.threads.values(), key=lambda thread: (thread_sort_index(process, thread), thread.tid))
        tids = {thread.key: thread.tid for thread in threads if not thread.lane}
        for place, thread in enumerate(threads):
            number, tid = thread_uuid(process.pid, thread.tid), thread.tid
            title = thread_title(process, thread)
            if owner == process.pid and tid < _SYNTHETIC_TIDS:
                yield thread_track(number, uuid, process.pid, tid, title, order=place)
            else:
                # A viewer shows no number for other tracks. A lane is below its thread.
                of_lane = thread.lane and owner == process.pid and thread.key in tids
                parent = thread_uuid(process.pid, tids[thread.key]) if of_lane else uuid
                title = title_in_group(process, title or f"thread {tid}")
                yield track(number, parent, title, order=place)
