"""The command line of the benchmarks: see ``scripts/bench --help``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks import end_to_end, garbage, import_time, marker_cost, memory, run_hooks, threads, training_loop
from tests.benchmarks.measure import FULL, QUICK
from tests.benchmarks.table import Row, as_markdown, as_text, between_markers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort

# In the order of the table. The modules of merging need psutil and are imported when they are used.
RECORDING: list[Any] = [marker_cost, threads, end_to_end, memory, garbage, training_loop, run_hooks, import_time]
MERGE = ("merge-speed", "merge-peers", "merge-memory", "merge-growth", "summary")
HALVES = ("recording", "merge")

DOCUMENT = Path(__file__).with_name("README.md")
PLOT = "merge_growth.svg"
MARKERS = ("<!-- merge table: begin -->", "<!-- merge table: end -->")
ROOM = 8
"""How many times the size of the merged traces their folder needs: inputs of several kinds, and an output."""


def main() -> None:
    """Measure what was asked for, and print the table."""
    arguments = _arguments()
    effort = _effort(arguments)
    os.environ.setdefault("TRACEKIT_QUIET", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler would chat between the lines
    rows: list[Row] = []
    if arguments.half in (None, "recording"):
        for benchmark in RECORDING:
            if not arguments.only or benchmark.NAME in arguments.only:
                rows += _told(benchmark.rows(effort))
    merged: list[Row] = []
    machine = _machine()
    if arguments.half in (None, "merge") and (not arguments.only or set(arguments.only) & set(MERGE)):
        folder = arguments.folder or _fast_folder(effort.merge_bytes * ROOM)
        machine += f"; files in {folder}"
        merged += _told(_merge_rows(effort, arguments.only, folder))
    rows += merged
    print(as_markdown(rows) if arguments.markdown else as_text(rows))
    print(f"\n{machine}")
    if arguments.json is not None:
        described = {"machine": machine, "quick": arguments.quick, "rows": [row.as_json() for row in rows]}
        arguments.json.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    if arguments.write is not None:
        _write(merged, arguments.write, machine)


def _merge_rows(effort: Effort, only: list[str] | None, folder: Path | None) -> Iterator[Row]:
    from tests.benchmarks import merge_beside, merge_growth, merge_memory, merge_speed, summary_speed
    from tests.benchmarks.merge_inputs import Inputs

    with Inputs(folder=folder) as inputs:
        for benchmark in (merge_speed, merge_beside, merge_memory, merge_growth, summary_speed):
            if not only or benchmark.NAME in only:
                yield from benchmark.rows(effort, inputs)


def _told(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows, and print the name of each to standard error."""
    for row in rows:
        print(f"  {row.what}", file=sys.stderr)
        yield row


def _write(rows: list[Row], folder: Path, machine: str) -> None:
    """Write the table of merging into the documentation, and its plot into the same folder."""
    from tests.benchmarks.merge_growth import Point
    from tests.benchmarks.plot import draw

    command = " ".join(("scripts/bench", *sys.argv[1:]))
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    draw([row for row in rows if isinstance(row, Point)], folder / PLOT)
    caption = "Time and memory of a merge, by the size of the input and by the number of ranks"
    text = f"{as_markdown(rows)}\n\n`{command}`: {machine}, {today}.\n\n![{caption}]({PLOT})"
    document = folder / DOCUMENT.name
    document.write_text(between_markers(document.read_text(encoding="utf-8"), MARKERS, text), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the cost of tracekit and its peers: recording in one process, merging in a new process for each "
        "measurement. All sides take turns. Figures are the medians of the rounds, with the least and the greatest. They "
        "hold for this machine; compare ratios.",
    )
    names = [benchmark.NAME for benchmark in RECORDING] + list(MERGE)
    parser.add_argument("half", nargs="?", choices=HALVES, help="measure one half only")
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument(
        "--quick", action="store_true", help="run everything once with tiny counts; no figure means much"
    )
    parser.add_argument("--size", metavar="MB", type=float, help="size of the traces that are merged (default: 1000)")
    parser.add_argument("--rounds", metavar="N", type=int, help="how often merges take turns (default: 5)")
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        help="where traces are made and merged, 8 times their size (default: /dev/shm if it has the room, else the "
        "system's place for temporary files); removed in the end",
    )
    parser.add_argument(
        "--hta",
        metavar="PYTHON",
        default=sys.executable,
        help="the Python of an environment with HolisticTraceAnalysis, which brings JupyterLab (default: this one)",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table for the documentation")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE")
    parser.add_argument(
        "--write",
        metavar="DIR",
        type=Path,
        nargs="?",
        const=DOCUMENT.parent,
        help="put the table of merging into README.md of this folder, between its two markers, and draw the plot "
        "(default: tests/benchmarks)",
    )
    arguments = parser.parse_args()
    if arguments.write is not None:
        if arguments.half == "recording" or arguments.only:
            parser.error("--write wants the whole table of merging: leave out --only and recording")
        # Said now and not after the measuring, which takes long.
        try:
            between_markers((arguments.write / DOCUMENT.name).read_text(encoding="utf-8"), MARKERS, "")
            importlib.import_module("matplotlib")
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"--write {arguments.write}: {error}")
    return arguments


def _effort(arguments: argparse.Namespace) -> Effort:
    effort = dataclasses.replace(QUICK if arguments.quick else FULL, hta=arguments.hta)
    if arguments.size is not None:
        size_bytes = int(arguments.size * 1e6)
        peer_bytes = min(effort.peer_bytes, max(300_000, size_bytes // 4))
        effort = dataclasses.replace(effort, merge_bytes=size_bytes, peer_bytes=peer_bytes)
    if arguments.rounds is not None:
        effort = dataclasses.replace(effort, merge_rounds=arguments.rounds)
    return effort


def _fast_folder(needed_bytes: int) -> Path:
    """Return a folder in memory, where the figures are those of the merge and not those of a disk, if there is room."""
    memory_folder = Path("/dev/shm")
    if memory_folder.is_dir() and shutil.disk_usage(memory_folder).free > needed_bytes:
        return memory_folder
    return Path(tempfile.gettempdir())


def _machine() -> str:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()} {platform.machine()}, {cpus} CPUs"


if __name__ == "__main__":
    main()
