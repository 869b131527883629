"""When each training step of an input was: from tracekit's training time, or from torch.profiler's ``ProfilerStep#N``."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.json.reader import TraceReader
from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_dict, name_and_category, raw_number, time_field
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMESTAMP: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_PROFILER_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_BATCH: Final = b'"batch"', b'"training loop"'
"""Name and category of the slice that tracekit records of a batch."""
_FOREVER: Final = 2**63 - 1

_Open = tuple[int | None, int]
"""An open slice: the number of its ``ProfilerStep`` if it is one, and when it began."""


@dataclass(slots=True)
class ProcessSteps:
    """The training steps of a process.

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

    def add(self, other: ProcessSteps, shift_ns: int) -> None:
        """Add the steps in another file of the process, with its times moved by ``shift_ns``."""
        self.batches += [(time + shift_ns, batch) for time, batch in other.batches]
        self.slices += [(time + shift_ns, batch) for time, batch in other.slices]
        for number, (start, end) in other.profiler.items():
            self.add_step(number, start + shift_ns, end + shift_ns)
        self.last_ns = max(self.last_ns, other.last_ns + shift_ns)

    def add_step(self, number: int, start: int, end: int) -> None:
        """Note one ``ProfilerStep``."""
        low, high = self.profiler.get(number, (start, end))
        self.profiler[number] = min(low, start), max(high, end)


def find_steps(path: str) -> dict[Any, ProcessSteps]:
    """Read the training steps of an input. They are by ``pid``, as it stands in the file."""
    found: dict[Any, ProcessSteps] = defaultdict(ProcessSteps)
    tracks: dict[tuple[Any, Any], OpenSlices[_Open]] = defaultdict(lambda: OpenSlices(_FOREVER))
    last_ns = 0
    with TraceReader(path) as reader:
        for event in chain.from_iterable(reader.runs()):
            if event.ts is UNSET:
                continue
            pid, (name, category), start = raw_number(event.pid), name_and_category(event), time_field(event.ts)
            if event.ph == "M":
                if name == _TIMESTAMP:
                    _add_batch(found[pid].batches, event)
                continue
            last_ns = max(last_ns, start or 0)
            if event.ph not in ("X", "B", "E"):
                continue
            track = tracks[pid, raw_number(event.tid)]
            if event.ph == "E":
                number, begin = track.end(name, None) or (None, 0)
                if number is not None:
                    found[pid].add_step(number, begin, begin if start is None else max(begin, start))
                continue
            if (name, category) == _BATCH:
                _add_batch(found[pid].slices, event)
            match = _PROFILER_STEP.fullmatch(name)
            number = None if match is None or start is None else int(match[1])
            if event.ph == "B":
                track.begin(name, None, (number, start or 0))
            elif number is not None and start is not None:
                found[pid].add_step(number, start, start + (time_field(event.dur) or 0))
    for (pid, _), track in tracks.items():
        for number, begin in track.slices:
            if number is not None:
                found[pid].add_step(number, begin, begin)
    for steps in found.values():
        steps.last_ns = last_ns
    return found


def _add_batch(batches: list[tuple[int, int]], event: Event) -> None:
    time, batch = time_field(event.ts), decode_dict(event.args).get("batch")
    if time is not None and isinstance(batch, int):
        batches.append((time, batch))


def step_spans(processes: list[ProcessSteps], wanted: tuple[int | None, int | None]) -> list[tuple[int, int]] | None:
    """Return from when until when the wanted steps of a rank were.

    Return the spans in order and apart; None if the rank has no steps.

    A step goes on until the next one begins. The training time of tracekit counts where there is any; the two are not mixed,
    since they may count from different steps.
    """
    low, high = wanted[0] or 0, _FOREVER if wanted[1] is None else wanted[1]
    spans: list[tuple[int, int]] = []
    if any(steps.changes for steps in processes):
        for steps in processes:
            changes = steps.changes
            if not changes:  # of another process of the rank, without steps
                continue
            ends = [time for time, _ in changes[1:]] + [steps.last_ns + 1]
            spans += [(time, end) for (time, batch), end in zip(changes, ends, strict=True) if low <= batch < high]
    elif any(steps.profiler for steps in processes):
        for steps in processes:
            for number, (start, end) in steps.profiler.items():
                if low <= number < high:
                    following = steps.profiler.get(number + 1)
                    until = end if end > start or following is not None else steps.last_ns + 1
                    spans.append((start, until if following is None else max(until, following[0])))
    else:
        return None
    return join_spans(spans)


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same time as spans in order that do not touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif start < end:
            joined.append((start, end))
    return joined
