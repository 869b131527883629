"""Runs Composer's Trainer with tracekit, and with Composer's own profiler for comparison; prints what was seen as JSON.

A process of its own: Composer changes signal handlers, and its own warnings are its own.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import composer_preface  # noqa: F401
import torch
from composer import Trainer
from composer.core import Event
from composer.models import ComposerModel
from composer.profiler import Profiler as ComposerProfiler
from composer.profiler import ProfilerAction as ComposerAction
from composer.profiler import TraceHandler as ComposerTraceHandler
from torch import nn
from torch.utils.data import DataLoader

import tracekit
from tracekit import JSONTraceHandler, MemoryTraceHandler
from tracekit.integrations import composer as compatible

TOKENS = 5  # of each sample
QUIET = {"sys_prof_cpu": False, "torch_prof_profile_memory": False, "torch_prof_with_flops": False}


class Model(ComposerModel):
    fails_at = -1

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(16, 4), nn.Flatten(), nn.Linear(4 * TOKENS, 2))
        self.passes = 0

    def forward(self, batch: Any) -> Any:
        self.passes += 1
        if self.passes == self.fails_at:
            raise RuntimeError("the model fails")
        return self.net(batch["input_ids"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(outputs, batch["label"])

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return self.forward(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {}

    def update_metric(self, *_: Any) -> None:
        pass


def loader() -> DataLoader[Any]:
    samples = [{"input_ids": torch.arange(TOKENS), "label": torch.tensor(n % 2)} for n in range(32)]
    return DataLoader(samples, batch_size=8)  # type: ignore[arg-type]


def trainer(model: Model | None = None, **options: Any) -> Trainer:
    options.setdefault("max_duration", "2ep")
    model = model or Model()
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        train_dataloader=loader(),
        device_train_microbatch_size=4,
        progress_bar=False,
        **options,
    )


def reference_handler(base: type) -> Any:
    """Make the same handler of Composer's class and of tracekit's: nothing but the base differs."""

    class Handler(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.events: Counter[str] = Counter()
            self.batches: list[Any] = []
            self.calls: list[str] = []
            self.logged: Any = None

        def process_duration_event(
            self, name: Any, categories: Any, is_start: Any, timestamp: Any, wall_clock_time_ns: Any
        ) -> None:
            assert isinstance(categories, list | tuple)
            assert isinstance(wall_clock_time_ns, int)
            if name.startswith(("event/", "mine")):
                self.events[f"{name} {'B' if is_start else 'E'}"] += 1

        def process_counter_event(
            self, name: Any, categories: Any, timestamp: Any, wall_clock_time_ns: Any, values: Any
        ) -> None:
            self.events[f"{name} {json.dumps(values)} at batch {timestamp.batch.value}"] += 1

        def init(self, state: Any, logger: Any) -> None:
            self.calls.append(f"init {type(state.model).__name__}")

        def batch_end(self, state: Any, logger: Any) -> None:
            now = state.timestamp
            self.batches.append([now.epoch.value, now.batch.value, now.sample.value, now.token.value, len(self.events)])
            logger.log_metrics({"batches": len(self.batches)})

        def close(self, state: Any, logger: Any) -> None:
            self.calls.append("close")

        def post_close(self) -> None:
            self.calls.append("post_close")

    return Handler()


def seen_by(handler: Any, profiler: Any) -> dict[str, Any]:
    one = trainer(profiler=profiler)
    mine = profiler.marker("mine", actions=[ComposerAction.ACTIVE], categories=["c"])
    with mine:
        pass
    one.fit()
    one.state.profiler.marker("count").counter({"x": 1})
    one.close()
    return {"events": dict(handler.events), "batches": handler.batches, "calls": handler.calls}


def handlers() -> dict[str, Any]:
    """The reference: one handler under Composer's profiler, and under tracekit's of the same arguments."""
    found = {}
    for name, base, kind in (
        ("composer", ComposerTraceHandler, ComposerProfiler),
        ("tracekit", compatible.TraceHandler, compatible.Profiler),
        ("composer's handler", ComposerTraceHandler, compatible.Profiler),
    ):
        handler = reference_handler(base)
        found[name] = seen_by(handler, kind(lambda _state: ComposerAction.ACTIVE, [handler], **QUIET))
    return found


def windows() -> dict[str, Any]:
    """What a script of Composer does: a cyclic schedule, files for every window, torch's traces beside."""
    profiler = compatible.Profiler(
        trace_handlers=[compatible.JSONTraceHandler(folder="windows", overwrite=True)],
        schedule=compatible.cyclic_schedule(wait=1, warmup=1, active=1, repeat=1),
        torch_prof_folder="windows",
        torch_prof_overwrite=True,
    )
    one = trainer(profiler=profiler, run_name="named")
    one.fit()
    one.close()
    return {"run_id": profiler.process.run_id, "failures": dict(profiler.stats.failures)}


