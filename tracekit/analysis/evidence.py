"""How sure a mean is: plain statistics, without a package for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median, stdev
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEAST_VALUES", "Comparison", "chance_above_zero", "compare", "normal_of_t"]

LEAST_VALUES: Final = 5
"""So many values tell something of their spread."""

_MOST_BLOCKS: Final = 20
_LEAST_IN_BLOCK: Final = 8

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two series of positive values beside each other.

    Attributes:
        first, second: What is typical for each: the geometric mean of the medians of its blocks.
        ratio: The second to the first.
        low, high: Between these the true ratio lies with 95 % probability.
        chance: How likely so large a difference is by chance, in either direction.
    """

    first: float
    second: float
    ratio: float
    low: float
    high: float
    chance: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison | None:
    """Compare two series of positive values, each in the order of time.

    Each is cut into blocks, and the medians of these are compared, as logarithms, by Welch's test: single outliers do not
    count, and values that depend on their neighbours, as on a machine that is busy for a while, do not seem surer than they
    are.

    Returns:
        The comparison; None where there are fewer than `LEAST_VALUES` in one of them.
    """
    if min(len(first), len(second)) < LEAST_VALUES:
        return None
    ours, theirs = _blocks(first), _blocks(second)
    typical = math.exp(fmean(ours)), math.exp(fmean(theirs))
    difference = fmean(theirs) - fmean(ours)
    parts = [stdev(ours) ** 2 / len(ours), stdev(theirs) ** 2 / len(theirs)]
    error = math.sqrt(sum(parts))
    if error <= 1e-12:
        ratio = math.exp(difference)
        return Comparison(*typical, ratio, ratio, ratio, 1.0 if abs(difference) <= 1e-12 else 0.0)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(blocks) - 1) for part, blocks in zip(parts, (ours, theirs), strict=True)
    )
    chance = 2 * (1.0 - _NORMAL.cdf(normal_of_t(abs(difference) / error, freedom)))
    reach = error * _t_of_normal(_NORMAL.inv_cdf(0.975), freedom)
    ratio, low, high = (math.exp(difference + by) for by in (0, -reach, reach))
    return Comparison(*typical, ratio, low, high, chance)


def _blocks(values: Sequence[float]) -> list[float]:
    """Return the logarithms of the medians of blocks of neighbours."""
    count = min(_MOST_BLOCKS, max(LEAST_VALUES, len(values) // _LEAST_IN_BLOCK))
    edges = [at * len(values) // count for at in range(count + 1)]
    return [math.log(median(values[start:end])) for start, end in pairwise(edges)]


def _t_of_normal(deviate: float, freedom: float) -> float:
    """Return Student's t for a normal deviate: `normal_of_t` backwards."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return math.sqrt(freedom * math.expm1((deviate / scale) ** 2 / freedom))
