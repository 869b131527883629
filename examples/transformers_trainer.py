"""A Trainer of transformers, recorded by one callback: python examples/transformers_trainer.py"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tracekit import JSONTraceHandler, Profiler
from tracekit.integrations.transformers import TracekitCallback


def main() -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **shape))
    texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(128, (40, 16))]
    often = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments("traces/checkpoints", **often, **batches, use_cpu=True, report_to="none")  # type: ignore[arg-type]
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    with Profiler(handler) as profiler:
        callbacks = [TracekitCallback(profiler)]
        Trainer(model, arguments, train_dataset=texts, eval_dataset=texts[:8], callbacks=callbacks).train()
        print(profiler.timestamp.token, "of this rank")
    print(f"Open ui.perfetto.dev and drag this file onto it: {handler.paths[0]}")


if __name__ == "__main__":
    main()
