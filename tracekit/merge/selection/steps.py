"""When each training step of an input was: from tracekit's training time, or from torch.profiler's ``ProfilerStep#N``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import parse_us
from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_reader import UNSET, Event, TraceReader, decode_or_none
from tracekit.merge.scan import raw_number

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ProcessSteps", "find_steps", "step_spans"]

_TIMESTAMP: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_PROFILER_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_FOREVER: Final = 2**63 - 1


@dataclass(slots=True)
class ProcessSteps:
    """What is known of the training steps of a process.

    Attributes:
        batches: (when, the number of the batch that began then), from tracekit's training time.
        profiler: Number of a ``ProfilerStep`` to its start and end. On a GPU it ends later than in its process.
        last_ns: When the last event begins that tells of the process.
    """

    batches: list[tuple[int, int]] = field(default_factory=list)
    profiler: dict[int, tuple[int, int]] = field(default_factory=dict)
    last_ns: int = 0

    @property
    def numbers(self) -> set[int]:
        """The steps that it tells of."""
        return {batch for _, batch in self.batches} or set(self.profiler)

    def add(self, other: ProcessSteps, shift_ns: int) -> None:
        """Take in what another file tells of the process, whose times are moved by ``shift_ns``."""
        self.batches += [(time + shift_ns, batch) for time, batch in other.batches]
        for number, (start, end) in other.profiler.items():
            self.add_step(number, start + shift_ns, end + shift_ns)
        self.last_ns = max(self.last_ns, other.last_ns + shift_ns)

    def add_step(self, number: int, start: int, end: int) -> None:
        """Note one ``ProfilerStep``."""
        low, high = self.profiler.get(number, (start, end))
        self.profiler[number] = min(low, start), max(high, end)


def find_steps(path: str) -> dict[Any, ProcessSteps]:
    """Read an input for what it tells of training steps.

    Returns:
        By ``pid``, as it stands in the file.

    Raises:
        StorageError: It can no longer be read.
        TraceFormatError: It is no trace any more.
    """
    found: dict[Any, ProcessSteps] = {}
    with TraceReader(path) as reader:
        for run in reader.runs():
            for event in run:
                name = event.name
                if name is UNSET or event.ts is UNSET:
                    continue
                if event.ph == "M":
                    if bytes(name) == _TIMESTAMP:
                        _add_batch(found.setdefault(raw_number(event.pid), ProcessSteps()), event)
                elif event.ph == "X" and (match := _PROFILER_STEP.fullmatch(name)):
                    _add_step(found.setdefault(raw_number(event.pid), ProcessSteps()), int(match[1]), event)
    return found


def _add_batch(steps: ProcessSteps, event: Event) -> None:
    time, args = parse_us(bytes(event.ts)), decode_or_none(event.args)  # type: ignore[arg-type]
    batch = args.get("batch") if isinstance(args, dict) else None
    if time is not None and isinstance(batch, int):
        steps.batches.append((time, batch))


def _add_step(steps: ProcessSteps, number: int, event: Event) -> None:
    start = parse_us(bytes(event.ts))  # type: ignore[arg-type]
    if start is not None:
        steps.add_step(number, start, start + (0 if event.dur is UNSET else parse_us(bytes(event.dur)) or 0))


def step_spans(processes: list[ProcessSteps], wanted: tuple[int | None, int | None]) -> list[tuple[int, int]] | None:
    """Return from when until when the wanted steps of a rank were.

    A step goes on until the next one begins. The training time of tracekit counts where there is any; the two are not mixed,
    since they may count from different steps.

    Args:
        processes: Those of the rank; each attempt and each child is one.
        wanted: From which step on, and up to which.

    Returns:
        Spans in order and apart; None when the rank tells of no steps at all.
    """
    low, high = wanted[0] or 0, _FOREVER if wanted[1] is None else wanted[1]
    spans: list[tuple[int, int]] = []
    if any(steps.batches for steps in processes):
        for steps in processes:
            changes = sorted(steps.batches)
            ends = [time for time, _ in changes[1:]] + [steps.last_ns + 1]
            spans += [(time, end) for (time, batch), end in zip(changes, ends, strict=True) if low <= batch < high]
    elif any(steps.profiler for steps in processes):
        for steps in processes:
            for number, (start, end) in steps.profiler.items():
                if low <= number < high:
                    following = steps.profiler.get(number + 1, (end, end))[0]
                    spans.append((start, max(end, following)))
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
