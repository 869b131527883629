"""Compare the times of one run with those of one or several earlier runs, and find the stages that made the steps longer.

A rank that is slow makes all others wait: their collectives take longer, but are not the cause. The cost of a stage is the
growth of the frontier in it (see `tracekit.explain.cycles`), which waiting does not change. A stage is a cause if its cost
has changed as that of the step, and its own time has changed as much on a rank.
"""

from __future__ import annotations

import math
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final

from tracekit.explain import MIN_VALUES
from tracekit.explain.arrays import np
from tracekit.explain.cycles import cycles_of_run
from tracekit.explain.diff_results import Cause
from tracekit.explain.noise import MIN_FREEDOM, critical_values, estimate_means, upper_tail
from tracekit.explain.stages import training_stages
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Floats
    from tracekit.explain.cycles import Cycles
    from tracekit.explain.noise import Correction
    from tracekit.explain.run import Run

_MAX_REACH: Final = math.log(100)
_PART: Final = 0.5  # the part of a change that must be seen on a rank, or at the frontier, to explain it


class RunChange(Struct, frozen=True):
    """The mean of a time in one run and in earlier runs."""

    before: float  # geometric mean of the means of the earlier runs
    after: float  # mean of the later run
    spreads: list[tuple[float, float]]  # standard errors of the logarithm of the ratio, and their degrees of freedom
    is_known: bool  # false with too few independent values: nothing is certain then

    @property
    def ratio(self) -> float:
        """The later mean to the earlier one."""
        return self.after / self.before

    def chance(self, correction: Correction) -> float:
        """Return the probability that any of all tests would show as large a difference by chance."""
        if not self.is_known:
            return 1.0
        change = abs(math.log(self.ratio))
        return min(1.0, correction.tests * max(_tail(change, *spread) for spread in self.spreads))

    def reach(self, correction: Correction) -> float:
        """Return the factor between the ratio and each of its limits, which holds with the confidence asked for."""
        reach = _MAX_REACH
        if self.is_known:
            reach = min(reach, max(error * _critical(correction.tail, freedom) for error, freedom in self.spreads))
        return math.exp(reach)


class _Mean(Struct, frozen=True):
    log: float
    variance: float
    freedom: float


def compare_runs(before: Sequence[Floats], after: Floats) -> RunChange | None:
    """Compare the mean of a run with that of earlier runs.

    With one earlier run the limits hold for the variation within the two runs only. With several, the limits are the wider
    ones of those and of the variation between the earlier runs. Returns None if a run has fewer than `MIN_VALUES` values, which
    are times in order, or a mean of zero.
    """
    if not before or min(len(after), *map(len, before)) < MIN_VALUES:
        return None
    means = [_mean(values) for values in (*before, after)]
    earlier, later = [one for one in means[:-1] if one is not None], means[-1]
    if len(earlier) < len(before) or later is None:
        return None
    count = len(earlier)
    # Welch's test; the parts are the variances of the logarithms of means.
    parts = [(one.variance / count**2, one.freedom) for one in earlier] + [(later.variance, later.freedom)]
    within = sum(part for part, _ in parts)
    freedom = within**2 / sum(part**2 / own for part, own in parts) if within else math.inf
    spreads = [(math.sqrt(within), freedom)]
    if count > 1:
        between = variance([one.log for one in earlier]) * (1 + 1 / count)
        spreads.append((math.sqrt(between), count - 1.0))
    return RunChange(
        before=math.exp(fmean(one.log for one in earlier)),
        after=math.exp(later.log),
        spreads=spreads,
        is_known=min(one.freedom for one in (*earlier, later)) >= MIN_FREEDOM,
    )


def _mean(values: Floats) -> _Mean | None:
    found = estimate_means(values[np.newaxis])
    mean, error = float(found.mean[0]), float(found.error[0])
    if mean <= 0:
        return None
    return _Mean(math.log(mean), (error / mean) ** 2, float(found.freedom[0]))


def _critical(tail: float, freedom: float) -> float:
    return float(critical_values(tail, np.array([max(1.0, freedom)]))[0])


def _tail(change: float, error: float, freedom: float) -> float:
    """Return the probability of a larger change by chance, in one direction."""
    if error <= 1e-12:
        return 1.0 if change <= 1e-12 else 0.0
    return upper_tail(change / error, max(1.0, freedom))


