"""Compare the stage times of all ranks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracekit.explain import CONFIDENCE, MIN_SHARE
from tracekit.explain.arrays import np
from tracekit.explain.cycles import MIN_CYCLES, find_cycles, stage_costs
from tracekit.explain.outlier_steps import find_outlier_steps
from tracekit.explain.slow_ranks import compare_ranks
from tracekit.explain.stragglers_results import Sensitivity, StageReport, StepOutlier, Straggler
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.explain.arrays import Floats
    from tracekit.explain.cycles import Cycles
    from tracekit.explain.slow_ranks import RankComparison, SlowRank
    from tracekit.explain.stages import StageTimes
    from tracekit.explain.steps import RunSteps

UNRECORDED: Final = "(unrecorded)"
_MAX_CELLS: Final = 4_000_000
_MIN_STEPS: Final = 50
_STEPS_TO_LOOK_AT: Final = 3


class StageComparison:
    """The stages of all ranks in the steps that they have in common.

    Attributes:
        ranks: The ranks that are compared.
        numbers: Numbers of the steps that are compared.
        names: Names of the stages, in the order within a step; the last is the time outside of all stages.
        meets: True for each stage that is a collective.
        cycles: Stage times from one meeting of the ranks to the next; None where there is too little to compare.
        notes: Gaps of the comparison, and their reasons.
    """

    def __init__(
        self,
        stages: Mapping[int, StageTimes],
        steps: RunSteps,
        min_share: float = MIN_SHARE,
        confidence: float = CONFIDENCE,
        resolution: float = 0.0,
    ) -> None:
        self.notes: list[str] = []
        self.cycles: Cycles | None = None
        self.names: list[str] = []
        self._stages = {rank: own for rank, own in sorted(stages.items()) if own.names and rank >= 0}
        self._least = min_share, confidence, resolution
        self.ranks = list(self._stages)
        self.numbers: list[int] = []
        self.meets: list[bool] = []
        if len(self.ranks) < 2:
            self.notes.append("stages cannot be compared: fewer than two ranks have steps with stages in them")
            return
        self.numbers = steps.common(self.ranks)
        self.names, self.meets = self._names()
        most = max(_MIN_STEPS, _MAX_CELLS // ((len(self.names) + 1) * len(self.ranks)))
        if len(self.numbers) > most:
            self.notes.append(f"only the last {most:,} of {len(self.numbers):,} steps are compared")
            self.numbers = self.numbers[-most:]
        if len(self.numbers) >= MIN_CYCLES:
            joined = [
                False,
                *(after == before + 1 for before, after in zip(self.numbers, self.numbers[1:], strict=False)),
            ]
            self.cycles = find_cycles(np.stack([self._times(own) for own in self._stages.values()]), joined, self.meets)
        if self.cycles is None:
            self.notes.append(
                f"stages cannot be compared: the ranks have {counted(len(self.numbers), 'step')} in common, and at least "
                f"{MIN_CYCLES} are needed"
            )
            return
        if not self.cycles.waits:
            self.notes.append(
                "the times do not show that the ranks wait for each other: a slow rank may delay no other"
            )
        elif not self.meets[self.cycles.order[-1]]:
            self.notes.append(
                f"a delay inside of {self.together_after} itself looks like waiting there: give the exchange a marker of "
                "its own, such as all_reduce, or name torch.profiler's traces as well"
            )

    @cached_property
    def _comparison(self) -> RankComparison | None:
        cycles, (min_share, confidence, resolution) = self.cycles, self._least
        if cycles is None:
            return None
        return compare_ranks(cycles, min_share=min_share, confidence=confidence, resolution=resolution * cycles.length)

    @property
    def together_after(self) -> str | None:
        """The stage that synchronizes the ranks."""
        return None if self.cycles is None else self.names[self.cycles.order[-1]]

    def _names(self) -> tuple[list[str], list[bool]]:
        """Return the stages of all ranks in order, and whether the ranks are known to wait for each other in each."""
        offsets: dict[str, list[float]] = {}
        meets: dict[str, bool] = {}
        for own in self._stages.values():
            for name, offset, is_meeting in zip(own.names, own.offsets_ns, own.meets, strict=True):
                offsets.setdefault(name, []).append(offset)
                meets[name] = meets.get(name, False) or is_meeting
        names = sorted(offsets, key=lambda name: (sum(offsets[name]) / len(offsets[name]), name))
        return [*names, UNRECORDED], [*(meets[name] for name in names), False]

    def _times(self, own: StageTimes) -> Floats:
        """Return the times of each stage in each step that is compared, shape (steps, stages)."""
        order = np.argsort(own.steps.numbers, kind="stable")
        at = order[np.searchsorted(own.steps.numbers[order], self.numbers)]
        columns = {name: place for place, name in enumerate(self.names)}
        times = np.zeros((len(at), len(self.names)))
        times[:, [columns[name] for name in own.names]] = own.times[at]
        times[:, -1] = np.maximum(0, own.steps.durations[at] - times[:, :-1].sum(axis=1))
        return times

    @property
    def reports(self) -> list[StageReport]:
        """The cost of each stage."""
        if self.cycles is None:
            return []
        return [
            StageReport(
                name=self.names[stage],
                exposed_ns=cost.exposed,
                median_ns=cost.median,
                led=dict(zip(self.ranks, cost.led, strict=True)),
            )
            for stage, cost in zip(self.cycles.order, stage_costs(self.cycles), strict=True)
        ]

    @property
    def sensitivity(self) -> Sensitivity | None:
        """The differences that the comparison can show."""
        found = self._comparison
        if found is None:
            return None
        return Sensitivity(
            limit_share=found.limit,
            ess=found.ess,
            steps_needed=found.steps_needed,
            noise=dict(zip(self.ranks, found.noise, strict=True)),
        )

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that are slower than the others."""
        if self.cycles is None or self._comparison is None:
            return []
        return [self._straggler(one, self.cycles) for one in self._comparison.slow]

    @property
    def outliers(self) -> list[StepOutlier]:
        """The steps that took longer than usual."""
        cycles = self.cycles
        if cycles is None:
            return []
        whole = cycles.length * len(cycles.begins)
        return [
            StepOutlier(
                rank=None if one.row is None else self.ranks[one.row],
                stage=self.names[cycles.order[one.place]],
                steps=[self.numbers[cycles.step_of(cycle, one.place)] for cycle in one.cycles],
                late_ns=one.late,
                cost_ns=one.excess,
                share_of_run=one.excess / whole if whole else 0.0,
                is_recurrent=one.is_recurrent,
            )
            for one in find_outlier_steps(cycles)
        ]

    def _straggler(self, one: SlowRank, cycles: Cycles) -> Straggler:
        place = cycles.own_stages - 1 if one.place is None else one.place
        times = cycles.times[:, :, place] if one.place is not None else cycles.positions[:, :, place]
        worst = np.argsort(-one.each, kind="stable")[:_STEPS_TO_LOOK_AT]
        return Straggler(
            rank=self.ranks[one.row],
            stage=None if one.place is None else self.names[cycles.order[place]],
            source="stages",
            mean_ns=one.mean,
            low_ns=one.low,
            high_ns=one.high,
            median_ns=float(np.median(one.each)),
            share_of_step=one.mean / cycles.length if cycles.length else 0.0,
            late=int((times.argmax(axis=0) == one.row).sum()),
            of=len(cycles.begins),
            sure=1 - one.chance,
            others_wait=cycles.waits,
            look_at=sorted(self.numbers[cycles.step_of(cycle, place)] for cycle in worst.tolist()),
        )
