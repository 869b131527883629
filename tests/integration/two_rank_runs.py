"""Counts of each of two ranks, under Accelerate and under transformers' Trainer; started by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tracekit import JSONTraceHandler, Profiler, marker
from tracekit.integrations.transformers import TracekitCallback

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"
TOKENS = 6  # of each sample


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        with marker("read"):
            return {"input_ids": torch.arange(TOKENS), "labels": torch.arange(TOKENS)}


def trainer(profiler: Profiler, kind: type[Trainer] = Trainer, callbacks: Any = (), **options: Any) -> Trainer:
    """Return a Trainer with a tiny model; 20 samples in batches of 4, two of them a step: 3 steps an epoch, 6 in all."""
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


def counted(counts: str) -> list[int]:
    handler = JSONTraceHandler(f"traces/{counts}/rank{{rank}}-{{attempt}}.json")
    profiler = Profiler(handler, counts=counts)
    trainer(profiler, save_strategy="no", include_num_input_tokens_seen="all" if counts == "global" else "no").train()
    now = profiler.timestamp
    assert profiler.stats.failures == {}
    return [int(now.epoch), int(now.batch), int(now.sample), int(now.token)]


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        results = {counts: counted(counts) for counts in ("global", "rank")}
    Path(f"rank{os.environ['RANK']}-counts.json").write_text(json.dumps(results), encoding="utf-8")
