"""Loops with a real Accelerator and tracekit's recorder; prints what was seen as JSON."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import sys
from collections import Counter
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, marker
from tracekit.integrations.accelerate import AcceleratorRecorder

TOKENS = 4  # of each sample


class Texts(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with marker("read"):
            return {"input_ids": torch.arange(TOKENS), "target": torch.ones(1)}


class Loop:
    """Of 22 samples in batches of 4, two of them a step of the optimizer: 3 steps an epoch."""

    def __init__(self, counts: str = "rank", name: str = "loop", prepared_before: bool = False) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.memory = MemoryTraceHandler()
        handlers = [JSONTraceHandler(f"{name}/rank0.json"), self.memory]
        self.profiler = Profiler(handlers, counts=counts, rank=0, run_id=name)
        if prepared_before:
            self.prepare()
        self.recorder = AcceleratorRecorder(self.accelerator, self.profiler)
        if not prepared_before:
            self.prepare()

    def prepare(self, workers: int = 1) -> None:
        model = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(2 * TOKENS, 1))
        self.model, self.optimizer, self.loader, self.eval_loader = self.accelerator.prepare(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            DataLoader(Texts(22), batch_size=4, num_workers=workers),
            DataLoader(Texts(22), batch_size=11),
        )

    def epoch(self, stop_after: int = -1, save_to: str = "", loader: Any = None) -> None:
        self.model.train()
        for number, batch in enumerate(self.loader if loader is None else loader, 1):
            with self.accelerator.accumulate(self.model):
                loss = (self.model(batch["input_ids"]) - batch["target"]).square().mean()
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if number == stop_after:
                if save_to:
                    self.accelerator.save_state(save_to)
                break
            if number == 4:
                self.evaluate()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for batch in self.eval_loader:
                self.model(batch["input_ids"])
        self.model.train()

    def seen(self) -> dict[str, Any]:
        now = self.profiler.timestamp
        self.profiler.flush()
        return {
            "slices": Counter(begin.label.name for begin, _ in self.memory.slices),
            "time": [int(now.epoch), int(now.batch), int(now.sample), int(now.token), int(now.batch_in_epoch)],
            "failures": dict(self.profiler.stats.failures),
        }


def whole(**options: Any) -> dict[str, Any]:
    loop = Loop(**options)
    recorded = type(loop.loader)
    with loop.profiler, loop.recorder:
        loop.epoch()
        loop.epoch()
    left = {
        "hooks": len(loop.model._forward_hooks) + len(loop.optimizer.optimizer._optimizer_step_post_hooks),
        "class": type(loop.loader) is recorded or not issubclass(recorded, type(loop.loader)),
        "methods": [name for name in ("prepare", "backward", "save_state") if name in vars(loop.accelerator)],
    }
    return {**loop.seen(), "left": left}


def broken_off() -> dict[str, Any]:
    """Epochs that a limit of steps ends, and one with nothing but an evaluation."""
    loop = Loop(name="broken-off")
    with loop.profiler, loop.recorder:
        loop.epoch(stop_after=3)  # the third batch is accumulated, and no step is made of it
        loop.evaluate()
        loop.epoch(stop_after=2)
        return loop.seen()


def resumed() -> dict[str, Any]:
    """A checkpoint, and a second run that goes on from it."""
    first = Loop(name="first")
    with first.profiler, first.recorder:
        first.accelerator.register_for_checkpointing(first.recorder)
        first.epoch()
        first.accelerator.save_state("checkpoint")
    saved = Counter(begin.label.name for begin, _ in first.memory.slices)["save checkpoint"]
    second = Loop(name="second")
    with second.profiler, second.recorder:
        second.accelerator.register_for_checkpointing(second.recorder)
        second.accelerator.load_state("checkpoint")
        second.epoch()
    first_batch = min(int(begin.timestamp.batch) for begin, _ in second.memory.slices if begin.label.name == "forward")
    return {**second.seen(), "first batch": first_batch, "saved": saved}


def resumed_within() -> dict[str, Any]:
    """A checkpoint within an epoch, and a second run that skips what the first has read of it."""
    first = Loop(name="first-within")
    with first.profiler, first.recorder:
        first.accelerator.register_for_checkpointing(first.recorder)
        first.epoch(stop_after=2, save_to="within")
    second = Loop(name="second-within")
    with second.profiler, second.recorder:
        second.accelerator.register_for_checkpointing(second.recorder)
        second.accelerator.load_state("within")
        rest = second.accelerator.skip_first_batches(second.loader, 2)
        second.epoch(loader=rest)
        second.epoch()
    return second.seen()


def prepared_again() -> dict[str, Any]:
    """Models that are freed, and others prepared at their addresses."""
    loop = Loop(name="again")
    times, addresses = 0, set[int]()
    with loop.profiler, loop.recorder:
        # Which address is free depends on what else is allocated meanwhile.
        while times < 20 or (len(addresses) == times and times < 1000):
            times += 1
            model = loop.accelerator.prepare(nn.Linear(1, 1))
            addresses.add(id(model))
            model(torch.ones(1))
            loop.accelerator.free_memory(model)
            del model
            gc.collect()
    return {"not recorded": times - loop.seen()["slices"]["forward"], "an address came twice": len(addresses) < times}


def side_by_side() -> dict[str, Any]:
    """Epochs of 6 batches of 4, each a step, while another loader of 2 batches of 11 is read as well."""
    found = {}
    for name in ("zip", "within", "held"):
        loop = Loop(name=f"side-{name}")
        loop.accelerator.gradient_accumulation_steps = 1
        with loop.profiler, loop.recorder:
            if name == "zip":  # ends after two of the longer one
                batches: Any = zip(loop.eval_loader, loop.loader, strict=False)
                loop.epoch(loader=(second for _, second in batches))
            elif name == "within":
                others: Any = iter(loop.eval_loader)
                loop.epoch(
                    loader=(batch for number, batch in enumerate(loop.loader) if number in (0, 5) or next(others, 1))
                )
            else:
                others = iter(loop.eval_loader)
                next(others)
                loop.epoch()
        found[name] = loop.seen()["time"]
    return found


def copied() -> dict[str, Any]:
    """What is copied or saved whole while it is recorded works, and records nothing."""
    loop = Loop(name="copied")
    with loop.profiler, loop.recorder:
        file = io.BytesIO()
        torch.save(loop.model, file)
        file.seek(0)
        tokens = torch.ones(1, TOKENS, dtype=torch.int64)
        for model in (AveragedModel(loop.model), torch.load(file, weights_only=False)):
            model(tokens)
        copies = [copy.deepcopy(loop.accelerator), copy.deepcopy(loop.optimizer)]
        loop.model(tokens)
    own = copies[0].backward.__func__ is Accelerator.backward
    return {
        "forward": loop.seen()["slices"]["forward"],
        "own methods": own,
        "needs tracekit": b"tracekit" in file.getvalue(),
    }


def failing() -> list[Any]:
    loop = Loop(name="failing")
    with contextlib.suppress(KeyError), loop.profiler, loop.recorder:
        for batch in loop.loader:
            loop.accelerator.backward(loop.model(batch["input_ids"]).mean())
            loop.model(batch["missing"])
    kinds = [type(event).__name__ for event in loop.memory.events]
    return [kinds.count("SliceBegin") - kinds.count("SliceEnd"), loop.seen()["failures"]]


if __name__ == "__main__":
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        results = {
            "whole": whole(),
            "global, prepared before": whole(counts="global", name="global", prepared_before=True),
            "broken off": broken_off(),
            "resumed": resumed(),
            "resumed within": resumed_within(),
            "prepared again": prepared_again(),
            "side by side": side_by_side(),
            "copied": copied(),
            "failing": failing(),
        }
    json.dump(results, said)
