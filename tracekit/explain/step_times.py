"""The times of steps for plots: the fastest, the median and the slowest rank of each step, and rank by rank."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Final, NamedTuple

from tracekit.explain.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_AT_ONCE: Final = 400_000


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
    points = []
    for numbers, steps in _chunks(list(map(_in_order, ranks))):
        times: dict[int, list[int]] = {number: [] for number in numbers}
        owners: dict[int, list[int]] = {number: [] for number in numbers}
        for rank, own, durations in steps:
            for number, duration_ns in zip(own, durations, strict=True):
                times[number].append(duration_ns)
                owners[number].append(rank)
        for number in numbers:
            own_times = times[number]
            slowest_ns = max(own_times)
            slowest = owners[number][own_times.index(slowest_ns)]
            points.append(StepPoint(number, number, min(own_times), median_low(own_times), slowest_ns, slowest, number))
    return points


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


def _in_order(own: StepSeries) -> StepSeries:
    if all(first <= second for first, second in pairwise(own.numbers)):
        return own
    order = sorted(range(len(own.numbers)), key=own.numbers.__getitem__)
    return StepSeries(own.rank, [own.numbers[at] for at in order], [own.durations_ns[at] for at in order])


def _chunks(ranks: Sequence[StepSeries]) -> Iterator[tuple[Sequence[int], list[StepSeries]]]:
    """Yield some step numbers and the steps of all ranks with them, so that not all times are in lists at once."""
    numbers = sorted(set[int]().union(*(own.numbers for own in ranks)))
    size = max(1, _MOST_AT_ONCE // max(1, len(ranks)))
    for start in range(0, len(numbers), size):
        chunk = numbers[start : start + size]
        parts = []
        for own in ranks:
            first, end = bisect_left(own.numbers, chunk[0]), bisect_left(own.numbers, chunk[-1] + 1)
            parts.append(StepSeries(own.rank, own.numbers[first:end], own.durations_ns[first:end]))
        yield chunk, parts


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
