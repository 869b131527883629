"""Measure the growth of time, memory and open files with the size of the input and with the number of ranks."""

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
    """A row that is also a point of the plot, in the series ``size`` or ``ranks``."""

    series: str = ""
    megabytes: float = 0.0
    ranks: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge inputs of growing size, and then growing numbers of small ranks, in turns."""
    shares = [inputs.torch(int(effort.merge_bytes * share), effort.merge_files) for share in effort.growth]
    many = [inputs.torch(effort.small_rank_bytes * ranks, ranks) for ranks in effort.small_ranks]
    for series, datasets, bounds in (("size", shares, _by_size), ("ranks", many, _by_ranks)):
        jobs = {str(place): Job(dataset) for place, dataset in enumerate(datasets)}
        found = Measured(jobs, inputs.folder, min(3, effort.merge_rounds))
        if found.missing:
            yield Row(NAME, f"growth by {series}", None, remarks=next(iter(found.missing.values())))
            continue
        outcomes = [found.median(name) for name in jobs]
        for dataset, outcome in zip(datasets, outcomes, strict=True):
            yield _point(series, dataset, outcome)
        for what, value, unit, at_most in bounds(datasets, outcomes):
            yield Row(NAME, what, Spread.of([value]), unit, at_most=at_most)


def _by_size(datasets: list[Dataset], outcomes: list[Outcome]) -> Iterator[tuple[str, float, str, float]]:
    first, last = outcomes[0].peak_mb, outcomes[-1].peak_mb
    more = f"{datasets[-1].bytes / datasets[0].bytes:.0f} x the input"
    yield f"memory for {more}", last / first, f" x {first:,.0f} MB", SAME


def _by_ranks(datasets: list[Dataset], outcomes: list[Outcome]) -> Iterator[tuple[str, float, str, float]]:
    counts = [len(dataset.paths) for dataset in datasets]
    first, last = outcomes[0], outcomes[-1]
    few, most = counts[0], counts[-1]
    yield f"memory for {most} ranks", last.peak_mb / first.peak_mb, f" x that for {few}", SAME
    yield f"open files for {most} ranks", max(0, last.open_files - first.open_files), f" more than for {few}", 0
    # Not with the fewest ranks, which share the fixed cost of a merge.
    middle = len(counts) // 2
    per_rank = (last.seconds / most) / (outcomes[middle].seconds / counts[middle])
    yield f"time a rank for {most} ranks", per_rank, f" x that for {counts[middle]}", LINEAR


def _point(series: str, dataset: Dataset, outcome: Outcome) -> Point:
    ranks, megabytes = len(dataset.paths), dataset.megabytes
    return Point(
        NAME,
        f"merge {number(megabytes)} MB in {ranks} files",
        Spread.of([outcome.seconds]),
        " s",
        None,
        None,
        f"{outcome.rate:,.0f} MB/s, {outcome.peak_mb:,.0f} MB of memory, {outcome.open_files:.0f} open files",
        *(series, megabytes, ranks, outcome.seconds, outcome.peak_mb),
    )
