"""Measure the speed and memory of ``tracekit summary``, of unpacking alone, of jq, and of HolisticTraceAnalysis."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import ROOT, Job, NotMeasuredError, run
from tests.benchmarks.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs

NAME = "summary"
MOST_MB = 500.0
# Between this process and the command, since Linux counts what a process had before its program was started, that of its parent.
WAITS = """
import json, os, sys
quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
_, status, usage = os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""
JQ = '[.traceEvents[] | select(.ph == "X")] | group_by(.name) | map([.[0].name, length, (map(.dur) | add)])'
# The part of HTA that answers the questions of `summary` about GPUs. It reads each rank into a table in a process.
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    ranks = dict(enumerate(sys.argv[1:]))
    found = TraceAnalysis(trace_files=ranks, trace_dir="").get_temporal_breakdown(visualize=False)
    sys.exit(len(found) != len(ranks))
"""


@dataclass(frozen=True, slots=True)
class Took:
    """The cost of a command: wall time, CPU time, and the largest memory of one of its processes."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Summarise a merged trace, and then the traces of ranks."""
    yield from _merged(effort, inputs)
    yield from _beside_hta(effort, inputs)


def _merged(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Summarise one merged trace, plain and packed; then a smaller one, also with jq, which holds all of it."""
    large, small = inputs.folder / "summary.json", inputs.folder / "summary_small.json"
    try:
        run(Job(inputs.torch(effort.merge_bytes, effort.merge_files)), inputs.folder, keep=large)
        run(Job(inputs.torch(effort.peer_bytes, effort.peer_files)), inputs.folder, keep=small)
    except NotMeasuredError as error:
        yield Row(NAME, "summary", None, remarks=str(error))
        return
    packed = large.with_suffix(".json.gz")
    with packed.open("xb") as file:
        subprocess.run(["gzip", "-1", "-c", str(large)], stdout=file, check=True)
    tracekit = [sys.executable, "-m", "tracekit", "summary", "--json"]
    cached = ["env", f"TRACEKIT_CACHE={inputs.folder / 'cache'}", *tracekit, str(large)]
    measure(cached)
    commands = {
        "gzip -dc of a merged trace": ["gzip", "-dc", str(packed)],
        "summary of it, plain": [*tracekit, "--no-cache", str(large)],
        "summary of it, from the cache": cached,
        "summary of it, packed": [*tracekit, "--no-cache", str(packed)],
        "summary of a smaller one": [*tracekit, "--no-cache", str(small)],
    }
    if shutil.which("jq") is not None:
        commands["jq: count and total of each name of it"] = ["jq", "-c", JQ, str(small)]
    taken: dict[str, list[Took]] = {what: [] for what in commands}
    for _ in range(min(3, effort.merge_rounds)):
        for what, command in commands.items():
            taken[what].append(measure(command))
    for what, command in commands.items():
        megabytes = (small if command[-1] == str(small) else large).stat().st_size / 1e6
        cpu = statistics.median(megabytes / one.cpu_seconds for one in taken[what])
        peak = max(one.peak_mb for one in taken[what])
        remarks = f"{number(cpu)} MB a second of CPU time, {number(peak)} MB of memory, of {number(megabytes)} MB"
        yield Row(NAME, what, Spread.of([megabytes / one.seconds for one in taken[what]]), " MB/s", remarks=remarks)
    if len(commands) == 5:
        yield Row(NAME, "jq", None, remarks="not installed (jq)")
    peaks = Spread.of([one.peak_mb for one in taken["summary of it, plain"]])
    of = f"of {number(large.stat().st_size / 1e6)} MB"
    yield Row(NAME, "most memory of a summary", peaks, " MB", at_most=MOST_MB, remarks=of)
    for path in (large, small, packed):
        path.unlink()


def _beside_hta(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Summarise traces of torch that are not merged, packed as torch leaves them, and have HTA load them."""
    what = "traces of ranks, beside HTA: load and temporal breakdown"
    wanted = "import importlib.util, sys; sys.exit(importlib.util.find_spec('hta') is None)"
    if subprocess.run([effort.hta, "-c", wanted], check=False, capture_output=True).returncode:
        yield Row(NAME, what, None, remarks="not installed (HolisticTraceAnalysis; see --hta)")
        return
    packed = inputs.packed(inputs.torch(effort.peer_bytes, effort.peer_files))
    paths = [str(path) for path in packed.paths]
    program = inputs.folder / "hta_load.py"
    program.write_text(HTA, encoding="utf-8")
    ours, theirs = [], []
    try:
        for _ in range(min(3, effort.merge_rounds)):
            ours.append(measure([sys.executable, "-m", "tracekit", "summary", "--json", "--no-cache", *paths]))
            theirs.append(measure([effort.hta, str(program), *paths]))
    except NotMeasuredError as error:
        yield Row(NAME, what, None, remarks=str(error))
        return

    def told(taken: list[Took]) -> str:
        rate = packed.megabytes / statistics.median(one.seconds for one in taken)
        return f"{number(rate)} MB/s, {number(max(one.peak_mb for one in taken))} MB in its largest process"

    ratio = Spread.of([their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)])
    size = f"{number(packed.megabytes)} MB in {len(paths)} files, packed"
    yield Row(NAME, what, ratio, " x HTA", remarks=f"{size}; {told(theirs)}; tracekit {told(ours)}")


def measure(command: list[str]) -> Took:
    """Run a command, its output thrown away."""
    began = time.perf_counter()
    waits = [sys.executable, "-I", "-S", "-c", WAITS, *command]
    done = subprocess.run(waits, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - began
    code, cpu_seconds, peak_kib = json.loads(done.stdout)
    if code not in (0, 3):
        raise NotMeasuredError(f"{command[0]} ended with {code}")
    return Took(seconds, cpu_seconds, peak_kib * 1024 / 1e6)
