"""A training loop for the tests of the Lightning integration: everything in it takes a known time, on a clock that is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tracekit.integrations.lightning.framework import Callback, LightningModule

if TYPE_CHECKING:
    from pathlib import Path

    from lightning.pytorch import Trainer

    from tracekit.testing import FakeClock

SECOND = 1_000_000_000

# Lightning's own warnings, of loops as small as these.
QUIET = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    from lightning.pytorch import Trainer  # here: other tests of these loops are with pytorch_lightning

    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1} | options
    return Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


class SlowSGD(torch.optim.SGD):
    """Takes 0.5 s for a step, besides what its closure takes."""

    def __init__(self, parameters: Any, clock: FakeClock) -> None:
        super().__init__(parameters, lr=0.01)
        self._clock = clock

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self._clock.advance(SECOND // 2)
        return loss


class Net(LightningModule):
    """Forward 1 s, backward 2 s, optimizer 0.5 s; a batch of validation 1 s."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.layer = torch.nn.Linear(2, 1)

    def loss(self, batch: Any) -> Any:
        self.clock.advance(SECOND)
        return self.layer(batch[0]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=8)
        return loss

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        super().backward(loss, *args, **kwargs)
        self.clock.advance(2 * SECOND)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.loss(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.loss(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return SlowSGD(self.parameters(), self.clock)


class Manual(Net):
    """Two optimizers in each batch, by manual optimization; 7 s after each."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            self.manual_backward(self.loss(batch))
            optimizer.step()
            self.clock.advance(7 * SECOND)

    def configure_optimizers(self) -> Any:
        return [SlowSGD(self.parameters(), self.clock) for _ in range(2)]


class Stops(Callback):
    """Saves a checkpoint after so many batches, and fails."""

    def __init__(self, after: int, path: Path) -> None:
        self.after, self.path = after, path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.after:
            trainer.save_checkpoint(self.path)
            raise ArithmeticError("the node is gone")


def loader(clock: FakeClock, batches: int, seconds: float, **options: Any) -> Any:
    """Return a loader of batches of 8, each of which takes some seconds."""

    def collate(samples: Any) -> Any:
        clock.advance(round(seconds * SECOND))
        return tuple(map(torch.stack, zip(*samples, strict=True)))

    data = TensorDataset(torch.ones(8 * batches, 2), torch.ones(8 * batches))
    return DataLoader(data, batch_size=8, collate_fn=collate, **options)


def train_loader(clock: FakeClock, batches: int = 4, **options: Any) -> Any:
    return loader(clock, batches, 0.5, **options)


def val_loader(clock: FakeClock, batches: int = 2) -> Any:
    return loader(clock, batches, 0.1)


def fit(one: Trainer, net: Net, **options: Any) -> None:
    """Train on 4 batches an epoch, and validate on 2."""
    one.fit(net, train_loader(net.clock), val_loader(net.clock), **options)
