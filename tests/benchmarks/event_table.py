"""Measure the event table: building it, and asking it again. ``python -m tests.benchmarks.event_table --megabytes 1000``.

The inputs are the real ranks of DLRM, grown (see `tests.benchmarks.grown_traces`). Each command is a new process; its CPU time
includes the start of Python and the import of DuckDB.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tests.benchmarks.grown_traces import DLRM, GLOO
from tests.benchmarks.merge_inputs import Inputs
from tests.benchmarks.summary_speed import measure

if TYPE_CHECKING:
    from tests.benchmarks.summary_speed import Took

QUESTIONS = {
    "group by name": "select name, count(*), sum(self_ns) as s from events group by 1 order by s desc limit 10",
    "kernels by rank and step": "select rank, step, sum(duration_ns) from events where category = 'kernel' group by all",
    "exact quantiles": "select name, quantile_cont(duration_ns, 0.99) from events where phase = 'X' group by 1",
}


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of all inputs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gloo", action="store_true", help="grow the ranks of the gloo run instead")
    told = parser.parse_args()
    with Inputs() as inputs:
        dataset = inputs.grown(GLOO if told.gloo else DLRM, told.megabytes * 10**6)
        size_mb = dataset.megabytes
        print(f"{len(dataset.paths)} files, {size_mb:,.0f} MB")

        def run(sql: str, cache: str, processors: str) -> Took:
            """Ask something on some of the processors."""
            variables = ["env", f"TRACEKIT_CACHE={inputs.folder / cache}", "taskset", "--cpu-list", processors]
            return measure([*variables, sys.executable, "-m", "tracekit", "query", *map(str, dataset.paths), sql])

        for processors in ("0", "0,1"):
            for number in range(told.rounds):
                found = run("select count(*) from events", f"{processors}-{number}", processors)
                print(
                    f"build, processors {processors}: {size_mb / found.cpu_seconds:,.0f} MB/s of CPU time, "
                    f"{size_mb / found.seconds:,.0f} MB/s of wall-clock time, peak {found.peak_mb:.0f} MB"
                )
        for what, sql in QUESTIONS.items():
            for _ in range(told.rounds):
                found = run(sql, "0-0", "0,1")
                print(
                    f"again, {what}: {found.seconds:.2f} s, CPU {found.cpu_seconds:.2f} s, peak {found.peak_mb:.0f} MB"
                )


if __name__ == "__main__":
    main()
