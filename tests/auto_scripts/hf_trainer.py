"""The Trainer of transformers with a tiny model, gradient accumulation and evaluation; a first training fails."""

import contextlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Fails(TrainerCallback):
    def on_step_end(self, *args: object, **named: object) -> None:
        raise ArithmeticError


def main() -> None:
    set_seed(0)
    tokens = torch.randint(0, 50, (48, 12))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        "trained",
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
    trainer.add_callback(Fails)
    with contextlib.suppress(ArithmeticError):
        trainer.train()
    trainer.remove_callback(Fails)
    trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            print([float(entry[key]).hex() for key in ("loss", "grad_norm", "eval_loss") if key in entry])


if __name__ == "__main__":
    main()
