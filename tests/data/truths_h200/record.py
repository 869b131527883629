"""Two programs with a known limit: Python code in the forward pass, and a slow data set.

The recordings are of a longer program with these parts.

Run them:  python tests/data/truths_h200/record.py python FOLDER;  python tests/data/truths_h200/record.py data FOLDER
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from tracekit import GPUProfiler, JSONTraceHandler, Profiler, TorchProfiler, cyclic_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM, FOLDER = sys.argv[1:]
DEVICE = torch.device("cuda", 0)


class Data(torch.utils.data.IterableDataset[torch.Tensor]):
    """Values that take 60 ms each in the program "data"."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(100):
            if PROGRAM == "data":
                time.sleep(0.06)
            yield torch.full((8, 32), float(number))


layers = [nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(6)]
model = nn.Sequential(*layers).to(DEVICE)
inputs = torch.randn(4096, 8192, device=DEVICE, dtype=torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=int(PROGRAM == "data"), pin_memory=True)
schedule = cyclic_schedule(wait=3, warmup=1, active=6, repeat=1)
sources = [TorchProfiler(FOLDER + "/torch-rank{rank}-{batch}.json.gz"), GPUProfiler(interval=0.02)]
with Profiler(JSONTraceHandler(FOLDER + "/rank{rank}.json"), schedule, sources=sources) as profiler:
    for step, _ in enumerate(profiler.iterate(loader, "dataloader")):
        if step == 11:
            break
        with profiler.marker("forward"):
            loss = model(inputs).float().square().mean()
            end = time.monotonic() + 0.08
            while PROGRAM == "python" and time.monotonic() < end:
                pass
        with profiler.marker("backward"):
            loss.backward()
        with profiler.marker("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.step(samples=8)
