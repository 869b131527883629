"""How time, memory and open files grow with the size of the input, and with the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import Job, Measured
from tests.benchmarks.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Dataset, Inputs
    from tests.benchmarks.merge_runs import Outcome

NAME = "merge-growth"
SAME = 1.05
"""Two measurements of the same memory differ by up to a twentieth."""
LINEAR = 1.2


@dataclass(frozen=True, slots=True)
class Point(Row):
    """A row that is a point of the plot as well.

    Attributes:
        series: ``size`` or ``ranks``, whichever grows.
        megabytes: The input, unpacked.
        ranks: How many files it is in.
        seconds: Time of the merge.
        peak_mb: The most memory that it took.
    """

    series: str = ""
    megabytes: float = 0.0
    ranks: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge inputs of growing size, and then growing numbers of small ranks, in turns."""
    rounds = min(3, effort.merge_rounds)
    shares = [inputs.torch(int(effort.merge_bytes * share), effort.merge_files) for share in effort.growth]
    outcomes, points = _series("size", shares, inputs, rounds)
    yield from points
    first, last = outcomes[0], outcomes[-1]
    more = f"{shares[-1].bytes / shares[0].bytes:.0f} x the input"
    yield _row(f"memory for {more}", last.peak_bytes / first.peak_bytes, SAME, f" x {first.peak_bytes / 1e6:,.0f} MB")
    many = [inputs.torch(effort.small_rank_bytes * ranks, ranks) for ranks in effort.small_ranks]
    outcomes, points = _series("ranks", many, inputs, rounds)
    yield from points
    first, last = outcomes[0], outcomes[-1]
    few, most = effort.small_ranks[0], effort.small_ranks[-1]
    yield _row(f"memory for {most} ranks", last.peak_bytes / first.peak_bytes, SAME, f" x that for {few}")
    yield _row(f"open files for {most} ranks", last.open_files - first.open_files, 0, f" more than for {few}")
    # Not beside the fewest, among whom what every merge costs once is shared.
    middle = len(many) // 2
    few, seconds = effort.small_ranks[middle], outcomes[middle].seconds
    per_rank = (last.seconds / most) / (seconds / few)
    yield _row(f"time a rank for {most} ranks", per_rank, LINEAR, f" x that for {few}")


def _series(series: str, datasets: list[Dataset], inputs: Inputs, rounds: int) -> tuple[list[Outcome], list[Point]]:
    """Merge all of a series; returns what each took, and the points."""
    found = Measured({str(number): Job(dataset) for number, dataset in enumerate(datasets)}, inputs.folder, rounds)
    outcomes = [found.median(str(number)) for number in range(len(datasets))]
    points = [
        Point(
            NAME,
            f"merge {number(dataset.megabytes)} MB in {len(dataset.paths)} files",
            Spread.of([outcome.seconds]),
            " s",
            remarks=f"{outcome.rate:,.0f} MB/s, {outcome.peak_bytes / 1e6:,.0f} MB of memory, {outcome.open_files} open files",
            series=series,
            megabytes=dataset.megabytes,
            ranks=len(dataset.paths),
            seconds=outcome.seconds,
            peak_mb=outcome.peak_bytes / 1e6,
        )
        for dataset, outcome in zip(datasets, outcomes, strict=True)
    ]
    return outcomes, points


def _row(what: str, value: float, at_most: float, unit: str) -> Row:
    return Row(NAME, what, Spread.of([value]), unit, at_most=at_most)
