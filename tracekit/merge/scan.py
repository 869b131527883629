"""First pass over an input: what it is, whose it is, which tracks and times it uses. Nothing is written.

The second pass (`tracekit.merge.patch`) then knows everything that decides how an event is written: the base of all
inputs, even where a file names its own base after its events; the processes that are really used; the overlaps.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from tracekit import core
from tracekit.collectives.parts import NAMES_OF_COLLECTIVES, CollectiveCollector, thinned
from tracekit.errors import TraceFormatError
from tracekit.formats.event_fields import raw_number, time_field
from tracekit.formats.kineto import is_kineto
from tracekit.formats.losses import ACCOUNTS, GAP_NAME, Accounts
from tracekit.formats.merged_head import merged_ranks
from tracekit.formats.rank_trace import (
    CLOCK_OFFSET_EVENT,
    CLOCK_STEP_EVENT,
    COMPANION_EVENT,
    COMPOSER_RANK_EVENT,
    COMPOSER_SYNC_ERROR_EVENT,
    COMPOSER_SYNC_EVENT,
    METADATA_EVENT,
)
from tracekit.formats.time_columns import parse_column_us, times_of
from tracekit.formats.trace_event import UNSET, Event, decode_or_none, decode_run, encode_json
from tracekit.formats.trace_reader import TraceReader
from tracekit.formats.xprof import ANCHOR_EVENT, is_xprof_process, start_in_xplane, start_of_anchors
from tracekit.merge.input_scan import EPOCH_NS, InputScan, ProcessScan, ThreadScan
from tracekit.merge.lanes import ANY, BEGIN, END, INVALID, Slices
from tracekit.merge.plain_runs import PlainRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.core import _merge
    from tracekit.spill import Row

__all__ = ["scan"]

_COLLECTIVES_READ: Final = 20_000
_COLLECTIVES: Final = 300
"""How many collectives of a process group are kept: enough for the clocks, and little for thousands of ranks."""

_MOST_UNSETTLED: Final = 1 << 14
"""So many slices are in memory at most, about 2.5 MB. The more, the fewer parts must be compared with each other in the end."""
_ANCHOR: Final = f'"{ANCHOR_EVENT}"'.encode()
_MOST_US: Final = 2**52
_LATEST_END: Final = -(2**63 - 1)  # negated: what does not fit 64 bits ends there

_LOOKED_AT: Final = (*NAMES_OF_COLLECTIVES, GAP_NAME, _ANCHOR)
"""Beginnings of names by which events are found that say more than when and where."""

_EASY_PHASES: Final = frozenset("XstfiICbenSTFpNODPRvcM")
"""Phases that are slices with a start and a duration, or none at all."""


def scan(path: str, progress: Callable[[int], None] | None = None, scratch: str | None = None) -> InputScan:
    """Read an input once.

    Args:
        path: File or URL.
        scratch: A file for what is too large for memory; None keeps all in memory.
        progress: Called with the number of unpacked bytes read so far.

    Raises:
        StorageError: It cannot be read.
        TraceFormatError: It is no trace.
    """
    with TraceReader(path) as reader:
        scanner = _Scanner(scratch)
        for run in reader.runs_or_taken(scanner.take_text):
            if not isinstance(run, bytes):
                scanner.take(run, reader.run_text)
            if progress is not None:
                progress(reader.bytes_read)
    scanner.finish()
    if not reader.events and reader.drops:
        raise TraceFormatError(reader.path, "no event in it can be read", offset_bytes=reader.drops[0].offset_bytes)
    if reader.events and not any(scanner.phases[phase] for phase in scanner.phases if phase):
        raise TraceFormatError(
            reader.path, f"this is no trace: none of its {reader.events} objects is an event (has a ph)"
        )
    header = reader.header
    profile = None
    own = header.get("tracekit")
    if isinstance(own, dict) and "merge" in own:
        kind = "merged"
    elif scanner.metadata:
        kind = "tracekit"
    elif is_kineto(header):
        kind = "torch"
    elif reader.foreign == "flight recorder":
        kind = reader.foreign
    elif scanner.is_xprof:
        kind, profile = "xprof", start_of_anchors(scanner.anchors) or start_in_xplane(path)
    else:
        kind = "chrome"
    return InputScan(
        path=reader.path,
        kind=kind,
        form=reader.foreign or reader.form,
        header=header,
        metadata=scanner.metadata if kind == "tracekit" else {},
        companions=scanner.companions,
        processes=scanner.processes,
        phases=scanner.phases,
        lowest_ns=scanner.lowest_ns,
        highest_ns=scanner.highest_ns,
        epoch_lowest_ns=scanner.epoch_lowest_ns,
        decimals=scanner.decimals,
        bytes_read=reader.bytes_read,
        plain=scanner.plain,
        repairs=reader.repairs,
        drops=reader.drops,
        accounts=scanner.accounts,
        clock_offsets=scanner.clock_offsets,
        clock_steps=scanner.clock_steps,
        composer_ranks=tuple(sorted(scanner.composer_ranks)) if kind == "chrome" else (),
        barriers=list(zip(scanner.barrier_times_us, scanner.barrier_errors_us, strict=False))
        if kind == "chrome"
        else [],
        collectives={
            rank: thinned(found, _COLLECTIVES)
            for rank, found in scanner.collectives.result(merged_ranks(header) if kind == "merged" else None).items()
        },
        profile=profile,
    )


class _Scanner:
    def __init__(self, scratch: str | None) -> None:
        self._scratch = scratch
        self._unsettled = 0
        self.processes: dict[Any, ProcessScan] = {}
        self.phases: Counter[str] = Counter()
        self.metadata: dict[str, Any] = {}
        self.companions: list[str] = []
        self.accounts = Accounts()
        self.clock_offsets: list[dict[str, Any]] = []
        self.clock_steps: list[tuple[int, int]] = []
        self.composer_ranks: set[int] = set()
        self.barrier_times_us: list[int] = []
        self.barrier_errors_us: list[int] = []
        self.collectives = CollectiveCollector(_COLLECTIVES_READ)
        self.lowest_ns: int | None = None
        self.highest_ns: int | None = None
        self.epoch_lowest_ns: int | None = None
        self.decimals = False
        self.plain = PlainRuns()
        self.is_xprof = False
        self.anchors: list[tuple[int, int, dict[str, Any]]] = []
        self._composer = {
            COMPOSER_RANK_EVENT: self.composer_ranks.add,
            COMPOSER_SYNC_EVENT: self.barrier_times_us.append,
            COMPOSER_SYNC_ERROR_EVENT: self.barrier_errors_us.append,
        }
        self._tracks: dict[tuple[Any, Any], list[Row]] = {}
        self._core: _merge.Scanner | None = None if core.merge is None else core.merge.Scanner(_LOOKED_AT, EPOCH_NS)
        self._numbered: dict[int, Slices] = {}

    def take_text(self, text: bytes) -> int:
        """Look at a run as it stands in the file; returns how many events it has, 0 when it must be decoded for `take`."""
        found = None if self._core is None else self._core.scan(text)
        if found is None:
            return 0
        counts, checksum, low, high, epoch_lowest, firsts, rows, named, metadata = found
        for phase, number in counts.items():
            self.phases[phase] += number
        if metadata:
            for event in _events_at(text, metadata):
                self._metadata(event)
        if named:
            self._named(_events_at(text, named))
        self._span([time for time in (low, epoch_lowest, high) if time is not None])
        for start, end, number in firsts:
            [event] = decode_run(text[start:end])
            if (event.pid, event.tid) not in self._tracks:
                self._first(event)
            self._numbered[number] = self.processes[event.pid].threads[event.tid].slices
        for number, starts, minus_ends in rows:
            self._numbered[number].take(starts, minus_ends)
        self.plain.note_counts(counts, None if UNSET in self.processes else checksum, len(text))
        count = sum(counts.values())
        self._settle_after(count - len(metadata))
        return count

    def _named(self, events: list[Event]) -> None:
        """Look at the events of a run whose names say more."""
        if not self.metadata:
            self.collectives.take(events)
        else:
            for event in events:
                if event.ph == "i":
                    self.accounts.note_instant(event)
        if self.is_xprof:
            self._note_anchors(events, times_of(events))

    def take(self, run: list[Event], text: bytes | None) -> None:
        """Look at a run of events; ``text`` is what it was decoded from, None when it was read event by event."""
        phases = [event.ph for event in run]
        counts = {phase: phases.count(phase) for phase in set(phases)}
        for phase, count in counts.items():
            self.phases[phase[:1] if type(phase) is str else ""] += count
        if "M" in counts:
            for event in run:
                if event.ph == "M":
                    self._metadata(event)
            run = [event for event in run if event.ph != "M"]
            phases = [event.ph for event in run]
        if UNSET in counts or "" in counts:
            # They are not written, so that their processes need not be there.
            run = [event for event in run if event.ph is not UNSET and event.ph]
            phases = [event.ph for event in run]
        if "i" in counts and self.metadata:
            for event in run:
                if event.ph == "i":
                    self.accounts.note_instant(event)
        if not self.metadata:  # a rank trace holds markers, and no collectives
            self.collectives.take(run)
        times = times_of(run)
        if self.is_xprof and (text is None or _ANCHOR in text):
            self._note_anchors(run, times)
        self._span(times if None not in times else [time for time in times if time is not None])  # type: ignore[arg-type]
        keys = [(event.pid, event.tid) for event in run]
        for key in set(keys).difference(self._tracks):
            self._first(run[keys.index(key)])
        easy = self._take_slices(run, phases, counts, keys, times)
        if not easy:
            self._take_each(run, keys, times)
        # An event without a pid makes it impossible to tell by their number which ones stand where.
        plain = easy and UNSET not in self.processes
        self.plain.note(text if plain else None, run, counts, times)
        self._settle_after(len(run))

    def _settle_after(self, count: int) -> None:
        """Have the slices leave this memory now and then."""
        self._unsettled += count
        if self._unsettled > _MOST_UNSETTLED:
            for slices in self._all_slices():
                slices.settle(self._scratch)
            self._unsettled = 0

    def _take_slices(
        self,
        run: list[Event],
        phases: list[Any],
        counts: dict[Any, int],
        keys: list[tuple[Any, Any]],
        times: list[int | None],
    ) -> bool:
        """Note the slices of a run; returns whether it holds nothing that must be looked at event by event."""
        if None in times or not _EASY_PHASES.issuperset(counts):
            return False
        if counts.get("X", 0) < len(run):
            is_slice = [phase == "X" for phase in phases]
            run, keys, times = (list(compress(column, is_slice)) for column in (run, keys, times))  # type: ignore[assignment]
        if not run:
            return True
        try:
            durations = parse_column_us(encode_json([event.dur for event in run]))
        except TypeError:
            # An X without dur.
            return False
        if durations is None:
            return False
        minus_ends = [-start - duration for start, duration in zip(times, durations, strict=True)]  # type: ignore[operator]
        if min(minus_ends) < _LATEST_END:
            minus_ends = [max(end, _LATEST_END) for end in minus_ends]
        rows: Iterator[Row] = zip(times, minus_ends, strict=True)  # type: ignore[assignment]
        if keys.count(keys[0]) == len(keys):
            self._tracks[keys[0]].extend(rows)
        else:
            tracks = self._tracks
            for key, row in zip(keys, rows, strict=True):
                tracks[key].append(row)
        return True

    def _take_each(self, run: list[Event], keys: list[tuple[Any, Any]], times: list[int | None]) -> None:
        """Note the slices of any run."""
        for event, (pid, tid), time in zip(run, keys, times, strict=True):
            phase = event.ph[:1] if type(event.ph) is str else ""
            if phase not in ("X", "B", "E"):
                continue
            slices = self.processes[pid].threads[tid].slices
            if time is None:
                slices.rows.append(INVALID)
            elif phase == "X":
                duration = time_field(event.dur)
                slices.rows.append((time, max(-time - max(duration or 0, 0), _LATEST_END)))
                continue
            else:
                labels = self._label(event.name), self._label(event.cat)
                slices.rows.append((time, *labels, BEGIN if phase == "B" else END))
            slices.mixed = True

    def finish(self) -> None:
        """Be done with all runs."""
        for slices in self._all_slices():
            slices.finish(self._scratch)

    def _note_anchors(self, run: list[Event], times: list[int | None]) -> None:
        for event, time in zip(run, times, strict=True):
            if event.name is not UNSET and bytes(event.name) == _ANCHOR and time is not None:
                duration = time_field(event.dur)
                self.anchors.append((time, -1 if duration is None else duration, _dict(event.args)))

    def _all_slices(self) -> Iterator[Slices]:
        # Several spellings of one id share an object; to settle it again does nothing.
        for process in self.processes.values():
            for thread in process.threads.values():
                yield thread.slices

    def _span(self, times: list[int]) -> None:
        if not times:
            return
        low, high = min(times), max(times)
        self.lowest_ns = low if self.lowest_ns is None else min(low, self.lowest_ns)
        self.highest_ns = high if self.highest_ns is None else max(high, self.highest_ns)
        if high >= EPOCH_NS:
            if low < EPOCH_NS:
                low = min(time for time in times if time >= EPOCH_NS)
            self.epoch_lowest_ns = low if self.epoch_lowest_ns is None else min(low, self.epoch_lowest_ns)

    @staticmethod
    def _label(raw: Any) -> int:
        """Return a number for a name or category, the same for the same text in this process; never `ANY`."""
        # Perfetto takes an empty name for none. A table of all names would grow with the file.
        return ANY if raw is UNSET or bytes(raw) == b'""' else hash(bytes(raw))

    def _process(self, raw: Any) -> ProcessScan:
        process = self.processes.get(raw)
        if process is None:
            process = self.processes.setdefault(raw_number(raw), ProcessScan())
            self.processes[raw] = process
        return process

    @staticmethod
    def _thread(process: ProcessScan, raw: Any) -> ThreadScan:
        thread = process.threads.setdefault(raw_number(raw), ThreadScan())
        process.threads[raw] = thread
        return thread

    def _first(self, event: Event) -> None:
        """Look at the first event of a track."""
        process = self._process(event.pid)
        thread = process.threads.get(event.tid)
        if thread is None:
            thread = self._thread(process, event.tid)
        self._tracks[event.pid, event.tid] = thread.slices.rows
        if thread.used:
            return
        process.used = thread.used = True
        if event.cat is not UNSET:
            thread.category = bytes(event.cat)
        if event.ts is not UNSET and b"." in bytes(event.ts):
            self.decimals = True

    def _metadata(self, event: Event) -> None:
        process = self._process(event.pid)
        name, args = _text(event.name), _dict(event.args)
        if name == METADATA_EVENT:
            self.metadata = self.metadata or args
        elif name == COMPANION_EVENT and isinstance(args.get("file"), str):
            self.companions.append(args["file"])
        elif name == CLOCK_OFFSET_EVENT:
            self.clock_offsets.append(args)
        elif (
            name == CLOCK_STEP_EVENT
            and isinstance(args.get("step_ns"), int)
            and isinstance(args.get("monotonic_ns"), int)
        ):
            self.clock_steps.append((args["step_ns"], args["monotonic_ns"]))
        elif name in ACCOUNTS:
            self.accounts.note(name, args)
        elif name in self._composer and type(args.get("value")) is int and 0 <= args["value"] < _MOST_US:
            self._composer[name](args["value"])
        elif name == "process_name" and isinstance(args.get("name"), str):
            process.name = args["name"]
            self.is_xprof = self.is_xprof or is_xprof_process(args["name"])
        elif name == "process_labels" and isinstance(args.get("labels"), str):
            process.label = args["labels"]
        elif name == "process_sort_index":
            process.sort_index = _sort_index(args)
        elif name == "thread_name" and isinstance(args.get("name"), str):
            self._declared(process, event.tid).name = args["name"]
        elif name == "thread_sort_index":
            self._declared(process, event.tid).sort_index = _sort_index(args)

    def _declared(self, process: ProcessScan, raw: Any) -> ThreadScan:
        return process.threads.get(raw) or self._thread(process, raw)


def _events_at(text: bytes, spans: list[tuple[int, int]]) -> list[Event]:
    return decode_run(b",".join([text[start:end] for start, end in spans])) if spans else []


def _text(raw: Any) -> str:
    value = decode_or_none(raw)
    return value if isinstance(value, str) else ""


def _dict(raw: Any) -> dict[str, Any]:
    value = decode_or_none(raw)
    return value if isinstance(value, dict) else {}


def _sort_index(args: dict[str, Any]) -> int | None:
    value = args.get("sort_index")
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None
