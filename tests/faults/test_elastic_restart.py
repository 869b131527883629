"""F5: torchrun restarts the ranks of a run, and every attempt keeps its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import processes, read_trace
from tests.scripts import run_script
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

pytest.importorskip("torch", reason="torch is not installed")

ATTEMPTS, RANKS = 3, 2

# The ranks need torchrun, and no torch. One of them dies when both have recorded, and torchrun ends the other.
TRAIN = """
import os, pathlib, signal, sys, time
import tracekit
from tests.faults.writers import make_writer

name = "rank{rank}-attempt{attempt}.json" if sys.argv[1] == "tracekit" else f"rank{os.environ['RANK']}.json"
profiler = tracekit.Profiler(make_writer(sys.argv[1], name), record_batches=False, flush_interval=0.05)
profiler.start()
me = profiler.process
with profiler.marker(f"attempt {me.attempt}"):
    pass
profiler.flush()
pathlib.Path(f"ready-{me.attempt}-{me.rank}").touch()
end = time.monotonic() + 200
while not all(pathlib.Path(f"ready-{me.attempt}-{rank}").exists() for rank in range(2)):
    assert time.monotonic() < end
    time.sleep(0.01)
if me.attempt < 2:
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
profiler.stop()
"""


def test_every_attempt_of_a_restarted_rank_keeps_its_trace(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--max-restarts", str(ATTEMPTS - 1)]
    # A writer whose files have the same name for all attempts finds the first one's in its way.
    run_script(tmp_path, *run, "--monitor-interval", "0.1", "train.py", processes.writer)
    paths = sorted(tmp_path.glob("rank*.json"))
    assert [path.name for path in paths] == [
        f"rank{rank}-attempt{attempt}.json" for rank in range(RANKS) for attempt in range(ATTEMPTS)
    ]
    for path in paths:
        assert read_trace(path).metadata["attempt"] == int(path.stem[-1])
    assert len({read_trace(path).metadata["run_id"] for path in paths}) == 1
    report = merge_traces(str(tmp_path / "merged.json"), [str(path) for path in paths], strict=True)
    assert [rank.processes for rank in report.ranks] == [
        [f"rank {rank}", f"rank {rank} · attempt 1", f"rank {rank} · attempt 2"] for rank in range(RANKS)
    ]
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        shown = trace.rows(
            "select process.name, slice.name from slice join thread_track on thread_track.id = track_id "
            "join thread using (utid) join process using (upid) order by process.pid"
        )
    assert shown == [
        (f"rank {rank}" + (f" · attempt {attempt}" if attempt else ""), f"attempt {attempt}")
        for rank in range(RANKS)
        for attempt in range(ATTEMPTS)
    ]
