"""A timer inside a function that torch.compile compiles measures every call; that takes a break of the graph."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import torch
from tracekit import MemoryTraceHandler, Profiler, Timers

timers = Timers(2, "max")
with timers("inside"):
    pass

@torch.compile(backend="eager")
def model(x):
    with timers("inside"):
        x = x * 2
    return x + 1

memory = MemoryTraceHandler()
with Profiler(memory, record_batches=False):
    results = [model(torch.ones(2) + number).tolist() for number in range(3)]
print(results, timers.snapshot().of("inside")[0].count, len(memory.slices))
"""


@pytest.mark.slow
def test_a_timer_in_a_compiled_function_measures() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[3.0, 3.0], [5.0, 5.0], [7.0, 7.0]] 4 3\n"
