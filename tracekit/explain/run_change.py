"""Compare the times of one run with those of one or several earlier runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final

from tracekit.explain import MIN_VALUES
from tracekit.explain.arrays import np
from tracekit.explain.noise import MIN_FREEDOM, critical_values, estimate_means, upper_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Floats
    from tracekit.explain.noise import Correction

_MAX_REACH: Final = math.log(100)


@dataclass(frozen=True, slots=True)
class RunChange:
    """The mean of a time in one run and in earlier runs.

    Attributes:
        chance: Probability that any of all tests would show as large a difference by chance; 1 with too few independent values.
    """

    before: float  # geometric mean of the means of the earlier runs
    after: float  # mean of the later run
    ratio: float  # ``after`` to ``before``
    low: float  # limits of the true ratio. Each holds with the confidence asked for.
    high: float  # limits of the true ratio. Each holds with the confidence asked for.
    chance: float
    resolution: float  # least slow-down that would be certain, as a share: 0.05 for 5 %
    knows_runs: bool  # true if the variation between several earlier runs is part of the limits


@dataclass(frozen=True, slots=True)
class _Mean:
    log: float
    variance: float
    freedom: float


def compare_runs(before: Sequence[Floats], after: Floats, correction: Correction) -> RunChange | None:
    """Compare the mean of a run with that of earlier runs.

    With one earlier run the limits hold for the variation within the two runs only. With several, the limits are the wider
    ones of those and of the variation between the earlier runs.

    Args:
        before: Times of each earlier run, in order of time.
        after: Times of the later run.
        correction: Number of comparisons, and their confidence.

    Returns:
        The change; None if a run has fewer than `MIN_VALUES` values, or a mean of zero.
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
    middle = fmean(one.log for one in earlier)
    change = later.log - middle
    is_certain = min(one.freedom for one in (*earlier, later)) >= MIN_FREEDOM
    reach = max(error * _critical(correction.tail, own) for error, own in spreads) if is_certain else _MAX_REACH
    reach = min(_MAX_REACH, reach)
    return RunChange(
        before=math.exp(middle),
        after=math.exp(later.log),
        ratio=math.exp(change),
        low=math.exp(change - reach),
        high=math.exp(change + reach),
        chance=min(1.0, correction.tests * max(_tail(abs(change), *spread) for spread in spreads))
        if is_certain
        else 1.0,
        resolution=math.expm1(reach),
        knows_runs=count > 1,
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
