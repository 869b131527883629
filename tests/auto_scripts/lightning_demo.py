"""The boring model that Lightning's wheel has as a demo, trained and validated by its Trainer."""

import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel


class Printing(BoringModel):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> dict:
        output = super().training_step(batch, batch_idx)
        print(output["loss"].item().hex())
        return output


if __name__ == "__main__":
    seed_everything(0)
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=6,
        limit_val_batches=2,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        accumulate_grad_batches=2,
    )
    trainer.fit(Printing())
    sys.stdout.flush()
