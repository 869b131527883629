"""Who holds the others up, from stage times alone: the frontier of a step.

Ranks that wait for each other all take the same time: the delay of one appears as waiting in all others, in a later stage.
But up to a stage boundary the slow rank has used more time than the others, whoever waits afterwards. So, in each step:

* a rank's *position* at a stage boundary is the sum of its stage times up to there;
* the *frontier* there is the position of the rank that has used most: the step cannot be over before. By how much it grows
  from one boundary to the next is the *exposed cost* of the stage, and waiting costs nothing;
* a rank's *lead* is how far it is beyond the median rank, and what its lead grows by in a stage is its *delay* there.

Only durations on each rank's own clock are compared: the clocks need not be synchronised. Source of the idea: StageFrontier,
arXiv 2606.06751.

One thing must be known: where the ranks are at one moment, since positions count from there. A step as the trace has it may
begin anywhere. The boundary after which all wait for each other is found from the times: from one such moment to the next the
ranks take the same time, and from any other boundary to the next each takes a time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, Final

from tracekit.analysis.evidence import chance_above_zero

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Delay", "Frontier", "StageCost", "find_frontier"]

Times = list[list[list[int]]]
"""Times of a run, ns: by rank, by step, by stage."""

_ABOUT_EQUAL: Final = 1.1
_KNOWN: Final = 3.0
_MUCH_LESS: Final = 0.7


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage costs the run.

    Attributes:
        exposed_ns: By how much it moves the frontier, in a step on average.
        median_ns: How long it takes on the median rank.
        led: In how many steps each rank was the frontier at its end.
    """

    exposed_ns: float
    median_ns: float
    led: list[int]


@dataclass(frozen=True, slots=True)
class Delay:
    """How much a rank falls behind in a stage.

    Attributes:
        rank: Its place among the ranks.
        stage: The place of the stage.
        mean_ns: In a step on average.
        median_ns: In the median step: 0 where only some steps are slow.
        each_ns: In each step.
        late_steps: In how many steps it fell behind more than any other rank, in this stage.
        chance: How likely as much is by chance, if no rank were slower than the others.
    """

    rank: int
    stage: int
    mean_ns: float
    median_ns: float
    each_ns: list[int]
    late_steps: int
    chance: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """What the frontier tells.

    Attributes:
        together_after: The place of the stage after which the ranks are at one moment.
        waiting: Whether they show to be: from there to there they take the same time more nearly than from elsewhere.
        order: The places of the stages, from there on.
        steps: How many steps are counted.
        first: The place of the step in which the first of them begins.
        length_ns: How long a step is at the frontier, on average.
        costs: Of each stage.
        delays: Of each rank in each stage, the largest mean first.
    """

    together_after: int
    waiting: bool
    order: list[int]
    steps: int
    first: int
    length_ns: float
    costs: list[StageCost]
    delays: list[Delay]


def find_frontier(times: Times, joined: Sequence[bool], meets: Sequence[bool]) -> Frontier | None:
    """Find the frontier of a run.

    Args:
        times: Stage times of two ranks or more, of the same steps and stages.
        joined: Whether each step follows the one before it, in all ranks.
        meets: Whether each stage is known to be one in which the ranks wait for each other.

    Returns:
        What it tells; None when there are too few steps.
    """
    stages, steps = len(meets), len(joined)
    if len(times) < 2 or stages == 0 or steps < 3:
        return None
    spreads = _spreads(times, joined)
    together = _together_after(spreads, meets)
    order = [*range(together + 1, stages), *range(together + 1)]
    if together == stages - 1:
        begins = list(range(steps))
        cycles = times
    else:
        # From one meeting to the next: the end of one step and the beginning of the next.
        begins = [step for step in range(steps - 1) if joined[step + 1]]
        cycles = [[own[step][together + 1 :] + own[step + 1][: together + 1] for step in begins] for own in times]
    if len(begins) < 3:
        return None
    positions = [[_sums(cycle) for cycle in own] for own in cycles]
    delays = _delays(positions)
    rows = _rows(delays)
    return Frontier(
        together_after=together,
        waiting=meets[together] or spreads[together] <= _MUCH_LESS * median(spreads),
        order=order,
        steps=len(begins),
        first=begins[0],
        length_ns=fmean(max(own[step][-1] for own in positions) for step in range(len(begins))),
        costs=_in_place(_costs(cycles, positions), order),
        delays=sorted(
            (_delay(rank, stage, order[stage], delays, rows) for rank in range(len(times)) for stage in range(stages)),
            key=lambda delay: (-delay.mean_ns, delay.rank, delay.stage),
        ),
    )


