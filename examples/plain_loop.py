"""The smallest use: a plain training loop, markers around its parts, one trace file that ui.perfetto.dev opens."""

import random
import time

from tracekit import JSONTraceHandler, Profiler

batches = [[random.random() for _ in range(1000)] for _ in range(5)]  # stands in for a data loader
handler = JSONTraceHandler("traces/{run_id}/rank{rank}.json")

with Profiler(trace_handlers=[handler]) as profiler:

    @profiler.marker("forward", categories=["model"])
    def forward(batch: list[float]) -> float:
        return sum(value * value for value in batch)

    for _ in range(2):
        for batch in profiler.iterate(batches, "dataloader"):
            loss = forward(batch)
            with profiler.marker("backward", categories=["model"]):
                time.sleep(0.002)
            profiler.marker("training").counter({"loss": loss})
            profiler.step(samples=len(batch))
        profiler.marker("epoch is over").instant()
        profiler.next_epoch()

print(f"Open ui.perfetto.dev and drag this file onto it: {handler.paths[0]}")
