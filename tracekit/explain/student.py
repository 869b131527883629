"""Student's t distribution, without a package for it."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

MAX_FREEDOM: Final = 1000.0  # degrees of freedom from which the normal distribution is used

_MAX_TERMS: Final = 500
_TINY: Final = 1e-300
_NORMAL: Final = NormalDist()


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
