"""Measure the slow-down of a real training step by recording, while another thread writes.

A step trains a network of fifty layers, with two slices around each in the forward pass, and is made to take about 10 ms: 10,000
slices a second. Blocks of steps with and without tracekit take turns. Not on one CPU: the writer thread would then take
from the step what a machine with a second CPU gives it. If there is a GPU, the network trains there, and each step waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tests.benchmarks.measure import Spread
from tests.benchmarks.pure_python import beside
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.measure import Effort

    Step = Callable[[Any, Any], None]
    """A training step with these two context managers around each layer."""

NAME = "training-loop"
GROUP = 5
LAYERS = 50
WIDTH = 64
STEP_NS = 10_000_000


def rows(effort: Effort) -> Iterator[Row]:
    """Measure a training loop, with the compiled core and in pure Python."""
    yield from beside(own_rows(effort), __name__, effort)


def own_rows(effort: Effort) -> Iterator[Row]:
    """Measure the mean step and the 98th percentile, with and without recording."""
    mean, tail = "mean step of a torch training loop", "98th percentile of the step"
    try:
        step = training_step(importlib.import_module("torch"))
    except ImportError as error:
        for what in (mean, tail):
            yield Row(NAME, what, None, remarks=f"not installed ({error.name})")
        return
    plain, recorded, nothing = [], [], contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder:
        handler = tracekit.JSONTraceHandler(Path(folder) / "rank{rank}.json")
        with tracekit.Profiler(handler, rank=0) as profiler:
            layer, linear = profiler.marker("layer"), profiler.marker("linear")

            def plain_step() -> None:
                step(nothing, nothing)

            def recorded_step() -> None:
                step(layer, linear)
                profiler.step()

            for _ in range(effort.blocks):
                plain.append(times_of(plain_step, effort.block_steps))
                recorded.append(times_of(recorded_step, effort.block_steps))
                profiler.flush()  # so that no events are written during the plain steps
        dropped = sum(profiler.stats.dropped.values())
    slower = [(sum(with_it) / sum(without) - 1) * 100 for with_it, without in zip(recorded, plain, strict=True)]
    # The 98th percentile needs more steps than a block has.
    longer = [
        (percentile_98(recorded[first : first + GROUP]) - percentile_98(plain[first : first + GROUP])) / 1e6
        for first in range(0, effort.blocks, GROUP)
    ]
    step_ms = statistics.median(sum(times) for times in plain) / effort.block_steps / 1e6
    remarks = f"{step_ms:.1f} ms without, {LAYERS * 2 / step_ms * 1000:,.0f} slices/s, {dropped} dropped"
    tail_remarks = f"of {effort.block_steps * min(GROUP, effort.blocks)} steps, {len(longer)} times"
    yield Row(NAME, mean, Spread.of(slower), " % slower", at_most=1.0, remarks=remarks)
    yield Row(NAME, tail, Spread.of(longer), " ms longer", at_most=1.0, remarks=tail_remarks)


def training_step(torch: Any) -> Step:
    """Return a training step, its batch as large as a step of about 10 ms takes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    linears = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)).to(device)
    optimizer = torch.optim.SGD(linears.parameters(), lr=1e-4)

    nothing = contextlib.nullcontext()
    samples = torch.randn(8, WIDTH, device=device)

    def step(layer: Any, linear: Any) -> None:
        values = samples
        for transform in linears:
            with layer:
                with linear:
                    values = transform(values)
                values = values.relu()
        loss = values.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU

    def plain() -> None:
        step(nothing, nothing)

    times_of(plain, 50)  # the first steps of a process are slower than those that follow
    for _ in range(8):
        share = statistics.median(times_of(plain, 30)) / STEP_NS
        if 0.95 < share < 1.05:
            break
        samples = torch.randn(max(8, min(int(len(samples) / share), 4 * len(samples), 100_000)), WIDTH, device=device)
    return step


def times_of(step: Callable[[], None], steps: int) -> list[int]:
    """Return the wall times of a number of steps, in ns."""
    times = []
    for _ in range(steps):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return times


def percentile_98(blocks: list[list[int]]) -> float:
    """Return what 98 of 100 times do not exceed."""
    times = sorted(time_ns for block in blocks for time_ns in block)
    return times[len(times) * 98 // 100]
