"""The times of steps for plots: the fastest, the median and the slowest rank of each step, and rank by rank."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from tracekit.explain.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence


class StepSeries(NamedTuple):
    """The steps of a rank, as columns."""

    rank: int  # the rank
    numbers: Sequence[int]  # the number of each step; one that is there twice, as after a restart, counts twice
    durations_ns: Sequence[int]  # the duration of each


class StepPoint(Result, frozen=True):
    """One step, or several that follow each other."""

    first: int  # numbers of the first and last step
    last: int  # numbers of the first and last step
    fastest_ns: int  # the shortest time that any rank took for one of them
    median_ns: int  # the median of the steps' medians over the ranks
    slowest_ns: int  # the longest time that any rank took for one of them
    slowest_rank: int  # where that was
    slowest_step: int  # where that was


class StepGrid(Result, frozen=True):
    """The step times of each rank, several steps together where there are many."""

    ranks: list[int]  # the rows
    columns: list[tuple[int, int]]  # number of the first and the last step of each column
    longest_ns: list[list[float | None]]  # for each rank and column the longest of its steps; None without a step


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
    """Return the times rank by rank; consecutive steps share a column beyond a number of columns."""
    numbers = sorted(set[int]().union(*(own.numbers for own in ranks)))
    size = max(1, -(-len(numbers) // most_columns))
    column_of = {number: at // size for at, number in enumerate(numbers)}
    columns = [(group[0], group[-1]) for group in (numbers[at : at + size] for at in range(0, len(numbers), size))]
    rows = []
    for own in ranks:
        row: list[float | None] = [None] * len(columns)
        for number, duration_ns in zip(own.numbers, own.durations_ns, strict=True):
            row[column_of[number]] = max(row[column_of[number]] or 0, duration_ns)
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