def callback() -> dict[str, Any]:
    """A profiler of tracekit in a callback; a checkpoint after 6 of 8 batches, and a second run from there."""
    found: dict[str, Any] = {}
    for name, counts, options in (
        ("first", "global", {"max_duration": "6ba", "save_folder": "checkpoints", "save_interval": "6ba"}),
        ("resumed", "global", {"load_path": "checkpoints/latest-rank0.pt", "max_duration": "3ep"}),
        ("rank", "rank", {"load_path": "checkpoints/latest-rank0.pt", "iteration_length": "1ep"}),
    ):
        iteration_length = options.pop("iteration_length", None)
        memory = MemoryTraceHandler()
        profiler = tracekit.Profiler([JSONTraceHandler(f"{name}.json"), memory], counts=counts, run_id=name, rank=0)
        one = trainer(callbacks=[compatible.TracekitCallback(profiler)], eval_dataloader=loader(), **options)
        if iteration_length:
            one.state._iteration_length = iteration_length
        one.fit()
        theirs, ours = one.state.timestamp, profiler.timestamp
        one.close()
        epochs = [both for both in memory.slices if both[0].label.name == "event/epoch"]
        found[name] = {
            "agrees": tracekit.Timestamp.from_state_dict(theirs.state_dict()) == ours,
            "timestamp": {key: value for key, value in ours.state_dict().items() if not key.endswith("_us")},
            "slices": Counter(begin.label.name for begin, _ in memory.slices),
            "first batch": min(
                int(begin.timestamp.batch) for begin, _ in memory.slices if "forward" in begin.label.name
            ),
            "epochs": [[int(event.timestamp.batch) for event in both] for both in epochs],
            "left open": len(memory.events) - 2 * len(memory.slices),
            "failures": dict(profiler.stats.failures),
            "stopped": not profiler.started,
        }
    found["own markers"] = []
    for options in ({}, {"load_path": "checkpoints/latest-rank0.pt"}):
        own = compatible.Profiler(lambda _state: ComposerAction.ACTIVE, memory := MemoryTraceHandler(), **QUIET)
        with contextlib.closing(trainer(profiler=own, **options)) as one:
            one.fit()
        found["own markers"].append(len(memory.events) - 2 * len(memory.slices))
    return found


class Told(MemoryTraceHandler):
    error: BaseException | None = None

    def stopping(self, error: BaseException | None) -> None:
        self.error = error


def failing() -> dict[str, Any]:
    """A model that raises in the fifth forward pass, below a profiler that the callback started and one that it did not."""
    found: dict[str, Any] = {}
    for name in ("its own", "given"):
        told = Told()
        profiler = tracekit.Profiler([JSONTraceHandler(f"failing {name}.json"), told], rank=0, run_id=name)
        model = Model()
        model.fails_at = 5
        with contextlib.suppress(RuntimeError), profiler if name == "given" else contextlib.nullcontext():
            one = trainer(model, callbacks=[compatible.TracekitCallback(profiler)])
            try:
                one.fit()
            finally:
                one.close()
                running = profiler.started
        ends = [type(event).__name__ for event in told.events]
        found[name] = {
            "error": repr(told.error),
            "open": ends.count("SliceBegin") - ends.count("SliceEnd"),
            "forward": sum(begin.label.name == "event/forward" for begin, _ in told.slices),
            "running": running,
        }
    return found


def retried() -> list[str]:
    """A pass that is begun again, as by automatic microbatching when memory is short."""
    memory = MemoryTraceHandler()
    with tracekit.Profiler(memory, rank=0, record_batches=False) as profiler:
        one = trainer(callbacks=[compatible.TracekitCallback(profiler)])
        before, forward = Event.BEFORE_TRAIN_BATCH, Event.BEFORE_FORWARD
        for event in (before, forward, before, forward, Event.AFTER_FORWARD, Event.AFTER_TRAIN_BATCH):
            one.engine.run_event(event)
        one.close()
    return [("+" if type(event).__name__ == "SliceBegin" else "-") + event.label.name for event in memory.events]


def example() -> list[str]:
    """The example, as a script."""
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "composer_trainer.py"), run_name="__main__")
    return sorted(map(str, Path("traces").glob("*/*.json")))


if __name__ == "__main__":
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        results = {run.__name__: run() for run in (handlers, windows, callback, failing, retried, example)}
    assert Path("first.json").is_file()
    json.dump(results, said)
