"""Record the workers of a DataLoader: each writes a separate trace next to that of its rank.

Run it:    python examples/data_loader_workers.py
Open it:   merge the folder that it names (tracekit merge -o merged.json FOLDER), and drag the result onto ui.perfetto.dev
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import tracekit
from tracekit import JSONTraceHandler, Profiler


class Pictures(Dataset[torch.Tensor]):
    """Stands in for files that are read and decoded."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        with tracekit.marker("read"):
            time.sleep(0.001)
        with tracekit.marker("decode"):
            return torch.full((8, 8), float(index))


def main() -> None:
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    with Profiler(trace_handlers=[handler]) as profiler:
        loader = DataLoader(Pictures(), batch_size=8, num_workers=2)
        # A loop without `iterate` takes one line: DataLoader(..., worker_init_fn=profiler.worker_init_fn())
        for batch in profiler.iterate(loader, "dataloader"):
            with profiler.marker("forward"):
                batch.square().mean()
            profiler.step(samples=len(batch))
    print(f"Merge this folder: {Path(handler.paths[0]).parent}")


if __name__ == "__main__":
    main()
