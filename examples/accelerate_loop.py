"""A loop with Accelerate, recorded by one line: torchrun --standalone --nproc-per-node 2 examples/accelerate_loop.py"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tracekit import JSONTraceHandler, Profiler
from tracekit.integrations.accelerate import AcceleratorRecorder


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}-attempt{attempt}.json")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(torch.randn(128, 64), batch_size=8)  # type: ignore[arg-type]
    with Profiler(handler) as profiler, AcceleratorRecorder(accelerator, profiler):
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        for _epoch in range(2):
            for batch in data:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
    print(f"rank {profiler.process.rank}: {profiler.timestamp.sample} of its own in {handler.paths[0]}")


if __name__ == "__main__":
    main()
