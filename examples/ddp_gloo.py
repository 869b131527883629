"""Two ranks of distributed training on the CPU, with torch.profiler and system counters under one schedule.

Run it:   torchrun --standalone --nproc-per-node 2 examples/ddp_gloo.py
Open it:  tracekit open traces/RUN/merged.json.gz
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tracekit import JSONTraceHandler, Profiler, SystemProfiler, TorchProfiler, cyclic_schedule

EPOCHS = 2
SAMPLES_PER_RANK = 14 * 32


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(
        torch.randn(SAMPLES_PER_RANK * dist.get_world_size(), 64),
        torch.randn(SAMPLES_PER_RANK * dist.get_world_size(), 1),
    )
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with Profiler(
        trace_handlers=[
            JSONTraceHandler("traces/{run_id}/rank{rank}.json", merged_filename="traces/{run_id}/merged.json.gz")
        ],
        schedule=cyclic_schedule(wait=1, warmup=1, active=3, repeat=2),
        sources=[TorchProfiler("traces/{run_id}/torch-rank{rank}-{batch}.json.gz"), SystemProfiler(interval=0.05)],
    ) as profiler:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for inputs, targets in profiler.iterate(loader, "dataloader"):
                with profiler.marker("forward"):
                    loss = nn.functional.mse_loss(model(inputs), targets)
                with profiler.marker("backward"):
                    loss.backward()
                with profiler.marker("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                profiler.marker("training").counter({"loss": loss.item()})
                profiler.step(samples=len(inputs))
            profiler.next_epoch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
