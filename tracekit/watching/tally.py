"""What the events of one process add up to, as they come: steps, stages, training time, losses."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.markers import DEVICE, TRANSPARENT, Kind, Markers
from tracekit.analysis.nesting import nested
from tracekit.analysis.reading import Thread
from tracekit.analysis.stages import MOST_STAGES, OF_STAGES, OTHER_STAGES, Stage, StageTable, stage_name
from tracekit.analysis.steps import Steps
from tracekit.formats.event_fields import raw_field, raw_number, time_field
from tracekit.formats.losses import Accounts
from tracekit.formats.rank_trace import SUMMARY_EVENT, TIMESTAMP_EVENT
from tracekit.formats.time_columns import parse_all_us
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_or_none
from tracekit.watching.states import StageTime, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.spill import Row

__all__ = ["RECENT_STEPS", "Tally", "TallyResult"]

RECENT_STEPS: Final = 64
"""Of how many steps the times are kept, and the stages added up."""

_MOST_TRACKS: Final = 64
_MOST_OPEN: Final = 512
_FAR: Final = 100
_MOST_TIME_NS: Final = 2**61
_MOST_NAMED: Final = 8
_TIMED: Final = frozenset("XBE")
_STEP: Final = int(Kind.STEP)
_COLLECTIVE: Final = int(Kind.COLLECTIVE)
_OF_STAGES: Final = int(OF_STAGES)
_TRANSPARENT: Final = int(TRANSPARENT)
_ENCLOSES: Final = int(TRANSPARENT | DEVICE | Kind.SHADOW)  # what is no stage, wherever it lies
_TIMESTAMP_NAME: Final = f'"{TIMESTAMP_EVENT}"'.encode()
_SUMMARY_NAME: Final = f'"{SUMMARY_EVENT}"'.encode()
_NO_THREAD: Final = Thread([], [])


@dataclass(slots=True)
class _Track:
    """A thread.

    Attributes:
        rows: Slices of steps that are not complete yet: (start, -end, number of the event, marker).
        open: Slices that have begun and not ended: (start, marker).
        steps: Of each of the last steps with stages, what these took.
        sums: All of that together.
        covered_ns: How long stages took in all steps so far; the training thread is the one on which this is longest.
    """

    rows: list[Row] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    steps: deque[tuple[int, dict[Stage, int]]] = field(default_factory=deque)
    sums: Counter[Stage] = field(default_factory=Counter)
    covered_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyResult:
    """What a tally says; the fields are those of `RankState`."""

    iteration: int | None
    epoch: int | None
    batch: int | None
    steps_seen: int
    steps: tuple[Step, ...]
    median_step_ns: int | None
    stages: tuple[StageTime, ...]
    staged_ns: int
    waiting_ns: int
    doing: tuple[str, ...]


class Tally:
    """Adds up the events of one process in the order of its files. The result does not depend on how they are portioned.

    A step counts as soon as it has ended. Its stages count when the one after it has ended, too, or the recording: by then
    everything that began in it is there, also what reaches beyond its end. The rules are those of
    `tracekit.analysis.stages`; of what lies in a stage nothing is kept, so that memory is bounded by what is new in a step.

    Args:
        markers: The names; shared by all processes.
        most_rows: How many slices of a step are kept; of more, the oldest are left out of its stages.
    """

    def __init__(self, markers: Markers, most_rows: int) -> None:
        self._markers = markers
        self._most_rows = most_rows
        self._tracks: dict[Any, _Track] = {}
        self._order = 0
        self._rows = 0
        self._newest: Step | None = None  # the last step, if its stages are still to be added up
        self._partial = False  # of the step that ends next, the beginning was passed over
        self._newest_end_ns = -_MOST_TIME_NS
        self._counted: deque[tuple[int, int]] = deque()  # number and duration of the steps whose stages are in the sums
        self._counted_ns = 0
        self._counting = 0
        self._moment: Raw | None = None
        self.steps: deque[Step] = deque(maxlen=RECENT_STEPS)
        self.steps_seen = 0
        self.accounts = Accounts()  # its summary and gaps; each file's own count of losses stands in its head

    # ---- taking in --------------------------------------------------------------------------------------------------

    def jump(self) -> None:
        """Say that what comes next does not follow what came last."""
        self._newest = None
        self._partial = True
        self._rows = 0
        for track in self._tracks.values():
            track.rows.clear()
            track.open.clear()

    def take(self, events: Sequence[Event], base_ns: int) -> None:
        """Take in events of a file.

        Args:
            events: The next ones.
            base_ns: What their times are relative to.
        """
        timed = [event for event in events if event.ph in _TIMED]
        times = iter(_times([event.ts for event in timed]))
        durations = iter(_times([event.dur for event in timed if event.ph == "X"]))
        numbers = iter(self._markers.numbers([(raw_field(event.name), raw_field(event.cat)) for event in timed]))
        kinds, names = self._markers.kinds, self._markers.table
        for event in events:
            phase = event.ph
            if phase == "X":
                time, duration, number = next(times), next(durations), next(numbers)
                if time is None or duration is None or duration < 0:
                    continue
                start = base_ns + time
                if kinds[number] & _STEP and names[number].name == "batch":
                    self._step(start, duration, event)
                else:
                    self._slice(event, start, start + duration, number)
            elif phase in ("B", "E"):
                time, number = next(times), next(numbers)
                if time is not None:
                    self._mark(event, base_ns + time, number, is_end=phase == "E")
            elif phase == "M":
                self._metadata(event)
            elif phase == "i":
                self.accounts.note_instant(event)

    def _metadata(self, event: Event) -> None:
        name = raw_field(event.name)
        if name == _TIMESTAMP_NAME:
            self._moment = None if event.args is UNSET else event.args
        elif name == _SUMMARY_NAME:
            args = decode_or_none(event.args)
            self.accounts.note(SUMMARY_EVENT, args if isinstance(args, dict) else {})
            if self._newest is not None:  # there is none after it
                self._add_stages(self._newest, self._newest)
                self._newest = None

    def _track(self, event: Event) -> _Track | None:
        tid = raw_number(event.tid)
        track = self._tracks.get(tid)
        if track is None and len(self._tracks) < _MOST_TRACKS:
            track = self._tracks[tid] = _Track()
        return track

    def _mark(self, event: Event, time: int, number: int, *, is_end: bool) -> None:
        track = self._track(event)
        if track is None:
            return
        open_ = track.open
        if not is_end:
            if len(open_) < _MOST_OPEN:
                open_.append((time, number))
            return
        unnamed = event.name is UNSET
        for at in range(len(open_) - 1, max(-1, len(open_) - 1 - _FAR), -1):
            if unnamed or open_[at][1] == number:
                start, begun = open_.pop(at)
                self._slice(event, start, max(start, time), begun)
                return

    def _slice(self, event: Event, start: int, end: int, number: int) -> None:
        track = self._track(event)
        if track is None:
            return
        rows, kinds = track.rows, self._markers.kinds
        self._order += 1
        inside = rows and rows[-1][0] >= start and -rows[-1][1] <= end
        if inside and start >= self._newest_end_ns and not kinds[number] & _TRANSPARENT:
            # What lies in it is no stage, unless it is a collective; the rules ask for nothing else of it.
            self._rows -= _take_out(rows, start, end, kinds)
        rows.append((start, -end, self._order, number))
        self._rows += 1
        if self._rows > self._most_rows:
            self._thin_out()

    def _thin_out(self) -> None:
        """Forget the oldest half of the slices: there is no step, or one with more than anybody needs to know."""
        for track in self._tracks.values():
            del track.rows[: (len(track.rows) + 1) // 2]
        self._rows = sum(len(track.rows) for track in self._tracks.values())

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _step(self, start: int, duration: int, event: Event) -> None:
        end = start + duration
        if start < self._newest_end_ns or duration > _MOST_TIME_NS:
            return  # of steps that overlap, the first counts
        args = decode_or_none(event.args)
        batch = args.get("batch") if isinstance(args, dict) else None
        step = Step(batch if isinstance(batch, int) and batch >= 0 else self.steps_seen, start, duration)
        if self._newest is not None:
            self._add_stages(self._newest, step)
        self._newest, self._newest_end_ns = None if self._partial else step, end
        self._partial = False
        self.steps.append(step)
        self.steps_seen += 1

    def _add_stages(self, step: Step, after: Step) -> None:
        """Add up the stages of a step, now that the one after it has ended as well."""
        self._counting += 1
        self._counted.append((self._counting, step.duration_ns))
        self._counted_ns += step.duration_ns
        if len(self._counted) > RECENT_STEPS:
            self._counted_ns -= self._counted.popleft()[1]
        for track in self._tracks.values():
            if track.rows:
                self._add_stages_of(track, step, after)
            while track.steps and track.steps[0][0] < self._counted[0][0]:
                for stage, total_ns in track.steps.popleft()[1].items():
                    track.sums[stage] -= total_ns
                    if not track.sums[stage]:
                        del track.sums[stage]
        self._rows = sum(len(track.rows) for track in self._tracks.values())

    def _add_stages_of(self, track: _Track, step: Step, after: Step) -> None:
        end = step.start_ns + step.duration_ns
        found = self._flat_stages(track.rows, step.start_ns, end)
        if found is None:
            found = self._nested_stages(track.rows, step, after)
        track.rows = [row for row in track.rows if -row[1] > end]
        if found:
            track.steps.append((self._counting, found))
            sums = track.sums
            for stage, total_ns in found.items():
                sums[stage] += total_ns
            track.covered_ns += sum(found.values())

    def _flat_stages(self, rows: list[Row], begin: int, end: int) -> dict[Stage, int] | None:
        """Return the stages of a step whose slices follow one another, as most do: then each is one. Else None."""
        kinds = self._markers.kinds
        found: dict[Stage, int] = {}
        reached = -_MOST_TIME_NS
        for start, minus_end, _, number in rows:
            if start < reached or kinds[number] & _ENCLOSES or start < end < -minus_end:
                return None
            reached = -minus_end
            if begin <= start < end:
                stage = Stage(number, -1)
                found[stage] = found.get(stage, 0) + reached - start
        return found if len(found) <= MOST_STAGES else None

    def _nested_stages(self, rows: list[Row], step: Step, after: Step) -> dict[Stage, int]:
        """Return the stages of a step, whatever lies in what."""
        spans = [(own.start_ns, own.start_ns + own.duration_ns, own.number) for own in dict.fromkeys((step, after))]
        end = spans[0][1]
        # What lies in a stage that reaches beyond the step belongs to it.
        reach = max((-row[1] for row in rows if row[0] < end), default=end)
        table = StageTable(_NO_THREAD, Steps(spans[:1]), 1)
        looked_at = sorted(row for row in rows if row[0] < max(reach, end))
        for slice_ in nested([looked_at], self._markers.kinds, steps=Steps(spans)):
            if not slice_[4] or slice_[6] & _OF_STAGES:
                table.take(slice_, table.steps.at(slice_[0]))
        return table.in_steps_ns

    # ---- what comes out ---------------------------------------------------------------------------------------------

    def result(self) -> TallyResult:
        """Return what was added up so far."""
        args = None if self._moment is None else decode_or_none(self._moment)
        values = (args.get(name) if isinstance(args, dict) else None for name in ("iteration", "epoch", "batch"))
        iteration, epoch, batch = (value if isinstance(value, int) and value >= 0 else None for value in values)
        if self.steps:
            batch = max(batch or 0, self.steps[-1].number + 1)
        track = self._training_track()
        stages = () if track is None else self._stages(track)
        return TallyResult(
            iteration=iteration,
            epoch=epoch,
            batch=batch,
            steps_seen=self.steps_seen,
            steps=tuple(self.steps),
            median_step_ns=round(median(step.duration_ns for step in self.steps)) if self.steps else None,
            stages=stages,
            staged_ns=self._counted_ns if stages else 0,
            waiting_ns=sum(stage.total_ns for stage in stages if stage.waiting),
            doing=() if track is None else tuple(self._markers.table[at].name for _, at in track.open[:_MOST_NAMED]),
        )

    def _stages(self, track: _Track) -> tuple[StageTime, ...]:
        found = [
            StageTime(
                stage_name(stage, self._markers),
                total_ns,
                total_ns / self._counted_ns,
                stage.marker != OTHER_STAGES and bool(self._markers.kinds[stage.marker] & _COLLECTIVE),
            )
            for stage, total_ns in track.sums.items()
            if total_ns > 0
        ]
        return tuple(sorted(found, key=lambda stage: (-stage.total_ns, stage.name)))

    def _training_track(self) -> _Track | None:
        """Return the track on which stages took longest; without any, the one with most open slices."""
        return max(self._tracks.values(), key=lambda own: (own.covered_ns, len(own.open)), default=None)


def _take_out(rows: list[Row], start: int, end: int, kinds: list[int]) -> int:
    """Take the last rows out that lie within a time, but for those of which stages take note; return how many."""
    kept = []
    before = len(rows)
    while rows and rows[-1][0] >= start and -rows[-1][1] <= end:
        row = rows.pop()
        if kinds[row[3]] & _OF_STAGES:
            kept.append(row)
    rows.extend(reversed(kept))
    return before - len(rows)


def _times(texts: list[Any]) -> list[int | None]:
    """Return the times of fields, None for what is missing, no number, or beyond all bounds."""
    try:
        found = parse_all_us(texts)
    except TypeError:  # some are missing
        found = [time_field(text) for text in texts]
    if all(time is not None and -_MOST_TIME_NS < time < _MOST_TIME_NS for time in found):
        return found
    return [time if time is not None and abs(time) < _MOST_TIME_NS else None for time in found]
