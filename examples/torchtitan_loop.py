"""A loop in torchtitan's form: torchrun --standalone --nproc-per-node 2 examples/torchtitan_loop.py"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tracekit import JSONTraceHandler, Profiler, TorchProfiler, cyclic_schedule

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("pp", "dp"))
model = fully_shard(torch.nn.Sequential(torch.nn.Embedding(128, 32), torch.nn.Linear(32, 128)), mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())
handler = JSONTraceHandler("traces/{run_id}/rank{rank}-attempt{attempt}.json")
schedule = cyclic_schedule(wait=1, warmup=1, active=2, repeat=1, per="run")
texts = (torch.randint(128, (4, 17)) for _ in iter(int, 1))
with Profiler(handler, schedule, sources=TorchProfiler("traces/{run_id}/torch-rank{rank}-{batch}.json")) as profiler:
    batches = profiler.iterate(texts, "dataloader")
    for _step in range(6):
        for _microbatch in range(2):
            text = next(batches)
            with profiler.marker("forward backward"):
                torch.nn.functional.cross_entropy(model(text[:, :-1].flatten()), text[:, 1:].flatten()).backward()
        with profiler.marker("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.step(samples=8, tokens=8 * 16)
dist.destroy_process_group()