class StageCosts(Struct, frozen=True):
    """The costs of the stages of a run whose ranks wait for each other."""

    costs: dict[str, Floats]  # the growth of the frontier in each cycle
    own: dict[str, dict[int, float]]  # the mean time on each rank
    meets: set[str]  # the stages where the ranks wait
    last: str  # the stage at the end of each cycle
    length: float  # the mean cycle

    @classmethod
    def of_cycles(cls, cycles: Cycles, ranks: Sequence[int], names: Sequence[str], meets: Sequence[bool]) -> StageCosts:
        """Return the costs of the stages, whose names and collectives are given in the order of the steps."""
        ordered = [names[stage] for stage in cycles.order]
        frontier = np.diff(cycles.positions.max(axis=0), axis=1, prepend=0)
        means = cycles.times.mean(axis=1)
        return cls(
            costs={name: frontier[:, place] for place, name in enumerate(ordered)},
            own={name: dict(zip(ranks, means[:, place].tolist(), strict=True)) for place, name in enumerate(ordered)},
            meets={ordered[-1], *(name for name, is_meeting in zip(names, meets, strict=True) if is_meeting)},
            last=ordered[-1],
            length=cycles.length,
        )


def stage_costs_of(run: Run) -> StageCosts | None:
    """Return the costs of the stages; None where nothing shows that the ranks wait for each other."""
    found = cycles_of_run(training_stages(run), run.steps)
    if found.cycles is None or not found.cycles.waits:
        return None
    return StageCosts.of_cycles(found.cycles, found.ranks, found.names, found.meets)


def count_stages(sides: Sequence[StageCosts]) -> int:
    """Return how many stages `find_causes` tests."""
    return len(set[str]().union(*(side.costs for side in sides)))


def marker_of(stage: str) -> str:
    """Return the name of the innermost marker of a stage."""
    return stage.rpartition(" > ")[2]


def find_causes(
    before: Sequence[StageCosts], after: StageCosts, correction: Correction, at_least: float
) -> tuple[list[Cause], set[str]]:
    """Return the causes, the largest change first, and the names of the markers whose change is waiting."""
    length = fmean(side.length for side in before)
    longer = after.length > length
    names = dict.fromkeys(name for side in (after, *before) for name in side.costs)
    causes: list[Cause] = []
    waiting: set[str] = set()
    for name in names:
        # The step in which only this stage changes: a cost may be 0, and limits are those of logarithms.
        earlier = [length + side.costs.get(name, np.zeros(len(side.costs[side.last]))) for side in before]
        later = length + after.costs.get(name, np.zeros(len(after.costs[after.last])))
        change = compare_runs(earlier, later)
        if change is None:
            continue
        chance, reach = change.chance(correction), change.reach(correction)
        cost_ns = change.after - change.before
        growth = _growth(name, before, after)
        mean_ns = fmean(growth.values())
        if any(name in side.meets for side in (*before, after)) and abs(cost_ns) < _PART * abs(mean_ns):
            waiting.add(marker_of(name))
        ranks = sorted(rank for rank, own in growth.items() if (own if longer else -own) >= _PART * abs(cost_ns))
        is_certain = chance <= 1 - correction.confidence and abs(cost_ns) >= at_least * length
        if is_certain and ranks and (cost_ns > 0) is longer:
            causes.append(
                Cause(
                    stage=name,
                    change_ns=cost_ns,
                    low_ns=change.after / reach - change.before,
                    high_ns=change.after * reach - change.before,
                    share_of_step=cost_ns / length,
                    ranks=ranks,
                    of_ranks=len(growth),
                    chance=chance,
                )
            )
    return sorted(causes, key=lambda one: (-abs(one.change_ns), one.stage)), waiting


def _growth(name: str, before: Sequence[StageCosts], after: StageCosts) -> dict[int, float]:
    """Return the change of the time of a stage on each rank; a new rank is compared with the median of the earlier ones."""
    earlier = [side.own.get(name, {}) for side in before]
    every = [value for own in earlier for value in own.values()]
    middle = float(np.median(every)) if every else 0.0
    later = after.own.get(name, {})
    ranks = later or {rank: 0.0 for own in earlier for rank in own}
    return {
        rank: later.get(rank, 0.0)
        - (fmean(known) if (known := [own[rank] for own in earlier if rank in own]) else middle)
        for rank in ranks
    }
