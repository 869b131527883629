"""Measure the memory that the processes of a merge take together, for every way to merge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import Job, Measured
from tests.benchmarks.merge_speed import WORKERS
from tests.benchmarks.table import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs
    from tests.benchmarks.table import Row

NAME = "merge-memory"
BOUND_MB = 100.0


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Watch one merge of each kind; what several processes share counts for each of them."""
    plain = inputs.torch(effort.merge_bytes, effort.merge_files)
    jobs = {
        "JSON": Job(plain),
        "gzip": Job(inputs.packed(plain), suffix=".json.gz"),
        "rank traces": Job(inputs.rank_traces(effort.merge_bytes, effort.merge_files)),
        "pftrace": Job(plain, suffix=".pftrace"),
        f"{WORKERS} processes": Job(plain, workers=WORKERS),
    }
    found = Measured(jobs, inputs.folder, min(2, effort.merge_rounds))

    def of_a_worker(name: str) -> Spread:
        peak, workers = found.spread("peak_mb", name), jobs[name].workers
        return Spread(peak.median / workers, peak.low / workers, peak.high / workers)

    def remarks(name: str) -> str:
        in_all = f"; {found.median(name).peak_mb:,.0f} MB in all" if jobs[name].workers > 1 else ""
        return f"for {number(jobs[name].dataset.megabytes)} MB{in_all}"

    for name in jobs:
        figures, told = partial(of_a_worker, name), partial(remarks, name)
        yield found.row(NAME, f"most memory, {name}", [name], figures, " MB a worker", told, at_most=BOUND_MB)
