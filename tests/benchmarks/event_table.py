"""Measure the event table: building it, and asking it again. ``python -m tests.benchmarks.event_table --megabytes 1000``.

The inputs are the real ranks of DLRM, grown (see `tests.benchmarks.grown_traces`). Each command is a new process; its CPU time
includes the start of Python and the import of DuckDB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.grown_traces import DLRM, GLOO, grow, real_ranks

QUESTIONS = {
    "group by name": "select name, count(*), sum(self_ns) as s from events group by 1 order by s desc limit 10",
    "kernels by rank and step": "select rank, step, sum(duration_ns) from events where category = 'kernel' group by all",
    "exact quantiles": "select name, quantile_cont(duration_ns, 0.99) from events where phase = 'X' group by 1",
}


@dataclass(frozen=True)
class Run:
    """One command: CPU and wall-clock seconds, and the peak memory of its largest process in MB."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def run(arguments: list[str], cache: Path, processors: int) -> Run:
    """Run ``tracekit query`` on some of the processors."""
    usable = sorted(os.sched_getaffinity(0))[:processors]
    environment = os.environ | {"TRACEKIT_CACHE": str(cache)}
    before = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "query", "--quiet", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, usable),  # noqa: PLW1509 - this process has one thread
    )
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, arguments
    process.returncode = 0
    return Run(used.ru_utime + used.ru_stime, time.monotonic() - before, used.ru_maxrss / 1024)


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of all inputs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gloo", action="store_true", help="grow the ranks of the gloo run instead")
    told = parser.parse_args()
    sources = real_ranks(GLOO if told.gloo else DLRM)
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"
        traces = folder / "traces"
        traces.mkdir()
        for rank, source in enumerate(sources):
            grow(source, traces / f"rank{rank}.json", told.megabytes * 10**6 // len(sources))
        size_mb = sum(path.stat().st_size for path in traces.iterdir()) / 1e6
        print(f"{len(sources)} files, {size_mb:,.0f} MB")
        ask = [str(traces), "select count(*) from events"]
        for processors in (1, 2):
            for number in range(told.rounds):
                found = run(ask, cache / f"{processors}-{number}", processors)
                print(
                    f"build, {processors} processors: {size_mb / found.cpu_s:,.0f} MB/s of CPU time, "
                    f"{size_mb / found.wall_s:,.0f} MB/s of wall-clock time, peak {found.peak_mb:.0f} MB"
                )
        for what, sql in QUESTIONS.items():
            for _ in range(told.rounds):
                found = run([str(traces), sql], cache / "1-0", 2)
                print(f"again, {what}: {found.wall_s:.2f} s, CPU {found.cpu_s:.2f} s, peak {found.peak_mb:.0f} MB")


if __name__ == "__main__":
    main()
