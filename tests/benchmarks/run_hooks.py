"""Measure how much slower a real training step becomes below ``tracekit run``.

One process trains a network with steps of about 10 ms. It takes the hooks of ``tracekit run`` out and puts them back, a block of
steps each, and compares neighbouring blocks: two processes differ by more than the hooks cost. Several processes, one after the
other, because each has one layout of its memory.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.benchmarks.measure import Effort

NAME = "run-hooks"
PROCESSES = 3
MIN_BLOCKS = 20
"""Of fewer blocks, one process is enough: the start of a process takes longer."""
CLOCKS = {"wall time": time.perf_counter_ns, "CPU time of the training thread": time.thread_time_ns}
WARM_UP = 5
EPOCH_STEPS = 8
"""Steps of a block: an epoch, so that the hooks change between two requests for data."""
LAYERS = 40
WIDTH = 96
BATCH = 192
"""Chosen for a step of about 10 ms."""


def rows(effort: Effort) -> Iterator[Row]:
    """Measure a training loop below ``tracekit run``, by two clocks, and what its other threads use."""
    what = "training loop below tracekit run"
    if importlib.util.find_spec("torch") is None:
        yield from (Row(NAME, f"{what}: {clock}", None, remarks="not installed (torch)") for clock in CLOCKS)
        return
    processes = PROCESSES if effort.blocks >= MIN_BLOCKS else 1
    found = [_measure(max(5, 12 * effort.blocks // processes)) for _ in range(processes)]
    for clock in CLOCKS:
        pairs = [pair for blocks in found for pair in blocks[clock]]
        step_ns = statistics.median(without for without, _ in pairs)
        slower = _interval([(recorded - without) / step_ns * 100 for without, recorded in pairs])
        remarks = f"{_step_ms(step_ns)} without, {len(pairs)} pairs of {EPOCH_STEPS} steps, interval of 95 %"
        yield Row(NAME, f"{what}: {clock}", slower, " % slower", at_most=1.0, remarks=remarks)
    beside = Spread.of([share for blocks in found for share in blocks["beside"]])
    yield Row(NAME, f"{what}: CPU time of its other threads", beside, " % of the training thread's")


def _step_ms(block_ns: float) -> str:
    """Return the time of a step, of that of a block."""
    return f"{block_ns / EPOCH_STEPS / 1e6:.1f} ms"


def _interval(differences: Sequence[float]) -> Spread:
    """Return the median, and between which two values of a sample the true one lies with 95 %, by the test of signs."""
    ordered, count = sorted(differences), len(differences)
    first = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return Spread(statistics.median(ordered), ordered[first], ordered[count - 1 - first])


def _measure(pairs: int) -> dict[str, Any]:
    """Train in a separate process. Return (without, recorded) in ns of each pair of blocks, by clock."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
    with tempfile.TemporaryDirectory() as folder:
        variables = {"TRACEKIT_AUTO": "1", "TRACEKIT_MERGE": "0", "TRACEKIT_QUIET": "1", "TRACEKIT_FOLDER": folder}
        path = os.fspath(Path(__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(pairs)],
            env={**own, **variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class _Hooks:
    """The hooks of ``tracekit run`` in this process, which can be taken out and put back."""

    def __init__(self, torch: Any) -> None:
        """Install them. torch has just been imported."""
        optimizers = sys.modules["torch.optim.optimizer"]
        loaders = torch.utils.data.dataloader
        owners = (torch.autograd, optimizers.Optimizer, loaders.DataLoader, loaders._BaseDataLoaderIter)
        self._callbacks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        before = [dict(vars(owner)) for owner in owners]
        importlib.import_module("tracekit.auto.torch_hooks").instrument(torch)
        self._replaced = [
            (owner, name, original, vars(owner)[name])
            for owner, originals in zip(owners, before, strict=True)
            for name, original in originals.items()
            if vars(owner)[name] is not original and name != "__init__"
        ]
        self._registered = [dict(callbacks) for callbacks in self._callbacks]
        self._model: Any = None
        assert len(self._replaced) >= 4, "the hooks are elsewhere: this measures nothing"

    def follow(self, model: Any) -> None:
        """Switch the call of the root module too. Its optimizer has been made."""
        self._model, self._call = model, vars(model)["_compiled_call_impl"]

    def use(self, on: bool) -> None:
        """Take the hooks out, or put them back."""
        for owner, name, original, hooked in self._replaced:
            setattr(owner, name, hooked if on else original)
        for callbacks, registered in zip(self._callbacks, self._registered, strict=True):
            callbacks.clear()
            callbacks.update(registered if on else {})
        vars(self._model).pop("_compiled_call_impl", None)
        if on:
            vars(self._model)["_compiled_call_impl"] = self._call


def train(pairs: int) -> dict[str, Any]:
    """Train pairs of blocks with and without the hooks, and return the times of `_measure`."""
    import torch

    hooks = _Hooks(torch)
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    hooks.follow(model)
    data = torch.utils.data.TensorDataset(torch.randn(EPOCH_STEPS * BATCH, WIDTH))
    slices = [slice(at * BATCH, (at + 1) * BATCH) for at in range(EPOCH_STEPS)]
    loader = torch.utils.data.DataLoader(data, batch_size=None, sampler=slices)

    def block(on: bool, clocks: Sequence[Callable[[], int]] = tuple(CLOCKS.values())) -> list[int]:
        hooks.use(on)
        before = [clock() for clock in clocks]
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return [clock() - start for clock, start in zip(clocks, before, strict=True)]

    for turn in range(2 * WARM_UP):
        block(turn % 2 == 0)
    times: dict[bool, list[list[int]]] = {False: [], True: []}
    for turn in range(pairs):
        for on in (False, True) if turn % 2 else (True, False):
            times[on].append(block(on))
    whole = [block(True, (time.process_time_ns, time.thread_time_ns)) for _ in range(pairs)]
    process_ns, thread_ns = (sum(column) for column in zip(*whole, strict=True))
    found: dict[str, Any] = {"beside": [(process_ns / thread_ns - 1) * 100]}
    for clock, without, recorded in zip(
        CLOCKS, zip(*times[False], strict=True), zip(*times[True], strict=True), strict=True
    ):
        found[clock] = list(zip(without, recorded, strict=True))
    return found


if __name__ == "__main__":
    json.dump(train(int(sys.argv[1])), sys.stdout)
