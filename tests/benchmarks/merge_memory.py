"""How much memory the processes of a merge take together, in every way to merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import Job, Measured
from tests.benchmarks.merge_speed import WORKERS
from tests.benchmarks.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs

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
    for name, job in jobs.items():
        what, unit = f"most memory, {name}", " MB a worker"
        if reason := found.reason(name):
            yield Row(NAME, what, None, unit, at_most=BOUND_MB, remarks=reason)
            continue
        peak = found.peak(name)
        share = Spread(peak.median / job.workers, peak.low / job.workers, peak.high / job.workers)
        remarks = f"for {number(job.dataset.megabytes)} MB" + (
            f"; {peak.median:,.0f} MB in all" if job.workers > 1 else ""
        )
        yield Row(NAME, what, share, unit, at_most=BOUND_MB, remarks=remarks)
