"""TracekitCallback, called as a Trainer calls it; the runs with a Trainer itself are in tests/integration."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import MemoryTraceHandler, Profiler

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")


def control(**wanted: bool) -> SimpleNamespace:
    """Return what a Trainer will do next."""
    return SimpleNamespace(**{"should_log": False, "should_evaluate": False, "should_save": False, **wanted})


def test_callback_makes_slices_and_steps_of_the_calls_of_a_trainer() -> None:
    from tracekit.integrations.transformers import TracekitCallback

    memory = MemoryTraceHandler()
    profiler = Profiler(memory, rank=0, record_batches=False)
    callback = TracekitCallback(profiler)
    model = torch.nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    arguments = SimpleNamespace(world_size=1, train_batch_size=2, gradient_accumulation_steps=1)
    state = SimpleNamespace(global_step=0, stateful_callbacks={}, num_input_tokens_seen=0)

    def tell(event: str, wanted: SimpleNamespace | None = None, metrics: Any = None) -> Any:
        return getattr(callback, f"on_{event}")(
            arguments, state, wanted or control(), model=model, train_dataloader=loader, metrics=metrics
        )

    def evaluate(name: str, *, then_save: bool) -> None:
        with torch.no_grad():
            model.eval()(torch.ones(1, 2))
        model.train()
        tell("evaluate", control(should_save=then_save), {f"eval{name}_runtime": 1.0})

    tell("train_begin")
    evaluate("", then_save=False)  # ``eval_on_start``
    tell("epoch_begin")
    for batch in loader:
        tell("step_begin")
        model(batch).sum().backward()
        tell("pre_optimizer_step")
        tell("optimizer_step")
        state.global_step += 1
        tell("step_end", control(should_evaluate=True))
        for name in ("_a", "_b"):
            evaluate(name, then_save=True)
        tell("save")
    tell("epoch_end")
    assert (profiler.timestamp.batch, profiler.timestamp.epoch, profiler.timestamp.sample) == (2, 1, 4)
    tell("train_end")
    assert profiler.stats.failures == {}
    found = Counter(start.label.name for start, _ in memory.slices)
    assert found == {
        "dataloader": 3,
        "fetch": 2,
        "collate": 2,  # the last wait ends the epoch
        "train": 1,
        "epoch": 1,
        "training step": 2,
        "forward": 2,
        "backward": 2,
        "optimizer": 2,
        "evaluation": 5,
        "eval forward": 5,
        "save": 1,  # after the second round, when the last of the datasets is known
    }
