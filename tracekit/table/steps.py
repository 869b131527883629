"""The training steps of a file: the batches that tracekit recorded, or else the steps of torch.profiler."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.rank_trace import TIMESTAMP_EVENT
from tracekit.formats.trace_event import decode_or_none, raw_field, time_field

if TYPE_CHECKING:
    from tracekit.formats.trace_event import Event

COUNTS: Final = ("epoch", "batch", "sample", "token", "iteration")
"""The counts of a training `Timestamp` that a step has."""

_MAX_COUNT: Final = 2**62
_ROUNDING_NS: Final = 1_000
_BATCH: Final = b'"batch"'
_TRAINING_LOOP: Final = b'"training loop"'
_EVALUATIONS: Final = frozenset({b'"evaluation"', b'"validation"'})
_PROFILER_STEP: Final = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_PROFILER_CATEGORIES: Final = frozenset({b'"user_annotation"', b'"cpu_op"', b'"Operator"', b'""', b""})


class Step(NamedTuple):
    """A training step."""

    group: int  # the rank of its process in a merged trace, else 0
    step: int  # its number: that of the batch, or of torch.profiler's step
    start_ns: int  # its start. Times are those of the file.
    end_ns: int  # its end
    evaluation: bool  # true if an evaluation overlaps it
    counts: tuple[int | None, ...]  # the values of `COUNTS` at its start; None where the file does not state one


def is_step_name(name: bytes) -> bool:
    """Return True if a slice with this name, as JSON, may be a step or an evaluation."""
    return name == _BATCH or name in _EVALUATIONS or name.startswith(b'"ProfilerStep#')


class StepCollector:
    """Collects the steps of a file, and the training times that it states."""

    def __init__(self) -> None:
        self._batches: dict[Any, list[tuple[int, int, int, tuple[int | None, ...]]]] = {}
        self._profiler_steps: dict[Any, list[tuple[int, int, int, tuple[int | None, ...]]]] = {}
        self._evaluations: dict[Any, list[tuple[int, int]]] = {}
        self._timestamps: dict[Any, list[tuple[int, tuple[int | None, ...]]]] = {}

    @property
    def has_batches(self) -> bool:
        """True if tracekit has recorded batches."""
        return bool(self._batches)

    def state(self) -> list[list[Any]]:
        """Return what was collected as JSON; see `restore`."""
        return [[[pid, found] for pid, found in own.items()] for own in self._collected()]

    def restore(self, state: list[list[Any]]) -> None:
        """Continue after a `state`."""
        for own, pairs in zip(self._collected(), state, strict=True):
            for pid, found in pairs:
                own[pid] = [tuple(tuple(cell) if isinstance(cell, list) else cell for cell in row) for row in found]

    def _collected(self) -> list[dict[Any, list[Any]]]:
        return [self._batches, self._profiler_steps, self._evaluations, self._timestamps]

    def take_slice(self, event: Event, pid: Any, start_ns: int, end_ns: int) -> None:
        """Look at a slice that `is_step_name` accepts."""
        name, category = raw_field(event.name), raw_field(event.cat)
        match = _PROFILER_STEP.fullmatch(name)
        if match is not None:
            if category in _PROFILER_CATEGORIES:
                steps = self._profiler_steps.setdefault(pid, [])
                steps.append((start_ns, end_ns, int(match[1]), (None,) * len(COUNTS)))
        elif name in _EVALUATIONS:
            self._evaluations.setdefault(pid, []).append((start_ns, end_ns))
        elif name == _BATCH and category == _TRAINING_LOOP:
            batches = self._batches.setdefault(pid, [])
            counts = _counts(decode_or_none(event.args))
            number = counts[1]
            batches.append((start_ns, end_ns, len(batches) if number is None else number, counts))

    def take_metadata(self, event: Event, pid: Any, args: dict[str, Any]) -> None:
        """Process a metadata event that may state a training time."""
        time = time_field(event.ts)
        if time is not None and raw_field(event.name).strip(b'"').decode(errors="replace") == TIMESTAMP_EVENT:
            self._timestamps.setdefault(pid, []).append((time, _counts(args)))

    def steps(self, groups: dict[Any, int]) -> list[Step]:
        """Return the steps of all groups, in order of group and start, apart from each other."""
        for stated in self._timestamps.values():
            stated.sort(key=lambda pair: pair[0])
        by_group: dict[int, list[Any]] = {}
        for pid, group in groups.items():
            by_group.setdefault(group, []).append(pid)
        found: list[Step] = []
        for group, pids in sorted(by_group.items()):
            for source in (self._batches, self._profiler_steps):
                spans = sorted(
                    ((*span, pid) for pid in pids for span in source.get(pid, ())), key=lambda span: span[:3]
                )
                if spans:
                    found += self._apart(group, spans, _joined(self._evaluations, pids))
                    break
        return found

    def _apart(self, group: int, spans: list[Any], evaluations: list[tuple[int, int]]) -> list[Step]:
        """Return steps; of those that overlap, the first. An overlap of up to 1 µs is rounding, and cuts the earlier one."""
        found: list[Step] = []
        for start, end, number, counts, pid in spans:
            overlap = found[-1].end_ns - start if found else 0
            if end <= start or overlap > min(_ROUNDING_NS, (end - start) // 2):
                continue
            if overlap > 0:
                found[-1] = found[-1]._replace(end_ns=max(start, found[-1].start_ns))
            # The last evaluation that starts before the end of the step; they are apart from each other.
            last = bisect_left(evaluations, (end, 0)) - 1
            evaluates = last >= 0 and evaluations[last][1] > start
            found.append(Step(group, number, start, end, evaluates, self._complete(pid, start, counts)))
        return found

    def _complete(self, pid: Any, start_ns: int, counts: tuple[int | None, ...]) -> tuple[int | None, ...]:
        stated = self._timestamps.get(pid, [])
        at = bisect_right(stated, start_ns, key=lambda pair: pair[0])
        if not at:
            return counts
        known = stated[at - 1][1]
        return tuple(known[i] if counts[i] is None else counts[i] for i in range(len(COUNTS)))


def _joined(spans: dict[Any, list[tuple[int, int]]], pids: list[Any]) -> list[tuple[int, int]]:
    """Return the spans of some processes in order; those that overlap are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(span for pid in pids for span in spans.get(pid, ())):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def step_columns(steps: list[Step]) -> array[int]:
    """Return steps as the core takes them: group, start, end and index of each, in order."""
    columns = array("q")
    for index, step in enumerate(steps):
        columns.extend((step.group, step.start_ns, step.end_ns, index))
    return columns


def _counts(args: Any) -> tuple[int | None, ...]:
    values = (args.get(name) for name in COUNTS) if isinstance(args, dict) else (None,) * len(COUNTS)
    return tuple(value if type(value) is int and 0 <= value < _MAX_COUNT else None for value in values)
