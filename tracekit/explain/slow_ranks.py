"""Find the ranks that are slower than the others, and the stage.

The time of each rank in a stage is compared with the median of the other ranks in the same step. The difference
contains nothing that all ranks share, such as a common drift. A rank is named for a stage if it takes longer there
by the least effect or more, above zero with confidence and corrected for the number of ranks and stages, and if it
is late at the end of the stage: a rank that waits takes longer but is not late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.explain import CONFIDENCE, MIN_SHARE, MIN_VALUES
from tracekit.explain.arrays import median_of_others, np
from tracekit.explain.noise import (
    MAX_FREEDOM,
    MIN_FREEDOM,
    Correction,
    critical_values,
    estimate_means,
    quantile,
    upper_tail,
)

if TYPE_CHECKING:
    from tracekit.explain.arrays import Floats
    from tracekit.explain.cycles import Cycles
    from tracekit.explain.noise import MeanEstimate

SHOWN_SHARE: Final = 0.05  # delay that `RankComparison.steps_needed` refers to, as a share of the step

_RESOLUTIONS: Final = 3.0
_POWER: Final = 1.2816  # normal deviate of 90 %
_MAX_STEPS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class SlowRank:
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


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Result of a comparison of ranks.

    Attributes:
        noise: Standard deviation of each rank's time without waiting, compared with the other ranks, as a share of the step.
    """

    slow: list[SlowRank]  # the slow ranks, the largest delay first
    noise: list[float]
    limit: float  # no unnamed rank is slower by more than this share of the step, at the confidence asked for
    steps: int  # number of steps compared
    ess: float  # effective sample size of these steps
    steps_needed: int | None  # number of steps that would show a rank slower by 5 % of the step; None if less do


def compare_ranks(
    cycles: Cycles, *, min_share: float = MIN_SHARE, confidence: float = CONFIDENCE, resolution: float = 0.0
) -> RankComparison | None:
    """Find the slow ranks.

    Args:
        cycles: Stage times of two ranks or more.
        min_share: Least delay to name, as a share of the step.
        confidence: Probability that no rank is named in a run of equal ranks.
        resolution: Error of single times; a delay of less than three times this is not named.

    Returns:
        The result; None if there are too few steps, or no stage before the waiting stage.
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
        steps=steps,
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
    power = 10
    while power < _MAX_STEPS:
        for factor in (1, 2, 5):
            if factor * power > steps and suffices(factor * power):
                return factor * power
        power *= 10
    return _MAX_STEPS
