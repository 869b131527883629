"""Two ranks on one GPU: several streams, copies, a CUDA graph, allocations, and counters of the GPU and the allocator.

Run it:  torchrun --standalone --nproc-per-node 2 tests/data/cuda_h200/record.py FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

from tracekit import (
    GPUProfiler,
    JSONTraceHandler,
    Profiler,
    SystemProfiler,
    Timers,
    TorchMemoryProfiler,
    TorchProfiler,
    cyclic_schedule,
)

SIZE = 2048
DEVICE = torch.device("cuda", 0)


def capture(inputs: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture two products as a graph, after a warm-up on a separate stream."""
    weights = torch.randn(SIZE, SIZE, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            (inputs @ weights).relu() @ weights
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ((inputs @ weights).relu() @ weights).softmax(-1)
    return graph


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(3) for layer in (nn.Linear(SIZE, SIZE), nn.GELU())][:-1]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timers = Timers(2, "minmax", device="events")
    copies, side = torch.cuda.Stream(), torch.cuda.Stream()
    inputs = torch.randn(256, SIZE, device=DEVICE)
    graph = capture(inputs)
    host = torch.randn(256, SIZE).pin_memory()
    sources = [
        TorchProfiler(folder + "/torch-rank{rank}-{batch}.json.gz", record_shapes=True, profile_memory=True),
        GPUProfiler(interval=0.02),
        TorchMemoryProfiler(reset_peaks=True),
        SystemProfiler(interval=0.1),
    ]
    with Profiler(
        JSONTraceHandler(folder + "/rank{rank}.json"),
        cyclic_schedule(wait=2, warmup=1, active=4, repeat=2),
        sources=sources,
    ) as profiler:
        for step in range(16):
            with profiler.marker("dataloader"):
                with torch.cuda.stream(copies):
                    batch = host.to(DEVICE, non_blocking=True)
                torch.cuda.current_stream().wait_stream(copies)
                batch.record_stream(torch.cuda.current_stream())
            timers("forward").start()
            with profiler.marker("forward"):
                loss = model(batch).square().mean()
            timers("forward").stop()
            with profiler.marker("backward"):
                loss.backward()
            with profiler.marker("side stream"), torch.cuda.stream(side):
                side.wait_stream(torch.cuda.current_stream())
                product = batch @ batch.T
                for _ in range(4):
                    product = torch.tanh(product @ product.T)
            with profiler.marker("graph replay"):
                inputs.copy_(batch)
                graph.replay()
            with profiler.marker("all-reduce"):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            with profiler.marker("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if step == 9 and dist.get_rank() == 1:
                with profiler.marker("big allocation"):
                    torch.empty(1 << 26, device=DEVICE)
            torch.cuda.current_stream().wait_stream(side)
            profiler.marker("training").counter({"loss": loss.item()})
            profiler.step(samples=len(batch))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