def _spreads(times: Times, joined: Sequence[bool]) -> list[float]:
    """Return by how much the ranks differ in their time from the end of each stage to its next end, in the median."""
    steps, stages = len(times[0]), len(times[0][0])
    spreads = []
    for stage in range(stages):
        found = []
        for step in range(steps - 1):
            if joined[step + 1]:
                took = [sum(own[step][stage + 1 :]) + sum(own[step + 1][: stage + 1]) for own in times]
                found.append(max(took) - min(took))
        spreads.append(median(found) if found else 0.0)
    return spreads


def _together_after(spreads: list[float], meets: Sequence[bool]) -> int:
    """Return the stage after which the ranks are at one moment."""
    least = min(spreads)
    # One that is known for a meeting is taken if it is not much worse, and of equal ones the last.
    return max(
        (at for at, spread in enumerate(spreads) if spread <= (_KNOWN if meets[at] else _ABOUT_EQUAL) * least),
        key=lambda at: (meets[at], at),
    )


def _sums(cycle: list[int]) -> list[int]:
    found, whole = [], 0
    for length in cycle:
        whole += length
        found.append(whole)
    return found


def _costs(cycles: Times, positions: Times) -> list[StageCost]:
    ranks, steps, stages = len(cycles), len(cycles[0]), len(cycles[0][0])
    costs = []
    for stage in range(stages):
        led = [0] * ranks
        exposed = 0
        for step in range(steps):
            here = [own[step][stage] for own in positions]
            furthest = max(here)
            led[here.index(furthest)] += 1
            exposed += furthest - (max(own[step][stage - 1] for own in positions) if stage else 0)
        middle = fmean(median(own[step][stage] for own in cycles) for step in range(steps))
        costs.append(StageCost(exposed / steps, middle, led))
    return costs


def _in_place(costs: list[StageCost], order: list[int]) -> list[StageCost]:
    return [cost for _, cost in sorted(zip(order, costs, strict=True), key=lambda pair: pair[0])]


def _delays(positions: Times) -> Times:
    """Return by how much each rank's lead over the median rank grows, by rank, step and stage."""
    ranks, steps, stages = len(positions), len(positions[0]), len(positions[0][0])
    delays: Times = [[[0] * stages for _ in range(steps)] for _ in range(ranks)]
    for step in range(steps):
        before = [0] * ranks
        for stage in range(stages):
            middle = median_low(own[step][stage] for own in positions)
            for rank, own in enumerate(positions):
                lead = max(0, own[step][stage] - middle)
                delays[rank][step][stage] = max(0, lead - before[rank])
                before[rank] = lead
    return delays


Row = tuple[int, int, int]
"""The delays of all ranks in one step and stage: their sum, the largest and the second largest."""


def _rows(delays: Times) -> list[list[Row]]:
    """Return what all ranks are together, by step and stage: to go over the others for each rank takes the square of them."""
    rows = []
    for steps in zip(*delays, strict=True):
        row = []
        for values in zip(*steps, strict=True):
            second, top = nlargest(2, values)[::-1]
            row.append((sum(values), top, second))
        rows.append(row)
    return rows


def _delay(rank: int, stage: int, place: int, delays: Times, rows: list[list[Row]]) -> Delay:
    own = [step[stage] for step in delays[rank]]
    others = len(delays) - 1
    more: list[float] = []
    late = 0
    for mine, row in zip(own, rows, strict=True):
        total, top, second = row[stage]
        # Chance makes every rank fall behind now and then: what counts is by how much more than the others.
        more.append(mine - (total - mine) / others)
        late += mine == top > second
    tries = len(delays) * len(delays[0][0])
    return Delay(
        rank=rank,
        stage=place,
        mean_ns=fmean(more),
        median_ns=median(more),
        each_ns=own,
        late_steps=late,
        chance=min(1.0, chance_above_zero(more) * tries),
    )
