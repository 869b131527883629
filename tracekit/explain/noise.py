"""Means of correlated values and their standard errors.

Step times depend on their neighbours: a rank that is slow now is likely to be slow in the next step. n such values
carry less information than n independent ones; the *effective sample size* (ESS) is the number of independent
values with the same information.

The variance of the mean is estimated twice, and the larger estimate counts. The first takes the noise for an
autoregressive process of order 1 and corrects its lag-1 correlation for bias (about (1 + 4r) / n, Kendall 1954).
The second is the mean power of the six slowest cosines (Müller 2004; Lazarus, Lewis, Stock and Watson 2018), with
as many degrees of freedom. It sees slow noise below fast noise: where half of the variance is AR(1) of 0.95 and
half is white, the first alone accuses a quarter of the runs of two equal ranks and half of the runs of eight.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import medians, np, robust_deviation
from tracekit.structs import Struct

if TYPE_CHECKING:
    from tracekit.explain.arrays import Floats

MIN_FREEDOM: Final = 1.5  # fewer degrees of freedom give no verdict: about 5 independent values

MAX_FREEDOM: Final = 1000.0  # degrees of freedom from which the normal distribution is used

_MAX_TERMS: Final = 500
_TINY: Final = 1e-300
_NORMAL: Final = NormalDist()
_COSINES: Final = 6
_SLOWEST: Final = 2
_DRIFT_SHARE: Final = 0.85  # of the power of six cosines; white noise reaches it in 2 % of the series
_LIMIT: Final = 8.0  # deviations from the median; see `_limited`
_MAX_CORRELATION: Final = 0.999


class MeanEstimate(Struct, frozen=True):
    """Means of series, and how well they are known. All attributes have one value for each series."""

    mean: Floats  # the mean of the limited values: single values far off the median count as 8 robust deviations
    error: Floats  # standard error of the mean
    deviation: Floats  # standard deviation of the limited values
    ess: Floats  # effective sample size
    freedom: Floats  # degrees of freedom of Student's t for mean / error


class Correction(Struct, frozen=True):
    """Several tests that share one probability of a false result (Bonferroni)."""

    tests: int  # number of tests
    confidence: float  # probability that none of them gives a false result

    @property
    def tail(self) -> float:
        """Probability of a false result for each test."""
        return min(0.49, (1 - self.confidence) / self.tests)


def estimate_means(series: Floats) -> MeanEstimate:
    """Estimate the mean of each row.

    The rows, of `MIN_VALUES` or more values in order of time, are of equal kind, such as the ranks of a run, and share the
    estimate of their correlation. A row that is much more correlated than the others counts as such.
    """
    count = series.shape[-1]
    values = _limited(series)
    mean = values.mean(axis=-1)
    centred = values - mean[:, None]
    # Rounding makes constant values differ by some 1e-16 of their size.
    squares = (centred * centred).sum(axis=-1)
    varies = squares > count * (1e-9 * np.abs(mean)) ** 2
    squares = np.where(varies, squares, 1.0)
    lag_1 = (centred[:, 1:] * centred[:, :-1]).sum(axis=-1) / squares
    correlation = np.clip(lag_1 + (1 + 4 * lag_1) / count, 0.0, _MAX_CORRELATION)
    inflation = (1 + correlation) / (1 - correlation)
    # The sample variance is too small by the variance of the mean itself.
    variance = squares / (count - 1) / np.maximum(0.3, 1 - inflation / count)
    by_cosines, cosines = _inflation_by_cosines(centred, variance)
    inflation, freedom = _common_inflation(np.log(inflation[varies]), np.log(by_cosines[varies]), count, cosines)
    ess = np.full(len(series), float(count))
    ess[varies] = count / inflation
    degrees = np.full(len(series), MAX_FREEDOM)
    degrees[varies] = freedom
    deviation = np.where(varies, np.sqrt(variance), 0.0)
    error = deviation / np.sqrt(ess)
    return MeanEstimate(mean=mean, error=error, deviation=deviation, ess=ess, freedom=np.maximum(degrees, 1.0))


def block_means(series: Floats, most: int) -> Floats:
    """Return means of at most ``most`` blocks of consecutive values by row; the first values may be in none."""
    rows, count = series.shape
    size = max(1, -(-count // most))
    means: Floats = series[:, count % size :].reshape(rows, -1, size).mean(axis=2)
    return means


def critical_values(tail: float, freedom: Floats) -> Floats:
    """Return Student's t that is exceeded with probability ``tail`` (below 0.5) for each number of degrees of freedom.

    Degrees of freedom are rounded down (to quarters below 30, to tens above), so that few values are computed.
    """
    rounded = np.where(freedom < 30, np.floor(4 * freedom) / 4, np.floor(freedom / 10) * 10)
    known, places = np.unique(np.minimum(rounded, MAX_FREEDOM), return_inverse=True)
    found: Floats = np.array([quantile(tail, float(one)) for one in known])[places.reshape(freedom.shape)]
    return found


def _limited(series: Floats) -> Floats:
    """Limit values to 8 robust deviations around the median, so that one stall does not hide a slow rank."""
    middle = medians(series)[:, None]
    deviation = robust_deviation(series, middle)
    reach = _LIMIT * np.maximum(deviation, np.median(deviation))[:, None]
    return np.where(reach > 0, np.clip(series, middle - reach, middle + reach), series)


def _inflation_by_cosines(centred: Floats, variance: Floats) -> tuple[Floats, int]:
    """Return the number of values per independent value by the power of the slowest cosines, and the number of cosines.

    A series that drifts during the whole run has nearly all of this power in its two slowest cosines, which then count alone.
    Several ranks share their estimates, and their common drift is subtracted before.
    """
    count = centred.shape[-1]
    cosines = min(_COSINES, count // 3)
    times = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * np.outer(times, np.arange(1, cosines + 1)))
    powers = 2 / count * (centred @ waves) ** 2
    if len(centred) <= 2 and powers[:, :_SLOWEST].sum() > _DRIFT_SHARE * powers.sum():
        powers = powers[:, :_SLOWEST]
    return np.maximum(powers.mean(axis=-1), 1e-12 * variance) / variance, powers.shape[-1]


def _common_inflation(by_lag: Floats, by_cosines: Floats, count: int, cosines: int) -> tuple[Floats, Floats]:
    """Return the number of values per independent value, and the degrees of freedom, by row, from logarithms of estimates.

    The rows share the larger one of their common estimates. A row with a much larger own estimate keeps it.
    """
    if not len(by_lag):
        return by_lag, by_lag
    common_lag, common_cosines = float(np.median(by_lag)), float(np.mean(by_cosines))
    lag_freedom = count / np.exp(np.maximum(by_lag, common_lag)) / 2 - 1
    if len(by_lag) <= 2:
        # One difference: both rows have the same estimates.
        freedom = np.minimum(lag_freedom, cosines) if common_cosines > common_lag else lag_freedom
        return np.exp(np.full(len(by_lag), max(common_lag, common_cosines))), freedom
    # The logarithm of the mean of k squares is too small by 1 / k on average, and has a variance of 2 / k.
    common_cosines += 1 / cosines
    common = max(common_lag, common_cosines)
    own_lag = by_lag > common + np.sqrt(4 * np.exp(by_lag) / count)
    own_cosines = by_cosines > common + 2 * np.sqrt(2 / cosines)
    inflation = np.maximum(np.where(own_lag, by_lag, common), np.where(own_cosines, by_cosines, common))
    is_slow = own_cosines | (common_cosines > common_lag + np.sqrt(2 / (cosines * (len(by_lag) - 1))))
    return np.exp(inflation), np.where(is_slow, np.minimum(lag_freedom, cosines), lag_freedom)


# Student's t distribution, without a package for it.


def upper_tail(t: float, freedom: float) -> float:
    """Return the probability of a value above t."""
    if t < 0:
        return 1.0 - upper_tail(-t, freedom)
    if math.isinf(t):
        return 0.0
    if freedom >= MAX_FREEDOM:
        return math.erfc(t / math.sqrt(2)) / 2
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


@lru_cache(maxsize=4096)
def quantile(tail: float, freedom: float) -> float:
    """Return the value that is exceeded with probability ``tail``, 0 < tail < 0.5."""
    if freedom >= MAX_FREEDOM:
        return -_NORMAL.inv_cdf(tail)
    low, high = 0.0, 1.0
    while upper_tail(high, freedom) > tail:
        low, high = high, 4 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, freedom) > tail else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.log(a)
    )
    # Lentz's method.
    value, c, d = 1.0, 1.0, 0.0
    for term in range(_MAX_TERMS):
        half = term // 2
        if not term:
            factor = 1.0
        elif term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + factor * d or _TINY)
        c = 1 + factor / c or _TINY
        value *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return front * (value - 1)
