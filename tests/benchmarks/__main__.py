"""The command line of the benchmarks: see ``scripts/bench --help``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks import end_to_end, garbage, import_time, marker_cost, memory, threads, training_loop
from tests.benchmarks.measure import FULL, QUICK
from tests.benchmarks.table import as_markdown, as_text

# In the order of the table. The benchmarks of merging will stand behind those of recording.
BENCHMARKS: list[Any] = [marker_cost, threads, end_to_end, memory, garbage, training_loop, import_time]


def main() -> None:
    """Measure what was asked for, and print the table."""
    arguments = _arguments()
    effort = QUICK if arguments.quick else FULL
    if arguments.slices is not None:
        effort = dataclasses.replace(effort, streamed_slices=arguments.slices)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler would chat between the lines
    rows = []
    for benchmark in BENCHMARKS:
        if not arguments.only or benchmark.NAME in arguments.only:
            for row in benchmark.rows(effort):
                rows.append(row)
                print(f"  {row.what}", file=sys.stderr)
    print(as_markdown(rows) if arguments.markdown else as_text(rows))
    print("\n" + _machine())
    if arguments.json is not None:
        described = {"machine": _machine(), "quick": arguments.quick, "rows": [row.as_json() for row in rows]}
        arguments.json.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure what tracekit costs, beside its peers in the same process. Figures are medians of rounds in "
        "which both sides take turns, with the least and the greatest. They hold for this machine; compare ratios.",
    )
    names = [benchmark.NAME for benchmark in BENCHMARKS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument(
        "--quick", action="store_true", help="run everything once with tiny counts; no figure means much"
    )
    parser.add_argument("--slices", metavar="N", type=int, help="slices to stream while the memory is watched")
    parser.add_argument("--markdown", action="store_true", help="print the table for the documentation")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE")
    return parser.parse_args()


def _machine() -> str:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()} {platform.machine()}, {cpus} CPUs"


if __name__ == "__main__":
    main()
