"""Lightning: one callback records every hook, step and epoch of a Trainer; another logs where the time of an epoch went."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tracekit.integrations.lightning import TimeProfiler, TracekitCallback


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    data = TensorDataset(torch.randn(256, 32), torch.randn(256, 1))
    times = TimeProfiler("backward", "optimizer step")
    trace = TracekitCallback("traces/{run_id}/rank{rank}.json")
    trainer = Trainer(max_epochs=2, callbacks=[times, trace], logger=False, enable_checkpointing=False)
    trainer.fit(Net(), DataLoader(data, batch_size=16))
    print(times.summary())  # and drag the trace onto ui.perfetto.dev
