"""Run one merge, for `tests.benchmarks.merge_runs` to measure its time and memory.

It reads the job from standard input, and prints the cost. Time is counted from the call to the closed output; the start
of Python is not part of it, that of tracekit's worker processes is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import merge_peers
from tracekit.errors import ConfigError
from tracekit.merge import merge_traces

PLAIN = (".json", ".json.gz")


def main() -> None:
    """Run the job of standard input, and print its cost or, under ``missing``, the reason against it."""
    told = json.load(sys.stdin)
    output, inputs = Path(told["output"]), told["inputs"]
    before = sum(os.times()[:4])  # of this process and of those that it has waited for
    try:
        if told["how"] in OWN:
            took = OWN[told["how"]](output, inputs, told["workers"], told["align"])
        else:
            start = time.perf_counter()
            getattr(merge_peers, told["how"])(output, [Path(path) for path in inputs])
            took = time.perf_counter() - start
    except FileNotFoundError as error:
        found: dict[str, Any] = {"missing": f"not installed ({error.filename})"}
    except (ConfigError, ImportError):
        # A format, or a way to merge, that there is not.
        if told["workers"] == 1 and output.name.endswith(PLAIN):
            raise
        found = {"missing": "not built"}
    else:
        cpu_seconds = sum(os.times()[:4]) - before
        found = {"seconds": took, "cpu_seconds": cpu_seconds, "peak_bytes": _peak_bytes()}
    print(json.dumps(found))


def command(output: Path, inputs: list[str], workers: int, align: str) -> float:
    """Merge with the command ``tracekit merge``; return the time in seconds."""
    options = ["--output", str(output), "--workers", str(workers), "--align", align, "--quiet"]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tracekit", "merge", *options, *inputs], check=True)
    return time.perf_counter() - start


def tracekit(output: Path, inputs: list[str], workers: int, align: str) -> float:
    """Merge with tracekit; return the time in seconds."""
    options: dict[str, Any] = {"align": align}
    with contextlib.ExitStack() as stack:
        start = time.perf_counter()
        if workers > 1:
            pools = importlib.import_module("tracekit.worker_processes")
            options["executor"] = stack.enter_context(pools.process_pool(workers))
        report = merge_traces(str(output), inputs, **options)
        took = time.perf_counter() - start
    assert report.complete, "; ".join(report.lines())
    return took


def parts(output: Path, inputs: list[str], workers: int, align: str) -> float:
    """Merge parts of the inputs at the same time, each into another file; return the time in seconds."""
    outputs = [str(output.with_name(f"part{number}-{output.name}")) for number in range(workers)]
    start = time.perf_counter()
    with importlib.import_module("tracekit.worker_processes").process_pool(workers + 1) as pool:  # this process waits
        tasks = [
            pool.submit(merge_traces, name, inputs[number::workers], align=align) for number, name in enumerate(outputs)
        ]
        assert all(task.result().complete for task in tasks)
    took = time.perf_counter() - start
    for name in outputs:
        os.rename(name, output)  # the last one stays, for the caller to remove
    return took


OWN = {"tracekit": tracekit, "command": command, "parts": parts}
"""The ways in which tracekit merges."""


def _peak_bytes() -> int:
    """Return the most memory that this process had, which those who look from outside may have missed; 0 if not known.

    Not ``ru_maxrss``: Linux counts the memory that the process had before ``exec``, which is that of its parent.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
