"""Trains a tiny made-up model with transformers' Trainer and tracekit; prints what was seen as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import runpy
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, marker
from tracekit.integrations.transformers import TracekitCallback

TOKENS = 6  # of each sample


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        with marker("read"):
            return {"input_ids": torch.arange(TOKENS), "labels": torch.arange(TOKENS)}


class Told(MemoryTraceHandler):
    error: BaseException | None = None

    def stopping(self, error: BaseException | None) -> None:
        self.error = error


def trainer(profiler: Profiler, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """Of 20 samples in batches of 4, two of them a step: 3 steps an epoch, 6 in all."""
    callbacks = options.pop("callbacks", [])
    arguments = {
        "output_dir": "out",
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "save_steps": 2,
        "logging_steps": 2,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        **options,
    }
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return kind(
        LlamaForCausalLM(config),
        TrainingArguments(**arguments),  # type: ignore[arg-type]
        train_dataset=Texts(),
        eval_dataset=Texts(),
        callbacks=[*callbacks, TracekitCallback(profiler)],
    )


def seen_in(name: str, counts: str = "rank", resume: str | None = None, **options: Any) -> dict[str, Any]:
    memory = MemoryTraceHandler()
    profiler = Profiler([JSONTraceHandler(f"traces/{name}/rank0.json"), memory], counts=counts, run_id=name, rank=0)
    one = trainer(profiler, **options)
    kind, hooks = type(one.get_train_dataloader()), len(one.model._forward_hooks)
    one.train(resume_from_checkpoint=resume)
    loader = one.callback_handler.train_dataloader
    return {
        "timestamp": {key: value for key, value in profiler.timestamp.state_dict().items() if not key.endswith("_us")},
        "slices": Counter(begin.label.name for begin, _ in memory.slices),
        "first batch": min(
            int(begin.timestamp.batch) for begin, _ in memory.slices if begin.label.name == "training step"
        ),
        "failures": dict(profiler.stats.failures),
        "stopped": not profiler.started,
        "as before": [type(loader) is kind, len(one.model._forward_hooks) == hooks],
        "seen by the trainer": [one.state.global_step, one.state.num_input_tokens_seen],
    }


def training() -> dict[str, Any]:
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 20}
    checkpoint = "out/checkpoint-4"
    found = {
        "rank": seen_in("rank", dataloader_num_workers=1, **evaluation),
        "resumed": seen_in("resumed", resume=checkpoint),
        "global": seen_in("global", "global", include_num_input_tokens_seen="all"),
        "resumed global": seen_in("resumed-global", "global", checkpoint, include_num_input_tokens_seen="all"),
    }
    state = Path(checkpoint, "trainer_state.json")  # as written by a run without tracekit
    written = json.loads(state.read_text())
    assert written["stateful_callbacks"].pop("tracekit")
    state.write_text(json.dumps(written))
    found["resumed without"] = seen_in("without", "global", checkpoint, include_num_input_tokens_seen="all")
    return found


class Averaging(TrainerCallback):
    """Copies the model while it is recorded, as averages of weights and models of reference are made."""

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.average = AveragedModel(named["model"])
        self.average(input_ids=torch.arange(TOKENS).unsqueeze(0))


def averaged() -> dict[str, Any]:
    return seen_in("averaged", save_strategy="no", max_steps=2, callbacks=[Averaging()])


class Twice(Trainer):
    """Its loss needs two passes of the model, as R-Drop's and DPO's do."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
        return model(**inputs).loss + model(**inputs).loss


def twice() -> list[dict[str, Any]]:
    whole = seen_in("twice", kind=Twice, output_dir="twice", num_train_epochs=1)
    return [whole, seen_in("twice-resumed", resume="twice/checkpoint-2", kind=Twice, output_dir="twice")]


class Replicas(Trainer):
    """Calls the model on threads, as `torch.nn.DataParallel` calls its replicas."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
        shards = [{name: value[half::2] for name, value in inputs.items()} for half in (0, 1)]
        with ThreadPoolExecutor(2) as threads:
            return sum(threads.map(lambda shard: model(**shard).loss, shards))


def replicas() -> dict[str, Any]:
    return seen_in("replicas", kind=Replicas, save_strategy="no")


def failing() -> dict[str, Any]:
    """A forward pass that raises, and a training after it with the same profiler."""
    told = Told()
    error = None
    try:
        with Profiler([JSONTraceHandler("failing.json"), told], rank=0) as profiler:
            one = trainer(profiler, save_strategy="no")
            forward, calls = one.model.forward, []

            @functools.wraps(forward)
            def fails(*args: Any, **named: Any) -> Any:
                calls.append(1)
                if len(calls) == 4:
                    raise RuntimeError("the model fails")
                return forward(*args, **named)

            one.model.forward = fails
            with contextlib.suppress(RuntimeError):
                one.train()
            after_failure = int(profiler.timestamp.batch)
            one.train()
            again = int(profiler.timestamp.batch)
            calls.clear()
            one.train()
    except RuntimeError as raised:
        error = str(raised)
    kinds = [type(event).__name__ for event in told.events]
    return {
        "raised": error,
        "told": repr(told.error),
        "batches": [after_failure, again],
        "forward": sum(begin.label.name == "forward" for begin, _ in told.slices),
        "open": kinds.count("SliceBegin") - kinds.count("SliceEnd"),
    }


def second(profiler: Profiler) -> int:
    """Train twice with a profiler that the first training has started, and stopped."""
    one = trainer(profiler, max_steps=1, save_strategy="no")
    one.train()
    one.train()
    return int(one.state.global_step)


def compiled() -> dict[str, Any]:
    """A model that is compiled as a whole: nothing of the recording may become a part of its graph."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    seen = seen_in("compiled", save_strategy="no", torch_compile=True, torch_compile_backend="eager")
    return {**seen, "graph breaks": sum(torch._dynamo.utils.counters["graph_break"].values())}


def example() -> list[str]:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "transformers_trainer.py"), run_name="__main__")
    return [str(path) for path in Path("traces").glob("example/*.json")]


if __name__ == "__main__":
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        results = {run.__name__: run() for run in (training, averaged, twice, replicas, failing, example, compiled)}
        results["second"] = second(Profiler(MemoryTraceHandler(), rank=0))
    json.dump(results, said)
