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
    many = [inputs.torch(effort.small_rank_bytes * ranks, ranks) for ranks in effort.small_ranks]
    for series, datasets, bounds in (("size", shares, _by_size), ("ranks", many, _by_ranks)):
        jobs = {str(place): Job(dataset) for place, dataset in enumerate(datasets)}
        found = Measured(jobs, inputs.folder, rounds)
        if reason := found.reason(*jobs):
            yield Row(NAME, f"growth by {series}", None, remarks=reason)
            continue
        outcomes = [found.median(name) for name in jobs]
        for dataset, outcome in zip(datasets, outcomes, strict=True):
            yield _point(series, dataset, outcome)
        yield from bounds(datasets, outcomes)


def _by_size(datasets: list[Dataset], outcomes: list[Outcome]) -> Iterator[Row]:
    first, last = outcomes[0].peak_bytes, outcomes[-1].peak_bytes
    more = f"{datasets[-1].bytes / datasets[0].bytes:.0f} x the input"
    yield _row(f"memory for {more}", last / first, SAME, f" x {first / 1e6:,.0f} MB")


def _by_ranks(datasets: list[Dataset], outcomes: list[Outcome]) -> Iterator[Row]:
    counts = [len(dataset.paths) for dataset in datasets]
    first, last = outcomes[0], outcomes[-1]
    few, most = counts[0], counts[-1]
    yield _row(f"memory for {most} ranks", last.peak_bytes / first.peak_bytes, SAME, f" x that for {few}")
    yield _row(f"open files for {most} ranks", max(0, last.open_files - first.open_files), 0, f" more than for {few}")
    # Not beside the fewest, among whom what every merge costs once is shared.
    middle = len(counts) // 2
    per_rank = (last.seconds / most) / (outcomes[middle].seconds / counts[middle])
    yield _row(f"time a rank for {most} ranks", per_rank, LINEAR, f" x that for {counts[middle]}")


def _point(series: str, dataset: Dataset, outcome: Outcome) -> Point:
    peak_mb = outcome.peak_bytes / 1e6
    return Point(
        NAME,
        f"merge {number(dataset.megabytes)} MB in {len(dataset.paths)} files",
        Spread.of([outcome.seconds]),
        " s",
        remarks=f"{outcome.rate:,.0f} MB/s, {peak_mb:,.0f} MB of memory, {outcome.open_files:.0f} open files",
        series=series,
        megabytes=dataset.megabytes,
        ranks=len(dataset.paths),
        seconds=outcome.seconds,
        peak_mb=peak_mb,
    )


def _row(what: str, value: float, at_most: float, unit: str) -> Row:
    return Row(NAME, what, Spread.of([value]), unit, at_most=at_most)
