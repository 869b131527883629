"""The loop in torchtitan's form runs on two ranks, and is one timeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scripts import run_script
from tracekit import merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_a_loop_in_torchtitans_form_is_one_timeline_with_torchs_traces(tmp_path: Path, engine: Engine) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_script(tmp_path, *torchrun, EXAMPLES / "torchtitan_loop.py", TRACEKIT_RUN_ID="example")
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


STACKS = """
from tracekit import JSONTraceHandler, Profiler, TorchProfiler
import torch

with Profiler(JSONTraceHandler("rank.json"), sources=TorchProfiler("torch-{batch}.json", with_stack=True)) as profiler:
    for _ in range(200):
        with profiler.marker("mine"):
            torch.ones(2) + 1
        profiler.marker("count").counter({"x": 1})
"""


def test_stacks_of_torch_show_nothing_of_the_recording_but_the_markers(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    subprocess.run([sys.executable, "-c", STACKS], cwd=tmp_path, env=environment, check=True, timeout=240)
    events = json.loads((tmp_path / "torch-0.json").read_text("utf-8"))["traceEvents"]
    frames = [event for event in events if event.get("cat") == "python_function"]
    # Its markers are functions of Python or, with the compiled core, built-in ones.
    (training,) = {event["tid"] for event in frames if event["name"].startswith("<built-in method ones of")}
    functions = [event["name"] for event in frames if event["tid"] == training]
    own = {name.rpartition("tracekit/")[2].partition("(")[0] for name in functions if "tracekit/" in name}
    # These end the window, which is recorded until then.
    own -= {"sources/torch_profiler.py", "sources/torch_window.py", "timestamp.py", "training_time.py"}
    assert len(functions) > 200
    assert {name for name in own if not name.startswith("recording/")} == set()


@pytest.mark.parametrize(
    "name",
    ["accelerate_loop.py", "composer_trainer.py", "plain_loop.py", "torchtitan_loop.py", "transformers_trainer.py"],
)
def test_the_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) <= 30
