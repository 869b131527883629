"""Find the stages that made the steps of a run longer or shorter than those of earlier runs.

A rank that is slow makes all others wait: their collectives take longer, and are no cause. The cost of a stage is the growth of
the frontier in it (see `tracekit.explain.cycles`), which waiting does not change. A stage is a cause if its cost has changed as
that of the step, and its own time has changed as much on a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import np
from tracekit.explain.diff_results import Cause
from tracekit.explain.run_change import compare_runs
from tracekit.explain.stage_comparison import StageComparison
from tracekit.explain.stages import training_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Floats
    from tracekit.explain.cycles import Cycles
    from tracekit.explain.noise import Correction
    from tracekit.explain.run import Run

_PART: Final = 0.5  # the part of a change that must be seen on a rank, or at the frontier, to explain it


@dataclass(frozen=True, slots=True)
class StageCosts:
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
    found = StageComparison(training_stages(run), run.steps)
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
        change = compare_runs(earlier, later, correction)
        if change is None:
            continue
        cost_ns = change.after - change.before
        growth = _growth(name, before, after)
        mean_ns = fmean(growth.values())
        if any(name in side.meets for side in (*before, after)) and abs(cost_ns) < _PART * abs(mean_ns):
            waiting.add(marker_of(name))
        ranks = sorted(rank for rank, own in growth.items() if (own if longer else -own) >= _PART * abs(cost_ns))
        is_certain = change.chance <= 1 - correction.confidence and abs(cost_ns) >= at_least * length
        if is_certain and ranks and (cost_ns > 0) is longer:
            causes.append(
                Cause(
                    stage=name,
                    change_ns=cost_ns,
                    low_ns=change.before * (change.low - 1),
                    high_ns=change.before * (change.high - 1),
                    share_of_step=cost_ns / length,
                    ranks=ranks,
                    of_ranks=len(growth),
                    chance=change.chance,
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
