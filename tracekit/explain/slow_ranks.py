"""Find the ranks that are slower than the others, and the steps that are longer than usual, with their stages.

The time of each rank in a stage is compared with the median of the other ranks in the same step. The difference
contains nothing that all ranks share, such as a common drift. A rank is named for a stage if it takes longer there
by the least effect or more, above zero with confidence and corrected for the number of ranks and stages, and if it
is late at the end of the stage: a rank that waits takes longer but is not late.

Outlier steps are events, not estimates: a step that takes 8 robust deviations longer than the steps around it did take
longer. `OutlierSteps.is_recurrent` answers a second question: does one rank have more of them than chance allows?
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tracekit.explain import CONFIDENCE, MIN_SHARE, MIN_VALUES
from tracekit.explain.arrays import median_of_others, np, robust_deviation
from tracekit.explain.noise import (
    MAX_FREEDOM,
    MIN_FREEDOM,
    Correction,
    critical_values,
    estimate_means,
    quantile,
    upper_tail,
)
from tracekit.structs import Struct

if TYPE_CHECKING:
    from tracekit.explain.arrays import Floats, Ints
    from tracekit.explain.cycles import Cycles
    from tracekit.explain.noise import MeanEstimate

SHOWN_SHARE: Final = 0.05  # delay that `RankComparison.steps_needed` refers to, as a share of the step

_RESOLUTIONS: Final = 3.0
_POWER: Final = 1.2816  # normal deviate of 90 %
_MAX_STEPS: Final = 10_000_000
_OUTLIER_DEVIATIONS: Final = 8.0
_OUTLIER_SHARE: Final = 0.1
_WINDOW: Final = 201
_MIN_CYCLES: Final = 10
_BLAMED_SHARE: Final = 0.5
_MAX_CHANCE: Final = 0.01


class SlowRank(Struct, frozen=True):
    """A rank that is slower than the others. Times are in the unit of the input.

    Attributes:
        place: The place of the stage in the order of the cycle; None if no single stage accounts for the delay with confidence.
    """

    row: int  # which rank, by its place in the input
    place: int | None
    mean: float  # mean time in a step beyond the median of the other ranks
    low: float  # lower limit of the true value at the confidence asked for, all ranks and stages together
    high: float  # upper limit, likewise
    chance: float  # probability that any of equal ranks would be as slow by chance
    freedom: float  # degrees of freedom of the test
    each: Floats  # the same in each cycle


class RankComparison(Struct, frozen=True):
    """Result of a comparison of ranks.

    Attributes:
        noise: Standard deviation of each rank's time without waiting, compared with the other ranks, as a share of the step.
    """

    slow: list[SlowRank]  # the slow ranks, the largest delay first
    noise: list[float]
    limit: float  # no unnamed rank is slower by more than this share of the step, at the confidence asked for
    ess: float  # effective sample size of these steps
    steps_needed: int | None  # number of steps that would show a rank slower by 5 % of the step; None if less do


def compare_ranks(
    cycles: Cycles, *, min_share: float = MIN_SHARE, confidence: float = CONFIDENCE, resolution: float = 0.0
) -> RankComparison | None:
    """Find the slow ranks; None if there are too few steps, or no stage before the waiting stage.

    Args:
        cycles: Stage times of two ranks or more.
        min_share: Least delay to name, as a share of the step.
        confidence: Probability that no rank is named in a run of equal ranks.
        resolution: Error of single times; a delay of less than three times this is not named.
    """
    rows, steps, _ = cycles.times.shape
    places = cycles.own_stages
    if steps < MIN_VALUES or not places:
        return None
    length = cycles.length
    least = max(min_share * length, _RESOLUTIONS * resolution)
    correction = Correction(rows * (places + 1), confidence)
    slow: list[SlowRank] = []
    for place in range(places):
        longer = cycles.times[:, :, place] - median_of_others(cycles.times[:, :, place])
        found = slow_rows(longer, least, correction, place)
        if found:
            late = cycles.positions[:, :, place] - median_of_others(cycles.positions[:, :, place])
            slow += [one for one in found if _is_late(late[one.row], least, one, confidence)]
    whole = cycles.positions[:, :, places - 1]
    late = whole - median_of_others(whole)
    named = {one.row for one in slow}
    slow += [one for one in slow_rows(late, least, correction, None if places > 1 else 0) if one.row not in named]
    named |= {one.row for one in slow}
    estimate = estimate_means(late)
    others = [row for row in range(rows) if row not in named] or list(range(rows))
    # The limit holds for all ranks together, and so does their noise. Two ranks have one noise.
    error = float(np.sqrt((estimate.error**2).mean()))
    freedom = float(np.median(estimate.freedom)) * max(1, rows - 1)
    reach = quantile(Correction(rows, confidence).tail, min(freedom, MAX_FREEDOM)) * error
    limit = float(estimate.mean[others].max()) + reach
    ess = float(np.median(estimate.ess))
    return RankComparison(
        slow=sorted(slow, key=lambda one: (-one.mean, one.row)),
        noise=[float(value) / length if length else 0.0 for value in estimate.deviation],
        limit=max(0.0, limit / length) if length else 0.0,
        ess=ess,
        steps_needed=None
        if length and limit <= SHOWN_SHARE * length
        else _steps_needed(error * steps**0.5, steps / ess, correction.tail, SHOWN_SHARE * length, steps),
    )


def slow_rows(late: Floats, least: float, correction: Correction, place: int | None = None) -> list[SlowRank]:
    """Return the rows with a mean above zero with confidence, and no less than the least effect.

    Args:
        late: Shape (rows, values): how much later or longer than the others, in order of time.
        least: Least mean to return.
        correction: Number of rows that are tested, here and elsewhere, and their confidence.
        place: The stage of the results.
    """
    if late.shape[1] < MIN_VALUES:
        return []
    estimate = estimate_means(late)
    reach = critical_values(correction.tail, estimate.freedom) * estimate.error
    low = estimate.mean - reach
    is_slow = (low > 0) & (estimate.mean >= least) & (estimate.freedom >= MIN_FREEDOM)
    return [
        SlowRank(
            row=row,
            place=place,
            mean=float(estimate.mean[row]),
            low=float(low[row]),
            high=float(estimate.mean[row] + reach[row]),
            chance=_chance(estimate, row, correction),
            freedom=float(estimate.freedom[row]),
            each=late[row],
        )
        for row in np.flatnonzero(is_slow).tolist()
    ]


def _is_late(late: Floats, least: float, slow: SlowRank, confidence: float) -> bool:
    """Return True if a rank that takes longer in a stage is late at its end: a rank that waits is not.

    Only ranks that are known to take longer are asked, so this test is not corrected for their number.
    """
    estimate = estimate_means(late[np.newaxis])
    mean, error = float(estimate.mean[0]), float(estimate.error[0])
    return mean >= least and mean > quantile(Correction(1, confidence).tail, slow.freedom) * error


def _chance(estimate: MeanEstimate, row: int, correction: Correction) -> float:
    """Return the probability that any row would be as slow by chance."""
    error = float(estimate.error[row])
    single = upper_tail(float(estimate.mean[row]) / error, float(estimate.freedom[row])) if error else 0.0
    return min(1.0, single * correction.tests)


def _steps_needed(deviation: float, each: float, tail: float, shown: float, steps: int) -> int | None:
    """Return how many steps show a delay with 90 % power, rounded up to 1, 2 or 5 times a power of ten."""

    def suffices(count: float) -> bool:
        freedom = min(round(count / each / 2 - 1, 2), MAX_FREEDOM)
        return freedom >= MIN_FREEDOM and (quantile(tail, freedom) + _POWER) * deviation / count**0.5 <= shown

    if not shown or suffices(steps):
        return None
    counts = (factor * 10**power for power in range(1, 7) for factor in (1, 2, 5))
    return next((count for count in counts if count > steps and suffices(count)), _MAX_STEPS)


class OutlierSteps(Struct, frozen=True):
    """Steps that one rank, or all ranks together, made longer than usual in one stage. Times are in the unit of the input."""

    row: int | None  # the rank that came late, by its place in the input; None if all ranks took longer
    place: int  # the long stage, by its place in the order of the cycle
    cycles: list[int]  # the cycles that are too long, in order
    late: float  # excess time of the stage, in the median of these cycles
    excess: float  # sum of the excess times of these cycles
    is_recurrent: bool  # true if this rank has more separate outliers than chance gives to one of equal ranks


def find_outlier_steps(cycles: Cycles) -> list[OutlierSteps]:
    """Find the cycles that take 10 % and 8 robust deviations longer than the median of the 201 cycles around them.

    Returns outliers by rank and stage, those that cost most first; none for fewer than 10 cycles.
    """
    lengths = cycles.positions[:, :, -1].max(axis=0)
    if len(lengths) < _MIN_CYCLES:
        return []
    excess = lengths - _running_median(lengths)
    threshold = max(_OUTLIER_DEVIATIONS * float(robust_deviation(excess)), _OUTLIER_SHARE * float(np.median(lengths)))
    causes: dict[tuple[int | None, int], list[int]] = {}
    late: dict[int, float] = {}
    found = np.flatnonzero(excess > threshold)
    if not len(found):
        return []
    for cycle, row, place, own in _causes(cycles, found, excess[found]):
        causes.setdefault((row, place), []).append(cycle)
        late[cycle] = own
    recurrent = _recurrent(causes, len(cycles.times))
    outliers = [
        OutlierSteps(
            row=row,
            place=place,
            cycles=own,
            late=float(np.median([late[cycle] for cycle in own])),
            excess=float(excess[own].sum()),
            is_recurrent=row in recurrent,
        )
        for (row, place), own in causes.items()
    ]
    return sorted(outliers, key=lambda one: (-one.excess, one.cycles))


def _running_median(values: Floats) -> Floats:
    """Return the median of the values around each; of all values where there are few."""
    if len(values) <= _WINDOW:
        return np.full(len(values), np.median(values))
    padded = np.pad(values, _WINDOW // 2, mode="reflect")
    middle: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    return middle


def _causes(cycles: Cycles, found: Ints, excess: Floats) -> list[tuple[int, int | None, int, float]]:
    """Return for each outlier the cycle, the rank that came late or None, the stage, and how much longer that took."""
    # Delay of each rank at the end of each stage, and its time in the stage, less what is usual; shape (ranks, found, stages).
    late, longer = (_unusual(values[:, :, : cycles.own_stages], found) for values in (cycles.positions, cycles.times))
    causes: list[tuple[int, int | None, int, float]] = []
    medians = np.median(cycles.times, axis=0)
    common = medians[found] - np.median(medians, axis=0)
    for at, cycle in enumerate(found.tolist()):
        row = int(late[:, at].max(axis=1, initial=-np.inf).argmax())
        if late[row, at].max(initial=-np.inf) >= _BLAMED_SHARE * excess[at]:
            place = int(longer[row, at].argmax())
            causes.append((cycle, row, place, float(longer[row, at, place])))
        else:
            place = int(common[at].argmax())
            causes.append((cycle, None, place, float(common[at, place])))
    return causes


def _unusual(values: Floats, found: Ints) -> Floats:
    """Return how much larger than the other ranks each rank is in the cycles found, less how much it usually is."""
    difference = values - median_of_others(values)
    unusual: Floats = difference[:, found] - np.median(difference, axis=1, keepdims=True)
    return unusual


def _recurrent(causes: dict[tuple[int | None, int], list[int]], ranks: int) -> set[int | None]:
    """Return the ranks that have more separate outliers than chance gives to one of equal ranks."""
    events: dict[int, int] = {}
    for row in {row for row, _ in causes if row is not None}:
        own = sorted(cycle for (one, _), found in causes.items() if one == row for cycle in found)
        # Outliers in steps that follow each other have one cause.
        events[row] = sum(not at or own[at - 1] < cycle - 1 for at, cycle in enumerate(own))
    total = sum(events.values())
    return {row for row, count in events.items() if ranks * _binomial_tail(count, total, 1 / ranks) <= _MAX_CHANCE}


def _binomial_tail(least: int, count: int, share: float) -> float:
    """Return the probability of this many successes or more."""
    return sum(math.comb(count, own) * share**own * (1 - share) ** (count - own) for own in range(least, count + 1))
