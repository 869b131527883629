"""A Trainer of Composer with tracekit instead of Composer's profiler (pip install mosaicml): only the import below is new."""

from __future__ import annotations

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch.utils.data import DataLoader

from tracekit.integrations.composer import JSONTraceHandler, Profiler, cyclic_schedule


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()


data = DataLoader(torch.randn(64, 64), batch_size=8)  # type: ignore[arg-type]
schedule = cyclic_schedule(wait=1, warmup=1, active=4, repeat=1)
profiler = Profiler(schedule, [JSONTraceHandler("traces/{run_name}")], torch_prof_folder="traces/{run_name}")
trainer = Trainer(model=Model(), train_dataloader=data, max_duration="2ep", profiler=profiler, progress_bar=False)
trainer.fit()
trainer.close()
