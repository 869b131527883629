"""The smallest use: a plain training loop, markers around its parts, one trace file.

Run it:    python examples/plain_loop.py
Open it:   drag the file that it names onto ui.perfetto.dev
"""

from __future__ import annotations

import random
import time

from tracekit import JSONTraceHandler, Profiler


def load(batches: int) -> list[list[float]]:
    """Stand in for a data loader."""
    return [[random.random() for _ in range(1000)] for _ in range(batches)]


def main() -> None:
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    with Profiler(trace_handlers=[handler]) as profiler:

        @profiler.marker("forward", categories=["model"])
        def forward(batch: list[float]) -> float:
            return sum(value * value for value in batch)

        for _ in range(2):
            for batch in profiler.iterate(load(5), "dataloader"):
                loss = forward(batch)
                with profiler.marker("backward", categories=["model"]):
                    time.sleep(0.002)
                profiler.marker("training").counter({"loss": loss})
                profiler.step(samples=len(batch))
            profiler.marker("epoch is over").instant()
            profiler.next_epoch()
    print(f"Open ui.perfetto.dev and drag this file onto it: {handler.paths[0]}")


if __name__ == "__main__":
    main()
