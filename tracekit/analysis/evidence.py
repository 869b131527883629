"""How sure a mean is: plain statistics, without a package for them."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["chance_above_zero", "normal_of_t"]

_NORMAL = NormalDist()


def normal_of_t(t: float, freedom: float) -> float:
    """Return the normal deviate that is as unlikely as Student's t with so many degrees of freedom.

    Wallace's approximation (1959), good to the third digit from 3 degrees on.
    """
    if math.isinf(t) or freedom <= 0:
        return math.copysign(math.inf, t) if freedom > 0 else 0.0
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(scale * math.sqrt(freedom * math.log1p(t * t / freedom)), t)


def chance_above_zero(values: Sequence[float]) -> float:
    """Return how likely values so high are by chance, if their true mean or middle is zero.

    The better of two tests with one side, made to pay for being two: Student's t, which sees a delay in few steps, and
    Wilcoxon's signed ranks, which a single step in which the machine was busy cannot mislead.
    """
    if len(values) < 3:
        return 1.0
    return min(1.0, 2 * min(_student(values), _signed_ranks(values)))


def _student(values: Sequence[float]) -> float:
    mean, spread = fmean(values), stdev(values)
    if spread <= 1e-9 * abs(mean):
        return 0.0 if mean > 0 else 1.0
    return 1.0 - _NORMAL.cdf(normal_of_t(mean / (spread / math.sqrt(len(values))), len(values) - 1))


def _signed_ranks(values: Sequence[float]) -> float:
    sizes = sorted((abs(value), value > 0) for value in values if value)
    count = len(sizes)
    if count < 6:
        return 1.0  # so few never tell
    above = 0.0
    ties = 0
    at = 0
    while at < count:
        end = at
        while end < count and sizes[end][0] == sizes[at][0]:
            end += 1
        above += (at + 1 + end) / 2 * sum(positive for _, positive in sizes[at:end])
        ties += (end - at) ** 3 - (end - at)
        at = end
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24 - ties / 48)
    # Half a rank less: the sum is a whole number, the normal distribution is not.
    return 1.0 - _NORMAL.cdf((above - 0.5 - count * (count + 1) / 4) / spread)
