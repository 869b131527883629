"""What a merge takes does not grow with its inputs: memory with their size, open files with their number."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bad_traces import rank_trace, slice_
from tests.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

MERGE = """
import re, resource, sys
from pathlib import Path
from tracekit.merge import merge_traces
files = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
report = merge_traces(sys.argv[2], sys.argv[3:], overwrite=True)
# Unlike ru_maxrss, this does not count what the process was forked from.
peak_kib = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(report.complete, sum(report.events_in.values()), report.overlaps_moved, peak_kib)
"""


def merge(folder: Path, output: str, *inputs: Path, files: int = 256) -> tuple[int, int, int]:
    """Merge in a process of its own; returns the events, the slices that moved, and the most memory it took, in KiB."""
    done = run_script(folder, "-c", MERGE, str(files), folder / output, *inputs)
    assert done.stderr == ""
    complete, events, moved, kib = done.stdout.split()
    assert complete == "True"
    return int(events), int(moved), int(kib)


def write_trace(path: Path, steps: int) -> int:
    """Write a trace as torch does, with all that a merge remembers: nested and overlapping slices, flows, B and E.

    Returns:
        How many slices overlap.
    """
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 1}, "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    args = '"args":{"External id":%d,"Input Dims":[[64,128],[128,256]]}'
    step = ",\n".join(
        [
            '{"ph":"X","cat":"cpu_op","name":"aten::linear","pid":5,"tid":5,"ts":%d.000,"dur":80.500,' + args + "}",
            '{"ph":"X","cat":"cpu_op","name":"aten::addmm","pid":5,"tid":5,"ts":%d.125,"dur":60.000,' + args + "}",
            '{"ph":"s","id":%d,"pid":5,"tid":5,"ts":%d.125,"cat":"ac2g","name":"ac2g"}',
            '{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":%d.250,"dur":150.000,' + args + "}",
            '{"ph":"f","id":%d,"pid":0,"tid":7,"ts":%d.250,"cat":"ac2g","name":"ac2g","bp":"e"}',
            '{"ph":"B","name":"step %d","pid":5,"tid":6,"ts":%d.000,"args":{}}',
            '{"ph":"E","pid":5,"tid":6,"ts":%d.500,"args":{}}',
        ]
    )
    late = '{"ph":"X","cat":"python_function","name":"main.py(%d)","pid":5,"tid":5,"ts":%d.000,"dur":90.000}'
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ',"traceEvents":[\n')
        for n in range(steps):
            t = 100 * n + 1_000_000
            file.write(step % (t, n, t, n, n, t, t, n, n, t, n, t, t + 90) + ",\n")
        # As Kineto does: the same thread once more, from the beginning.
        for n in range(steps):
            file.write(late % (n, 100 * n + 1_000_000) + (",\n" if n < steps - 1 else "\n"))
        file.write("]}\n")
    return steps // 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("most_steps", [60_000, pytest.param(900_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, most_steps: int) -> None:
    """Also not where half of a stream's slices leave their track, and where two files share their tracks."""
    taken = []
    for steps in (most_steps // 3, most_steps):
        moved = write_trace(tmp_path / "torch.json", steps)
        # Markers on the same thread.
        lines = (slice_(100 * n + 1_000_000, 95, "step", tid=5) for n in range(steps))
        (tmp_path / "rank1.json").write_bytes(rank_trace(*lines, rank=1, pid=5))
        events, found, kib = merge(tmp_path, "out.json", tmp_path / "torch.json", tmp_path / "rank1.json")
        assert events == 9 * steps + 1
        assert found == moved
        taken.append(kib)
    assert max(taken) < 100 * 1024
    assert taken[1] < 1.5 * taken[0]


def test_open_files_do_not_grow_with_the_number_of_inputs(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for rank in range(300):
        # Enough slices that some are kept in files.
        lines = (slice_(10 * n, 15, "s") for n in range(1, 4 if rank else 2000))
        (folder / f"rank{rank}.json").write_bytes(rank_trace(*lines, rank=rank, pid=100 + rank))
    events, moved, _ = merge(tmp_path, "out.json.gz", folder, files=20)
    assert events == 300 * 4 + 1996
    assert moved
