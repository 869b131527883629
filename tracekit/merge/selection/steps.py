"""When each training step of an input was: from tracekit's training time, or from torch.profiler's ``ProfilerStep#N``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import raw_field, raw_number, time_field
from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_or_none
from tracekit.formats.trace_reader import TraceReader

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ProcessSteps", "find_steps", "step_spans"]

_TIMESTAMP: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_PROFILER_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_BATCH: Final = b'"batch"', b'"training loop"'
"""Name and category of the slice that tracekit records of a batch."""
_FOREVER: Final = 2**63 - 1

_Open = tuple[bytes, int | None, int]
"""Name of an open slice, the number of its ``ProfilerStep`` if it is one, and when it began."""


@dataclass(slots=True)
class ProcessSteps:
    """What is known of the training steps of a process.

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
        """The steps that it tells of."""
        return {batch for _, batch in self.changes} or set(self.profiler)

    def add(self, other: ProcessSteps, shift_ns: int) -> None:
        """Take in what another file tells of the process, whose times are moved by ``shift_ns``."""
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
    """Read an input for what it tells of training steps.

    Returns:
        By ``pid``, as it stands in the file.

    Raises:
        StorageError: It can no longer be read.
        TraceFormatError: It is no trace any more.
    """
    survey = _Survey()
    with TraceReader(path) as reader:
        for run in reader.runs():
            for event in run:
                survey.take(event)
    return survey.finish()


class _Survey:
    def __init__(self) -> None:
        self._found: dict[Any, ProcessSteps] = {}
        self._open: dict[tuple[Any, Any], list[_Open]] = {}

    def take(self, event: Event) -> None:
        """Look at an event."""
        if event.ts is UNSET:
            return
        name = raw_field(event.name)
        if event.ph == "M":
            if name == _TIMESTAMP:
                _add_batch(self._steps(event).batches, event)
        elif event.ph in ("X", "B"):
            if name == _BATCH[0] and event.cat is not UNSET and bytes(event.cat) == _BATCH[1]:
                _add_batch(self._steps(event).slices, event)
            match = _PROFILER_STEP.fullmatch(name)
            number = None if match is None else int(match[1])
            if event.ph == "B":
                start = None if number is None else time_field(event.ts)
                self._track(event).append((name, None if start is None else number, start or 0))
            elif number is not None:
                self._add_step(event, number)
        elif event.ph == "E":
            self._close(event, name)

    def finish(self) -> dict[Any, ProcessSteps]:
        """Return what was found, after the last event."""
        for (pid, _), open_ in self._open.items():
            for _, number, start in open_:
                if number is not None:
                    self._found.setdefault(pid, ProcessSteps()).add_step(number, start, start)
        return self._found

    def _steps(self, event: Event) -> ProcessSteps:
        return self._found.setdefault(raw_number(event.pid), ProcessSteps())

    def _track(self, event: Event) -> list[_Open]:
        return self._open.setdefault((raw_number(event.pid), raw_number(event.tid)), [])

    def _add_step(self, event: Event, number: int) -> None:
        start = time_field(event.ts)
        if start is not None:
            duration = time_field(event.dur) or 0
            self._steps(event).add_step(number, start, start + duration)

    def _close(self, event: Event, name: bytes) -> None:
        """Close the innermost open slice of that name; without a name, the innermost."""
        open_ = self._track(event)
        unnamed = name in (b"", b'""')
        at = next((at for at in range(len(open_) - 1, -1, -1) if unnamed or open_[at][0] == name), None)
        if at is None:
            return
        _, number, start = open_.pop(at)
        if number is not None:
            end = time_field(event.ts)
            self._steps(event).add_step(number, start, start if end is None else max(start, end))


def _add_batch(batches: list[tuple[int, int]], event: Event) -> None:
    time, args = time_field(event.ts), decode_or_none(event.args)
    batch = args.get("batch") if isinstance(args, dict) else None
    if time is not None and isinstance(batch, int):
        batches.append((time, batch))


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
    if any(steps.changes for steps in processes):
        for steps in processes:
            changes = steps.changes
            if not changes:  # of another process of the rank, which tells of no steps
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
