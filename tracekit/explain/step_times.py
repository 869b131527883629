"""The times of steps for plots: the fastest, the median and the slowest rank of each step, and rank by rank."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from tracekit.explain.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence


class StepSeries(NamedTuple):
    """The steps of a rank, as columns.

    Attributes:
        rank: The rank.
        numbers: The number of each step; one that is there twice, as after a restart, counts twice.
        durations_ns: The duration of each.
    """

    rank: int
    numbers: Sequence[int]
    durations_ns: Sequence[int]


class StepPoint(Result, frozen=True):
    """One step, or several that follow each other.

    Attributes:
        first, last: Numbers of the first and last step.
        fastest_ns: The shortest time that any rank took for one of them.
        median_ns: The median of the steps' medians over the ranks.
        slowest_ns: The longest time that any rank took for one of them.
        slowest_rank, slowest_step: Where that was.
    """

    first: int
    last: int
    fastest_ns: int
    median_ns: int
    slowest_ns: int
    slowest_rank: int
    slowest_step: int


class StepGrid(Result, frozen=True):
    """The step times of each rank, several steps together where there are many.

    Attributes:
        ranks: The rows.
        columns: Number of the first and the last step of each column.
        longest_ns: For each rank and column the longest of its steps; None without a step.
    """

    ranks: list[int]
    columns: list[tuple[int, int]]
    longest_ns: list[list[float | None]]


def step_points(ranks: Sequence[StepSeries]) -> list[StepPoint]:
    """Return a point for each step number that any rank has, in order."""
    times: dict[int, list[int]] = {}
    slowest: dict[int, tuple[int, int]] = {}  # the longest time and its rank; of equal times, the first rank
    for own in ranks:
        for number, duration_ns in zip(own.numbers, own.durations_ns, strict=True):
            times.setdefault(number, []).append(duration_ns)
            if number not in slowest or duration_ns > slowest[number][0]:
                slowest[number] = duration_ns, own.rank
    return [
        StepPoint(number, number, min(found), median_low(found), *slowest[number], number)
        for number, found in sorted(times.items())
    ]


def step_grid(ranks: Sequence[StepSeries], most_columns: int) -> StepGrid:
    """Return the times rank by rank.

    Args:
        ranks: The ranks.
        most_columns: The maximum number of columns; consecutive steps beyond it share one.
    """
    numbers = sorted(set[int]().union(*(own.numbers for own in ranks)))
    size = max(1, -(-len(numbers) // most_columns))
    column_of = {number: at // size for at, number in enumerate(numbers)}
    columns = [(group[0], group[-1]) for group in (numbers[at : at + size] for at in range(0, len(numbers), size))]
    rows = []
    for own in ranks:
        row: list[float | None] = [None] * len(columns)
        for number, duration_ns in zip(own.numbers, own.durations_ns, strict=True):
            at = column_of[number]
            known = row[at]
            row[at] = duration_ns if known is None or duration_ns > known else known
        rows.append(row)
    return StepGrid([own.rank for own in ranks], columns, rows)


def reduced_steps(points: Sequence[StepPoint], most: int) -> list[StepPoint]:
    """Return at most a number of points, each of equally many steps but for the last; no peak is lost."""
    size = -(-len(points) // most)
    return [_joined(points[start : start + size]) for start in range(0, len(points), size)] if size else []


def _joined(points: Sequence[StepPoint]) -> StepPoint:
    slowest = max(points, key=lambda point: point.slowest_ns)
    return StepPoint(
        points[0].first,
        points[-1].last,
        min(point.fastest_ns for point in points),
        median_low([point.median_ns for point in points]),
        slowest.slowest_ns,
        slowest.slowest_rank,
        slowest.slowest_step,
    )
