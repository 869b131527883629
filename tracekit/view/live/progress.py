"""The progress of one process, from the rows of its events: steps, stages, training time, counters, losses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from tracekit.formats.merged_head import Accounts
from tracekit.formats.rank_trace import SUMMARY_EVENT, TIMESTAMP_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_or_none, raw_field
from tracekit.structs import Struct, field
from tracekit.table.plain_columns import NO_BEGIN
from tracekit.table.rows import RowWriter, json_text
from tracekit.traces.pairs import OpenSlices
from tracekit.view.live.stages import Labels, Slice, step_stages
from tracekit.view.live.states import StageTime, Step

_RECENT_STEPS: Final = 64
_MAX_TRACKS: Final = 64
_MAX_TIME_NS: Final = 2**61
_ROW_PHASES: Final = frozenset("XBEC")
_TIMESTAMP_NAME: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_SUMMARY_NAME: Final = f'"{SUMMARY_EVENT}"'.encode()
_BATCH: Final = b'"batch"'
_TRAINING_LOOP: Final = b'"training loop"'
_EVALUATIONS: Final = frozenset({"evaluation", "validation"})


class _Thread(Struct):
    """A track of the process."""

    slices: list[Slice] = field(default_factory=list)  # of steps without stages so far, in the order of their ends
    open: OpenSlices[tuple[bytes, str]] = field(default_factory=lambda: OpenSlices(100))  # event and name
    covered_ns: int = 0  # the time of all stages so far; the training thread has most


class ProgressTracker:
    """Takes the rows of the event table that come with new events of a process; memory is bounded.

    It is the sink of a `RowWriter`, so that a slice or counter here is a row there. The result does not depend on how
    the events are portioned. A step counts when it has ended; its stages count when the next step or the recording has ended,
    since slices of a step may reach beyond its end. A step that overlaps an evaluation does not count.
    """

    def __init__(self, labels: Labels, max_slices: int) -> None:
        self.accounts = Accounts()  # the summary and the gaps of the process
        self._labels = labels  # shared by all processes
        self._max_slices = max_slices  # of a step; of more, the oldest do not count as stages
        self._writer = RowWriter(self, lambda event: None, self)
        self._tracks: dict[tuple[bytes, bytes], int] = {}
        self._threads: list[_Thread] = []
        self._base_ns = 0
        self._count = 0  # slices of all threads
        self._newest: Step | None = None  # its stages do not count yet
        self._is_partial = False  # the start of the next step is unknown
        # The duration of each counted step, and the threads with stages in it.
        self._counted: deque[tuple[int, list[tuple[_Thread, dict[tuple[str, bool], int]]]]] = deque(
            maxlen=_RECENT_STEPS
        )
        self._moment: Any = UNSET
        self._steps: deque[Step] = deque(maxlen=_RECENT_STEPS)
        self._last_two: deque[Step] = deque(maxlen=2)
        self._steps_seen = self._evaluations = 0
        self._evaluated_ns = -_MAX_TIME_NS  # the end of the last evaluation
        self._counters: dict[str, float] = {}
        self._result: dict[str, Any] | None = None

    def jump(self) -> None:
        """Forget open slices and the current step: the next events do not follow the last ones."""
        self._newest, self._is_partial, self._count, self._result = None, True, 0, None
        for thread in self._threads:
            thread.slices.clear()
            thread.open.clear()

    def take(self, events: Sequence[Event], base_ns: int) -> None:
        """Process the next events of a file, with times relative to ``base_ns``."""
        self._result = None
        if base_ns != self._base_ns:
            self._base_ns = base_ns
            for thread in self._threads:  # their times are relative to the other base
                thread.open.clear()
        for event in events:
            if event.ph in _ROW_PHASES:
                self._writer.take(event)
            elif event.ph == "M":
                self._take_metadata(event)
            elif event.ph == "i":
                self.accounts.note_instant(event)

    def _take_metadata(self, event: Event) -> None:
        name = raw_field(event.name)
        if name == _TIMESTAMP_NAME:
            self._moment = event.args
        elif name == _SUMMARY_NAME:
            args = decode_or_none(event.args)
            self.accounts.note(SUMMARY_EVENT, args if isinstance(args, dict) else {})
            if self._newest is not None:
                self._count_stages(self._newest)
                self._newest = None

    # Rows; see `RowWriter`.

    def track(self, pid: bytes, tid: bytes, /) -> int:
        """Return the number of a track. Tracks beyond a limit share one number, and their slices are ignored."""
        number = self._tracks.get((pid, tid))
        if number is None:
            number = len(self._threads)
            if number < _MAX_TRACKS:
                self._tracks[pid, tid] = number
                self._threads.append(_Thread())
        return number

    def add_event(
        self,
        track: int,
        category: bytes | None,
        name: bytes,
        phase: int,
        start_ns: int,
        duration_ns: int,
        *others: object,
    ) -> int:
        """Keep a slice until its step has ended."""
        del phase, others
        label = self._labels[name, category]
        if not label.is_stage or track >= _MAX_TRACKS:
            return 0
        start, minus_end = start_ns + self._base_ns, -(start_ns + self._base_ns + duration_ns)
        if any(start <= step.start_ns and step.start_ns + step.duration_ns <= -minus_end for step in self._last_two):
            return 0  # it encloses whole steps
        slices = self._threads[track].slices
        # The slices inside a stage do not matter, except collectives.
        waiting = []
        while slices and slices[-1][0] >= start and slices[-1][1] >= minus_end:
            inner = slices.pop()
            self._count -= 1
            if inner[2].waits:
                waiting.append(inner)
        slices.extend(reversed(waiting))
        slices.append((start, minus_end, label))
        self._count += 1 + len(waiting)
        if self._count > self._max_slices:
            for thread in self._threads:
                del thread.slices[: (len(thread.slices) + 1) // 2]
            self._count = sum(len(thread.slices) for thread in self._threads)
        return 0

    def begin(self, track: int, start_ns: int, name: bytes, category: bytes, text: bytes, /) -> bool:
        """Open a slice."""
        del start_ns
        has_room = track < _MAX_TRACKS and len(self._threads[track].open) < 512
        if has_room:
            self._threads[track].open.begin(name, category, (text, json_text(name).decode()))
        return has_room

    def end(self, track: int, name: bytes, category: bytes, /) -> tuple[bytes, int] | None:
        """Close the innermost slice that a name and category fit."""
        closed = self._threads[track].open.end(name, category) if track < _MAX_TRACKS else None
        return None if closed is None else (closed[0], NO_BEGIN)

    def begun(self) -> list[tuple[int, bytes]]:
        """Return no slices: the open ones stay open."""
        return []

    def add_counter(self, track: int, name: bytes, series: bytes, time_ns: int, value: float, /) -> None:
        """Keep the last value of a counter."""
        del track, time_ns
        key = name.decode() if series in (b"value", name) else f"{name.decode()}.{series.decode()}"
        if key in self._counters or len(self._counters) < 256:
            self._counters[key] = value

    def add_flow(self, *values: object) -> None:
        """Ignore a flow."""

    def take_slice(self, event: Event, pid: Any, start_ns: int, end_ns: int) -> None:
        """Take a slice with the name of a step or an evaluation."""
        del pid
        name = raw_field(event.name)
        if name != _BATCH:
            if json_text(name).decode() in _EVALUATIONS:
                self._evaluations += 1
                self._evaluated_ns = end_ns + self._base_ns
        elif raw_field(event.cat) == _TRAINING_LOOP:
            self._take_step(start_ns + self._base_ns, end_ns - start_ns, decode_or_none(event.args))

    # Steps.

    def _take_step(self, start_ns: int, duration_ns: int, args: Any) -> None:
        last = self._last_two[-1] if self._last_two else None
        if duration_ns > _MAX_TIME_NS or (last is not None and start_ns < last.start_ns + last.duration_ns):
            return  # of steps that overlap, the first counts
        batch = args.get("batch") if isinstance(args, dict) else None
        step = Step(batch if isinstance(batch, int) and batch >= 0 else self._steps_seen, start_ns, duration_ns)
        if self._newest is not None:
            self._count_stages(self._newest)
        is_typical = start_ns >= self._evaluated_ns
        self._newest = step if is_typical and not self._is_partial else None
        self._is_partial = False
        if is_typical:
            self._steps.append(step)
        self._last_two.append(step)
        self._steps_seen += 1

    def _count_stages(self, step: Step) -> None:
        end_ns = step.start_ns + step.duration_ns
        stages = []
        for thread in self._threads:
            found = step_stages(thread.slices, step.start_ns, end_ns)
            thread.slices = [slice_ for slice_ in thread.slices if -slice_[1] > end_ns]
            thread.covered_ns += sum(found.values())
            if found:
                stages.append((thread, found))
        self._counted.append((step.duration_ns, stages))
        self._count = sum(len(thread.slices) for thread in self._threads)

    # Results.

    def result(self) -> dict[str, Any]:
        """Return the fields of `RankState` that depend on events."""
        if self._result is None:
            self._result = self._find_result()
        return self._result

    def _find_result(self) -> dict[str, Any]:
        args = decode_or_none(self._moment)
        values = (args.get(name) if isinstance(args, dict) else None for name in ("iteration", "epoch", "batch"))
        iteration, epoch, batch = (value if isinstance(value, int) and value >= 0 else None for value in values)
        if self._last_two:
            batch = max(batch or 0, self._last_two[-1].number + 1)
        # The training thread; before any stage, that with most open slices.
        training = max(self._threads, key=lambda own: (own.covered_ns, len(own.open)), default=_Thread())
        counted_ns = sum(duration_ns for duration_ns, _ in self._counted)
        sums: Counter[tuple[str, bool]] = Counter()
        for thread, found in (own for _, stages in self._counted for own in stages):
            if thread is training:
                sums.update(found)
        stages = [
            StageTime(name=name, total_ns=total_ns, share=total_ns / counted_ns, waiting=waits)
            for (name, waits), total_ns in sums.items()
            if total_ns > 0
        ]
        typical = round(median(step.duration_ns for step in self._steps)) if self._steps else None
        waiting_ns = sum(stage.total_ns for stage in stages if stage.waiting)
        own = typical
        if typical is not None and stages:
            own = round(typical * max(0.0, 1 - waiting_ns / counted_ns))
        return {
            "iteration": iteration,
            "epoch": epoch,
            "batch": batch,
            "steps_seen": self._steps_seen,
            "steps": tuple(self._steps),
            "last_step_ns": self._steps[-1].duration_ns if self._steps else None,
            "median_step_ns": typical,
            "own_step_ns": own,
            "stages": tuple(sorted(stages, key=lambda stage: (-stage.total_ns, stage.name))),
            "staged_ns": counted_ns if stages else 0,
            "waiting_ns": waiting_ns,
            "doing": tuple(name for _, name in training.open.slices[:8]),
            "evaluating": any(name in _EVALUATIONS for own in self._threads for _, name in own.open.slices),
            "evaluations": self._evaluations,
            "counters": dict(self._counters),
        }
