"""The stacks that torch.profiler records of a loop that is recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

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
    run_script(tmp_path, "-c", STACKS)
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
