"""The loop in torchtitan's form runs on two ranks, and is one timeline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tracekit import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_loop_in_torchtitans_form_is_one_timeline_with_torchs_traces(tmp_path: Path, engine: Engine) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, str(EXAMPLES / "torchtitan_loop.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRACEKIT_RUN_ID": "example"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "traces" / "example")])
    assert report.complete
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        counts = dict(trace.rows("select name, count(*) from slice group by name"))
    # Of 6 steps the schedule records 3 on each of 2 ranks, and torch.profiler 2 of these.
    expected = {"batch": 6, "dataloader": 12, "forward backward": 12, "optimizer": 6}
    assert expected.items() <= counts.items()
    assert sum(count for name, count in counts.items() if name.startswith("ProfilerStep#")) == 4
    assert counts["c10d::_reduce_scatter_base_"] == 8  # that the ranks are really sharded


@pytest.mark.parametrize(
    "name", ["accelerate_loop.py", "composer_trainer.py", "torchtitan_loop.py", "transformers_trainer.py"]
)
def test_the_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) <= 30
