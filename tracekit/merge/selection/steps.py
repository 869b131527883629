"""When each training step of an input was: from tracekit's training time, or from torch.profiler's ``ProfilerStep#N``."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MergeError
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_dict, name_and_category, raw_number, time_field
from tracekit.structs import Struct, field
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.merge.align.placement import Placement
    from tracekit.merge.scan.input import Input

FOREVER: Final = 2**63 - 1
_TIMESTAMP: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_PROFILER_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_BATCH: Final = b'"batch"', b'"training loop"'
"""Name and category of the slice that tracekit records of a batch."""

Spans = list[tuple[int, int]]
"""Spans of time in order, in ns; the ends are not part of them."""

_Open = tuple[int | None, int]
"""An open slice: the number of its ``ProfilerStep`` if it is one, and when it began."""


class _ProcessSteps(Struct):
    """The training steps of a process, in the time of the merge.

    Attributes:
        batches: (when, the number of the batch that began then), from tracekit's training time.
        slices: The same from tracekit's slices of batches, for a trace that has lost the training time.
        profiler: Number of a ``ProfilerStep`` to its start and end. On a GPU it ends later than in its process. One without an
            end has its start for it.
        last_ns: When the last event begins that tells of the process.
    """

    batches: list[tuple[int, int]] = field(default_factory=list)
    slices: list[tuple[int, int]] = field(default_factory=list)
    profiler: dict[int, tuple[int, int]] = field(default_factory=dict)
    last_ns: int = 0

    @property
    def changes(self) -> list[tuple[int, int]]:
        """When which batch began, in order."""
        return sorted(self.batches or self.slices)

    @property
    def numbers(self) -> set[int]:
        """Its steps."""
        return {batch for _, batch in self.changes} or set(self.profiler)

    def add_step(self, number: int, start: int, end: int) -> None:
        """Record one ``ProfilerStep``."""
        low, high = self.profiler.get(number, (start, end))
        self.profiler[number] = min(low, start), max(high, end)


def spans_of_steps(items: list[Input], placed: Placement, wanted: tuple[int | None, int | None]) -> dict[int, Spans]:
    """Return for every rank when its wanted steps were, in the time of the merge.

    A rank without steps gets those of all others, which go through the steps together.
    """
    by_rank: dict[int, dict[Any, _ProcessSteps]] = {}
    for number, item in enumerate(items):
        _read_steps(item, placed.shifts_ns[number], by_rank)
    spans_of = {rank: _step_spans(list(processes.values()), wanted) for rank, processes in by_rank.items()}
    if not any(spans_of.values()):
        every = [steps for processes in by_rank.values() for steps in processes.values()]
        known = sorted(set().union(*(steps.numbers for steps in every)))
        has = f"they tell of steps {known[0]} to {known[-1]}" if known else "they tell of no training steps at all"
        raise MergeError(f"the inputs hold none of the steps that the selection names; {has}")
    everywhere = _join_spans(chain.from_iterable(spans or () for spans in spans_of.values()))
    return {
        rank: everywhere if (spans := spans_of.get(rank)) is None else spans for item in items for rank in item.ranks
    }


def _read_steps(item: Input, shift_ns: int, by_rank: dict[int, dict[Any, _ProcessSteps]]) -> None:
    """Add the training steps in an input to those of its processes."""
    own: dict[Any, _ProcessSteps] = {}
    tracks: dict[tuple[Any, Any], OpenSlices[_Open]] = defaultdict(lambda: OpenSlices(FOREVER))

    def steps_of(pid: Any) -> _ProcessSteps:
        if pid not in own:
            rank, key = item.rank_of(pid), item.processes[pid].key if pid in item.processes else pid
            own[pid] = _ProcessSteps()  # of a rank that is not selected
            if rank in item.ranks:
                own[pid] = by_rank.setdefault(rank, {}).setdefault(key, own[pid])
        return own[pid]

    def add_batch(batches: list[tuple[int, int]], event: Event) -> None:
        time, batch = time_field(event.ts), decode_dict(event.args).get("batch")
        if time is not None and isinstance(batch, int):
            batches.append((time + shift_ns, batch))

    last_ns = shift_ns
    with TraceReader(item.path, limit_bytes=item.stamp.limit_bytes) as reader:
        for event in chain.from_iterable(reader.runs()):
            if event.ts is UNSET:
                continue
            pid, (name, category), start = raw_number(event.pid), name_and_category(event), time_field(event.ts)
            if event.ph == "M":
                if name == _TIMESTAMP:
                    add_batch(steps_of(pid).batches, event)
                continue
            start_ns = (start or 0) + shift_ns
            last_ns = max(last_ns, start_ns)
            if event.ph not in ("X", "B", "E"):
                continue
            track = tracks[pid, raw_number(event.tid)]
            if event.ph == "E":
                number, begin_ns = track.end(name, None) or (None, 0)
                if number is not None:
                    steps_of(pid).add_step(number, begin_ns, begin_ns if start is None else max(begin_ns, start_ns))
                continue
            if (name, category) == _BATCH:
                add_batch(steps_of(pid).slices, event)
            match = _PROFILER_STEP.fullmatch(name)
            number = None if match is None or start is None else int(match[1])
            if event.ph == "B":
                track.begin(name, None, (number, start_ns))
            elif number is not None:
                steps_of(pid).add_step(number, start_ns, start_ns + (time_field(event.dur) or 0))
    for (pid, _), track in tracks.items():
        for number, begin_ns in track.slices:
            if number is not None:
                steps_of(pid).add_step(number, begin_ns, begin_ns)
    for steps in own.values():
        steps.last_ns = max(steps.last_ns, last_ns)


def _step_spans(processes: list[_ProcessSteps], wanted: tuple[int | None, int | None]) -> Spans | None:
    """Return when the wanted steps of a rank were; None if the rank has no steps.

    A step goes on until the next one begins. The training time of tracekit counts where there is any; the two are not mixed,
    since they may count from different steps.
    """
    low, high = wanted[0] or 0, FOREVER if wanted[1] is None else wanted[1]
    spans: Spans = []
    if any(steps.changes for steps in processes):
        for steps in processes:
            changes = steps.changes
            ends = [*(time for time, _ in changes[1:]), steps.last_ns + 1]
            # A process of the rank without steps has an end, and no change.
            spans += [(time, end) for (time, batch), end in zip(changes, ends, strict=False) if low <= batch < high]
    elif any(steps.profiler for steps in processes):
        for steps in processes:
            for number, (start, end) in steps.profiler.items():
                if low <= number < high:
                    following = steps.profiler.get(number + 1)
                    until = end if end > start or following is not None else steps.last_ns + 1
                    spans.append((start, until if following is None else max(until, following[0])))
    else:
        return None
    return _join_spans(spans)


def _join_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the same time as spans in order that do not touch."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif start < end:
            joined.append((start, end))
    return joined
