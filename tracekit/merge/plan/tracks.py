"""The processes and threads of one unit, and their numbers.

The processes of a rank are numbered ``rank * stride + 1, + 2 ...``, so that a pid gives its rank. Those that a rank trace or
torch names come first, in the order in which they began (`tracekit.merge.scan.identity.assign_keys`); all others, such as GPUs,
follow in the order of their first events.

All files of a rank that know the same real process share it: a marker and the operator under it are on the track of one thread.
Thread ids stay as they are where they do not collide with those that the merge gives, since they are what other tools show.

Names are collected meanwhile, and settled when all inputs of the unit are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.kineto import gpu_of_label, gpu_of_process
from tracekit.formats.merged_head import END_EVENT, TABLE_EVENTS
from tracekit.formats.trace_event import FREE_NUMBERS, UNSET, Event, Raw, decode_dict, decode_text, named, raw_number
from tracekit.merge.plan.titles import Process, Thread, better_name, display_order, thread_sort_index
from tracekit.structs import Struct, field
from tracekit.traces.process_identity import CPU, DEVICE, GPU, OVERHEAD, PROFILER, ProcessKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.formats.trace_event import NamedEvent
    from tracekit.merge.plan.plan import UnitInput

NAMED_METADATA: Final = frozenset(
    {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}
)
"""Metadata that the merge writes anew for every process and thread."""

Place = tuple[int, Raw, int]
"""The new pid of an event, its new tid as JSON, and the number of its track."""

_MAX_ID: Final = 2**32 - 1
_MAX_KEPT: Final = 10_000
_NUMBERED: Final = re.compile(r"thread \d+( \(.*\))?", re.DOTALL)
"""A thread name of torch, or one for a thread without a name."""
_PSEUDO_PROCESSES: Final = frozenset({"Spans", "Traces", ""})


class _Declared(Struct):
    """The names of a process in an input; first those that its scan found."""

    name: str | None = None
    label: str = ""
    category: bytes = b""
    threads: dict[Any, tuple[str | None, int | None]] = field(default_factory=dict)
    count: int = 0


class _InputTracks:
    def __init__(self, item: UnitInput) -> None:
        self.number, self.source = item.number, item.source
        self.processes: dict[Any, Process] = {}  # by pid, in one spelling
        self.declared = defaultdict(_Declared, {raw: _Declared(*seen) for raw, seen in item.seen.items()})
        self.kept: dict[Any, list[Event]] = {}
        self.kept_count = 0
        self.ends = 0

    def thread(self, process: Process, pid: Any, tid: Any) -> tuple[int | str, int]:
        """Return what a thread was before an earlier merge, and its lane there."""
        known = self.source.processes.get(pid)
        key, lane = (tid, 0) if known is None else known.threads.get(tid, (tid, 0))
        return "Record Window" if process.key[0] == PROFILER and key == "" else key, lane


class UnitTracks:
    """Numbers the processes and threads of a unit. Call `begin_input`, then the others for its events, then `end_input`.

    Attributes:
        processes: The processes, by rank and key.
        places: The known places of the input, by the pid and tid of its events in any spelling.
    """

    def __init__(self, stride: int, inputs: Iterable[UnitInput] = ()) -> None:
        self.processes: dict[tuple[int, ProcessKey], Process] = {}
        self.places: dict[tuple[Any, Any], Place] = {}
        self._stride = stride
        self._slots: defaultdict[int, int] = defaultdict(int)
        self._reserved: dict[tuple[int, ProcessKey], int] = {}  # the pids of processes that have a number
        for item in inputs:
            for known in item.source.processes.values():
                if known.identity is not None and known.identity.number:
                    rank, number = known.rank, known.identity.number
                    self._reserved[rank, known.key] = rank * stride + number
                    self._slots[rank] = max(self._slots[rank], number)
        self._pids = set(self._reserved.values())
        self._inputs: list[_InputTracks] = []
        self._logs: list[tuple[Process, Thread] | None] = []
        self._titles: dict[int, str] = {}
        self._orders: dict[int, int] = {}

    def begin_input(self, item: UnitInput) -> None:
        """Begin the next input."""
        now = _InputTracks(item)
        self._inputs.append(now)
        self.places = {}
        if item.source.kind == "tracekit":
            for pid in sorted(item.source.pids):
                self._process(now, pid, b"")
        # In this order, the processes of an earlier merge keep their numbers.
        merged = item.source.processes if item.source.kind == "merged" else {}
        for pid, known in sorted(merged.items(), key=itemgetter(0)):
            process = self._add(now, pid, known.rank, known.key, pid if pid // self._stride == known.rank else None)
            for tid, (thread_key, lane) in known.threads.items():
                if not lane:
                    self._thread(process, thread_key, wanted=tid)

    def place(self, pid: Any, tid: Any, category: Any) -> Place:
        """Return the place of an event, and add it to `places`. The category is JSON, or UNSET."""
        found = self.places.get((pid, tid))
        if found is None:
            key = raw_number(pid), raw_number(tid)
            found = self.places.get(key)
            if found is None:
                found = self.places[key] = self._place(self._inputs[-1], *key, category)
            self.places[pid, tid] = found
        return found

    def first_track(self, rank: int) -> tuple[Any, int, Raw] | None:
        """Return the first track of a rank in the input: the pid in the file, and the new pid and tid."""
        places = self.places.items()
        found = [(new, int(bytes(tid)), raw, tid) for (raw, _), (new, tid, _) in places if new // self._stride == rank]
        new, _, raw, tid = min(found, key=itemgetter(0, 1), default=(0, 0, None, None))
        return None if tid is None else (raw, new, tid)

    def place_of_metadata(self, pid: Any, tid: Any) -> tuple[int, Raw]:
        """Return the pid and tid of metadata of a process that is known."""
        now = self._inputs[-1]
        raw, key = raw_number(pid), raw_number(tid)
        if now.source.passes:
            return _kept_place(now, raw, key)
        process = now.processes[raw]
        known = process.threads.get((key, 0))
        own_tid = key if isinstance(key, int) and 0 < key < FREE_NUMBERS else process.pid
        return process.pid, padded_tid(own_tid if known is None else known.tid)

    def takes_metadata(self, event: Event) -> bool:
        """Record what a metadata event says of names; return True if the event is to be written now."""
        now = self._inputs[-1]
        if now.source.passes:
            return self._passes(now, event)
        raw, name = raw_number(event.pid), decode_text(event.name)
        if event.name is UNSET or name in NAMED_METADATA or name in TABLE_EVENTS:
            self.declare([named(event)])
            return False
        if raw in now.processes:
            return True
        now.kept_count += 1
        if now.kept_count > _MAX_KEPT:
            self._process(now, raw, b"")
            return True
        now.kept.setdefault(raw, []).append(event)
        return False

    def end_input(self) -> tuple[list[Event], dict[str, int]]:
        """Return the metadata that waited for an event of its process, and how much metadata is left out, by reason."""
        now = self._inputs[-1]
        kept = [event for raw, events in now.kept.items() if raw in now.processes for event in events]
        left_out = {"rewritten_metadata": now.ends, "unused_process": sum(map(len, now.kept.values())) - len(kept)}
        for raw, declared in now.declared.items():
            left_out["rewritten_metadata" if raw in now.processes else "unused_process"] += declared.count
        return kept, left_out

    def note_work(self, log: int, work: int) -> None:
        """Record the kinds of work seen on a track."""
        found = self._logs[log]
        if found is not None:
            found[1].work |= work

    def allot(self, log: int, lane: int) -> int:
        """Return the thread id of a lane of a track."""
        found = self._logs[log]
        if found is None:
            raise MergeError(
                "slices of a merged trace overlap, although it was merged: it was changed; merge its inputs"
            )
        process, thread = found
        while (thread.key, lane) in process.threads:  # lanes of an earlier merge
            lane += 1
        return self._thread(process, thread.key, lane).tid

    def is_gpu(self, log: int) -> bool:
        """Return True if the track with a number is one of a GPU."""
        found = self._logs[log]
        return found is not None and found[0].key[0] == GPU

    def settle(self) -> list[Process]:
        """Settle the names, when all is read; return the processes in the order of display."""
        for now in self._inputs:
            self._settle(now)
        for process in self.processes.values():
            for (key, lane), thread in process.threads.items():
                if lane:
                    first = process.threads[key, 0]
                    thread.name, thread.sort_index = first.name, first.sort_index
        return sorted(self.processes.values(), key=lambda process: display_order(process.rank, process.key))

    def pids_of(self, number: int) -> dict[Any, int]:
        """Return the new pid for each pid of an input; -1 for one that only has names."""
        now = next(now for now in self._inputs if now.number == number)
        named = [raw for raw, declared in now.declared.items() if declared.count]
        return {
            **dict.fromkeys([*named, *now.kept], -1),
            **{raw: process.pid for raw, process in now.processes.items()},
        }

    def passed_titles(self) -> dict[int, list[str]]:
        """Return the names of the processes of each rank of merged traces that stay as they are."""
        found: dict[int, list[str]] = {}
        for pid in sorted(self._titles, key=lambda pid: (self._orders.get(pid, 0), pid)):
            found.setdefault(pid // self._stride, []).append(self._titles[pid])
        return found

    # Numbers.

    def _place(self, now: _InputTracks, pid: Any, tid: Any, category: Any) -> Place:
        if now.source.passes:
            self._logs.append(None)
            return *_kept_place(now, pid, tid), len(self._logs) - 1
        process = now.processes.get(pid) or self._process(now, pid, b"" if category is UNSET else bytes(category))
        key, lane = now.thread(process, pid, tid)
        # The begins and ends of a native trace have no name that would distinguish them on one track.
        keeps_lanes = now.source.form == "pftrace"
        thread = self._thread(process, key, lane if keeps_lanes else 0)
        if thread.log < 0:
            thread.log = len(self._logs)
            self._logs.append((process, thread))
        return process.pid, padded_tid(thread.tid), thread.log

    def _process(self, now: _InputTracks, raw: Any, category: bytes) -> Process:
        if raw in now.processes:
            return now.processes[raw]
        if now.source.kind == "merged" and now.source.processes:
            raise MergeError(
                f"{now.source.shown}: this is an earlier merge, but its process {raw} is not in its own table; "
                "merge its inputs instead"
            )
        return self._add(now, raw, now.source.rank, _key_of(now, raw, category))

    def _add(self, now: _InputTracks, raw: Any, rank: int, key: ProcessKey, wanted: int | None = None) -> Process:
        """Return a process of a rank. A new one gets its reserved pid, or the wanted one if that is free, or the next."""
        process = self.processes.get((rank, key))
        if process is None:
            pid = self._reserved.get((rank, key))
            if pid is None:
                pid = wanted
                while pid is None or pid in self._pids:
                    self._slots[rank] += 1
                    pid = rank * self._stride + self._slots[rank]
                self._pids.add(pid)
            if self._slots[rank] >= self._stride or pid > _MAX_ID:
                raise MergeError(
                    f"rank {rank} with {self._slots[rank]} processes does not fit: process ids end at {_MAX_ID}; "
                    "merge fewer ranks at once"
                )
            process = self.processes[rank, key] = Process(rank, key, pid)
        now.processes[raw] = process
        return process

    def _thread(self, process: Process, key: int | str, lane: int = 0, wanted: int = 0) -> Thread:
        """Return a thread of a process; a new one without a tid gets the wanted tid, if that is free, or the next."""
        thread = process.threads.get((key, lane))
        if thread is None:
            kept = isinstance(key, int) and 0 < key < FREE_NUMBERS and not lane
            thread = Thread(int(key) if kept else process.free_tids.take(wanted), key, lane=lane)
            process.threads[key, lane] = thread
        return thread

    # Names.

    def _passes(self, now: _InputTracks, event: Event) -> bool:
        """Look at metadata of a merged trace that stays as it is; return True if the event is to be written."""
        name, args = decode_text(event.name), decode_dict(event.args)
        if name == END_EVENT:
            now.ends += 1
            return False
        if isinstance(event.pid, int):
            if name == "process_name" and isinstance(args.get("name"), str):
                self._titles[event.pid] = args["name"]
            elif name == "process_sort_index":
                self._orders[event.pid] = _sort_index(args.get("sort_index")) or 0
        return True

    def declare(self, events: Iterable[NamedEvent]) -> None:
        """Record the names and sort indexes in metadata that the merge writes anew."""
        now = self._inputs[-1]
        for event in events:
            declared = now.declared.get(event.pid) or now.declared[raw_number(event.pid)]
            declared.count += 1
            kind, args = event.name, event.args
            if kind == "process_name" and args.name is not None:
                declared.name = args.name
            elif kind == "process_labels" and args.labels is not None:
                declared.label = args.labels
            elif kind in ("thread_name", "thread_sort_index"):
                tid = raw_number(event.tid)
                title, order = declared.threads.get(tid, (None, None))
                if kind == "thread_sort_index":
                    order = _sort_index(args.sort_index)
                elif args.name is not None:
                    title = args.name
                declared.threads[tid] = title, order

    def _settle(self, now: _InputTracks) -> None:
        source = now.source
        for raw, process in now.processes.items():
            declared, known = now.declared[raw], source.processes.get(raw)
            process.name = better_name(process.name, self._name_of(now, raw, process, declared), process.rank)
            if known is not None:
                process.host = process.host or known.host
                process.identity = process.identity or known.identity
            process.host = process.host or source.host
            for tid, (title, order) in declared.threads.items():
                key, lane = now.thread(process, raw, tid)
                thread = process.threads.get((key, 0))
                if thread is None or lane:
                    continue
                # Inputs come in a fixed order: rank traces first, whose names say more; earlier merges of both in any order.
                if thread.name is None or _NUMBERED.fullmatch(thread.name):
                    thread.name = (title or "").strip() or thread.name
                # An earlier merge declares every thread.
                if thread.sort_index is None and order != thread_sort_index(process, thread):
                    thread.sort_index = order

    def _name_of(self, now: _InputTracks, raw: Any, process: Process, declared: _Declared) -> str:
        if now.source.kind == "merged" and raw in now.source.processes:
            return now.source.processes[raw].name
        kind, value = process.key
        if now.source.kind == "torch" and kind == CPU:
            gpu = gpu_of_label(declared.label)
            if gpu is not None and (process.rank, (GPU, gpu)) not in self.processes:
                # The label came after the events, whose categories did not tell.
                del self.processes[process.rank, process.key]
                process.key = kind, value = GPU, gpu
                self.processes[process.rank, process.key] = process
        name = None if now.source.kind == "xprof" else declared.name
        names = {PROFILER: "profiler", OVERHEAD: "overhead", GPU: f"GPU {value}", DEVICE: name or str(value)}
        return names.get(kind) or declared.name or f"process {raw}"


@lru_cache(1 << 12)
def padded_tid(tid: int) -> Raw:
    """Return a thread id as JSON of 10 characters, so that another one can be put in its place later."""
    return Raw(b"%-10d" % tid)


def _kept_place(now: _InputTracks, pid: Any, tid: Any) -> tuple[int, Raw]:
    """Return the pid and tid of an event of a merged trace that stays as it is."""
    if not pid or pid not in now.source.rank_of_pid or type(tid) is not int or not 0 < tid <= _MAX_ID:
        raise MergeError(
            f"{now.source.shown}: an event of this merged trace has no process or thread: it was changed; merge its inputs"
        )
    return pid, padded_tid(tid)


def _key_of(now: _InputTracks, raw: Any, category: bytes) -> ProcessKey:
    """Return which process of its rank a pid of an input is."""
    source, declared = now.source, now.declared[raw]
    if isinstance(raw, str):
        return (PROFILER, "") if raw in _PSEUDO_PROCESSES else (DEVICE, raw)
    if source.kind == "torch":
        gpu = gpu_of_process(raw, declared.label, category or declared.category)
        if gpu is not None:
            return GPU, gpu
        if raw < 0:
            return OVERHEAD, raw
    if source.kind == "xprof":
        # Its pids are arbitrary numbers, 701 for every host, which a real process may have.
        return DEVICE, f"XLA {declared.name or f'process {raw}'}"
    known = source.processes.get(raw)
    return (CPU, raw) if known is None else known.key


def _sort_index(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None
