"""Find steps that are longer than usual, and the rank and the stage that made them long.

These are events, not estimates: a step that takes 8 robust deviations longer than the steps around it did take
longer. `OutlierSteps.is_recurrent` answers a second question: does one rank have more of them than chance allows?
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import median_of_others, np, robust_deviation

if TYPE_CHECKING:
    from tracekit.explain.arrays import Floats, Ints
    from tracekit.explain.cycles import Cycles

_DEVIATIONS: Final = 8.0
_MIN_SHARE: Final = 0.1
_WINDOW: Final = 201
_MIN_CYCLES: Final = 10
_BLAMED_SHARE: Final = 0.5
_MAX_CHANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class OutlierSteps:
    """Steps that one rank, or all ranks together, made longer than usual in one stage. Times are in the unit of the input."""

    row: int | None  # the rank that came late, by its place in the input; None if all ranks took longer
    place: int  # the long stage, by its place in the order of the cycle
    cycles: list[int]  # the cycles that are too long, in order
    late: float  # excess time of the stage, in the median of these cycles
    excess: float  # sum of the excess times of these cycles
    is_recurrent: bool  # true if this rank has more separate outliers than chance gives to one of equal ranks


def find_outlier_steps(cycles: Cycles) -> list[OutlierSteps]:
    """Find the cycles that take 10 % and 8 robust deviations longer than the median of the 201 cycles around them.

    Returns:
        Outliers by rank and stage, those that cost most first; empty for fewer than 10 cycles.
    """
    lengths = cycles.positions[:, :, -1].max(axis=0)
    if len(lengths) < _MIN_CYCLES:
        return []
    excess = lengths - _running_median(lengths)
    threshold = max(_DEVIATIONS * float(robust_deviation(excess)), _MIN_SHARE * float(np.median(lengths)))
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
    places = cycles.own_stages
    causes: list[tuple[int, int | None, int, float]] = []
    # Delay of each rank at the end of each stage, less its usual delay there.
    late = (
        np.stack([_unusual(cycles.positions[:, :, place], found) for place in range(places)], axis=2)
        if places
        else None
    )
    longer = (
        np.stack([_unusual(cycles.times[:, :, place], found) for place in range(places)], axis=2) if places else None
    )
    medians = np.median(cycles.times, axis=0)
    common = medians[found] - np.median(medians, axis=0)
    for at, cycle in enumerate(found.tolist()):
        if late is not None and longer is not None:
            row = int(late[:, at].max(axis=1).argmax())
            if late[row, at].max() >= _BLAMED_SHARE * excess[at]:
                place = int(longer[row, at].argmax())
                causes.append((cycle, row, place, float(longer[row, at, place])))
                continue
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
