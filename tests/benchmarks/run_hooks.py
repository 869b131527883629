"""Measure how much slower a real training step becomes below ``tracekit run``.

Two processes train the same network with steps of about 10 ms, one with the hooks of ``tracekit run`` and one without. They take
turns, a block of steps each, and the blocks that nothing else slowed are compared. Several pairs, because two processes differ
anyway.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort

NAME = "run-hooks"
PAIRS = 4
MIN_BLOCKS = 20
"""Of fewer blocks, one pair is enough: the start of a process takes longer."""
CLOCKS = ("wall time", "CPU time of the training thread", "CPU time of the process")
WARM_UP = 50
BLOCK_STEPS = 10
"""Few, so that some blocks are undisturbed."""
LAYERS = 40
WIDTH = 96
BATCH = 192
"""Chosen for a step of about 10 ms."""


def rows(effort: Effort) -> Iterator[Row]:
    """Measure a training loop below ``tracekit run``, by three clocks."""
    names = [f"training loop below tracekit run: {clock}" for clock in CLOCKS]
    if importlib.util.find_spec("torch") is None:
        for name in names:
            yield Row(NAME, name, None, remarks="not installed (torch)")
        return
    slower: list[list[float]] = [[] for _ in CLOCKS]
    steps_ms = []
    pairs = PAIRS if effort.blocks >= MIN_BLOCKS else 1
    for _ in range(pairs):
        blocks: dict[bool, list[list[int]]] = {False: [], True: []}
        with tempfile.TemporaryDirectory() as folder, _Trainer(folder, "") as plain, _Trainer(folder, "1") as recorded:
            for turn in range(max(5, 5 * effort.blocks // pairs)):
                for trainer in (plain, recorded) if turn % 2 else (recorded, plain):
                    blocks[trainer is recorded].append(trainer.block(BLOCK_STEPS))
        without, below = (_undisturbed(blocks[side]) for side in (False, True))
        for share, before, after in zip(slower, without, below, strict=True):
            share.append((after / before - 1) * 100)
        steps_ms.append(without[0] / BLOCK_STEPS / 1e6)
    remarks = (
        f"{statistics.median(steps_ms):.1f} ms without, {pairs} pairs of processes, {len(blocks[True])} blocks each"
    )
    for name, share in zip(names, slower, strict=True):
        yield Row(NAME, name, Spread.of(share), " % slower", at_most=1.0, remarks=remarks)


def _undisturbed(blocks: list[list[int]]) -> list[float]:
    """Return by clock the time that a tenth of the blocks does not exceed: those that nothing else slowed."""
    return [statistics.quantiles(times, n=10)[0] for times in zip(*blocks, strict=True)]


class _Trainer:
    """A process that trains a block of steps when it is asked to."""

    def __init__(self, folder: str, auto: str) -> None:
        path = [os.fspath(Path(__file__).parents[2])]
        if auto:
            path.insert(0, os.fspath(Path(tracekit.__file__).parent / "auto" / "bootstrap"))
        own = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
        variables = {"TRACEKIT_AUTO": auto, "TRACEKIT_MERGE": "0", "TRACEKIT_QUIET": "1", "TRACEKIT_FOLDER": folder}
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**own, **variables, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> _Trainer:
        self.block(WARM_UP)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")

    def block(self, steps: int) -> list[int]:
        """Return the time of a number of steps by each clock, in ns."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return [int(word) for word in self._process.stdout.readline().split()]


def train() -> None:
    """Train as many steps as each line of standard input says; print their times."""
    import torch

    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(8 * BATCH, WIDTH))
    loader = torch.utils.data.DataLoader(data, batch_size=None, sampler=[slice(at, at + BATCH) for at in range(8)])
    clocks = (time.perf_counter_ns, time.thread_time_ns, time.process_time_ns)
    for line in sys.stdin:
        before = [clock() for clock in clocks]
        left = int(line)
        while left:
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                left -= 1
                if not left:
                    break
        print(*(clock() - start for clock, start in zip(clocks, before, strict=True)), flush=True)


if __name__ == "__main__":
    train()
