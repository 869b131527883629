"""Markers inside torch.compile make no graph break, whatever was imported first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import sys
{first}
import tracekit
from tracekit import MemoryTraceHandler, Profiler
{second}
import torch

memory = MemoryTraceHandler()
profiler = Profiler(memory, record_batches=False, rank=0)
module_level = tracekit.marker("module level")
reused = profiler.marker("reused")

@tracekit.marker("decorated")
def inner(x):
    return x + 1

def model(x):
    with reused:
        x = x + 1
    with module_level:
        x = x * 2
    with profiler.marker("new here"):
        x = x - 1
    with tracekit.marker("also new", categories=("a",)):
        x = x / 2
    reused.instant()
    reused.counter({{"a": 1}})
    reused.start()
    reused.finish()
    return inner(x)

compiled = torch.compile(model, backend="eager", fullgraph=True)  # fullgraph: a graph break raises
before = compiled(torch.ones(2))
with profiler:
    during = compiled(torch.ones(2))
    assert torch.equal(model(torch.ones(2)), during)
assert torch.equal(before, during)
names = sorted(start.label.name for start, _ in memory.slices)
assert names == sorted(["reused", "module level", "new here", "also new", "reused", "decorated"]), names
print("whole graph")
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("import torch", "", id="torch first"),
        pytest.param("import torch, torch._dynamo", "", id="dynamo first", marks=pytest.mark.slow),
        pytest.param("", "", id="tracekit first", marks=pytest.mark.slow),
        pytest.param("", "import torch._dynamo", id="dynamo last", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_function_with_markers_is_one_graph(tmp_path: Path, first: str, second: str) -> None:
    done = run_script(tmp_path, "-c", PROGRAM.format(first=first, second=second))
    assert done.stdout.strip() == "whole graph"
