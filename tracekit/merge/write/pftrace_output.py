"""The merged trace in Perfetto's own format: exact ns since the epoch, nested tracks, units, arrows that cannot go wrong.

A rank is one process: its threads, then a group for each GPU, with its streams, and for each profiler. Child processes are
processes, and so are GPUs of a rank without a process.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit import core
from tracekit.errors import MergeError, StorageError
from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.merged_head import TOTALS_KEY
from tracekit.formats.pftrace import (
    block,
    clock_snapshot,
    flow_offset,
    metadata_value,
    process_track,
    root_track,
    sequence_packet,
    thread_track,
    track,
)
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_events, encode_events, encode_json
from tracekit.merge.plan.titles import (
    process_sort_index,
    thread_sort_index,
    thread_title,
    title_in_group,
)
from tracekit.merge.write.json_output import describe
from tracekit.merge.write.pftrace_events import EventRecords, field_text
from tracekit.merge.write.pftrace_packets import GROUPS, LAST_NS, MAX_TEXTS, PacketStore, process_uuid, thread_uuid
from tracekit.traces.process_identity import CHILD, CPU, PROFILER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.merge.plan.plan import MergePlan
    from tracekit.merge.plan.titles import Process
    from tracekit.merge.write.pftrace_packets import AnyStore

MAX_MEMORY_BYTES: Final = 24 << 20
"""The size of the records that the core holds; further ones are in a scratch file."""

_HEAD: Final = 1
"""The head's sequence of packets; those of the parts follow."""

_PROFILER: Final = 1 << 23
"""What profilers say about themselves stands below everything else of a rank."""
_SYNTHETIC_TIDS: Final = 1 << 30
"""Threads of the system have lower numbers. From here on tracekit numbers its own rows."""
_PIDS: Final = 2**31
"""Process ids from here on have no track."""


class PftraceOutput:
    """A merged trace as Perfetto's TrackEvent packets."""

    own_events = 0

    def __init__(self, merged: MergePlan) -> None:
        layout = merged.layout
        highest = max((last for _, last in layout.ranks), default=0)
        if (highest + 1) * layout.stride > _PIDS:
            most = _PIDS // layout.stride - 1
            raise MergeError(
                f"rank {highest} does not fit into .pftrace: the highest rank is {most} here; "
                f"give lower ranks, or write .json"
            )
        self._base_ns = merged.placement.base_ns
        self._description = describe(merged)
        self._flow_offset = flow_offset(self._description)
        self._start_ns = min((item.start_ns for item in merged.inputs if item.start_ns is not None), default=0)

    def head(self) -> bytes:
        """Return everything up to the first event."""
        parts = [metadata_value("tracekit", self._description), block(60, root_track())]
        self._description = b""
        if self._start_ns:
            # Not at the base, which may be months before the first event and would be part of the timeline.
            parts.insert(0, clock_snapshot(self._start_ns, self._start_ns))
        return b"".join(sequence_packet(_HEAD, part) for part in parts)

    def make_encoder(self, unit: int) -> Callable[[str], PacketEncoder]:
        """Return the constructor of the encoder of a unit."""
        return partial(PacketEncoder, _HEAD + 1 + unit, self._base_ns, self._flow_offset)

    def tail(self, stack_frames: bytes, losses: list[dict[str, Any]]) -> bytes:
        """Return what the ranks lost; packets need no end, and events have their stack frames as an argument."""
        del stack_frames
        totals = encode_json({"losses": losses})
        return sequence_packet(_HEAD, metadata_value(TOTALS_KEY, totals)) if losses else b""


class PacketEncoder:
    """Encodes the events of a unit."""

    def __init__(self, number: int, base_ns: int, flow_offset: int, folder: str) -> None:
        self._number = number
        self._base_ns = min(base_ns, LAST_NS)
        self._folder = folder
        self._metadata: Counter[str] = Counter()
        self._store: AnyStore = (
            PacketStore(number, MAX_TEXTS, folder)
            if core.merge is None
            else core.merge.PftraceEncoder(number, self._base_ns, flow_offset, MAX_TEXTS, MAX_MEMORY_BYTES, folder)
        )
        self._records = EventRecords(self._store, self._base_ns, flow_offset)

    def encode(self, events: bytes) -> bytes:
        """Return the metadata among the next events; everything else is kept until `close`."""
        out = b""
        at, size = 0, len(events)
        with self._storage_errors():
            while at < size:
                at, end = self._store.encode(events, at)
                if at < end:  # events that the core does not know
                    out += self._add(events[at:end])
                    at = end
        return out

    def close(self, processes: Sequence[Process], tables: bytes) -> Iterator[bytes]:
        """Yield the tables, the names of the processes and threads, and the packets of all events but metadata."""
        yield self.encode(tables)
        yield b"".join(sequence_packet(self._number, block(60, track)) for track in _describe_tracks(processes))
        while True:
            with self._storage_errors():
                piece = self._store.packets()
            if piece is None:
                break
            yield piece

    def _add(self, events: bytes) -> bytes:
        """Take events in the general way; returns those that are metadata."""
        out = b""
        for event in decode_events(events.rstrip(b", \n")):
            if event.ph == "M":
                out += self._metadata_packet(event)
            else:
                self._records.add(event)
        return out

    def _metadata_packet(self, event: Event) -> bytes:
        name = f"{field_text(event.name)} of process {event.pid}"
        self._metadata[name] += 1
        if self._metadata[name] > 1:
            name += f" ({self._metadata[name]})"
        if self._base_ns and event.ts is not UNSET:
            # Like everything else here, which has no base.
            time = parse_us(bytes(event.ts))
            if time is not None:
                event.ts = Raw(format_us(self._base_ns + time))
        return sequence_packet(self._number, metadata_value(name, encode_events([event])))

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"the scratch file in {self._folder} cannot be written or read: {error}") from error


def _describe_tracks(processes: Sequence[Process]) -> Iterator[bytes]:
    """Yield a description of every process, group and thread, parents first. They may come before or after the events."""
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
            yield process_track(uuid, process.pid, process.title, order=order, labels=labels)
        else:
            order = slot + (_PROFILER if process.key[0] == PROFILER else GROUPS)
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
