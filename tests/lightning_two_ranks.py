"""A run of two ranks with ``pytorch_lightning``, started by its own launcher; each leaves a file that says what it logged."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning  # before tracekit's modules, which take the one that is imported

from tests.lightning_loop import Net, train_loader
from tracekit.integrations.lightning import TimeProfiler, TracekitCallback, TracekitProfiler
from tracekit.testing import FakeClock

RANK = int(os.environ.get("LOCAL_RANK", "0"))


class RankClock(FakeClock):
    """Everything takes rank 1 twice as long."""

    def advance(self, ns: int) -> None:
        super().advance(ns * (1 + RANK))


class Both(TimeProfiler):
    """The values of both ranks; rank 1 hears of no backward pass, and has no value for it."""

    def on_before_backward(self, *args: Any) -> None:
        if RANK == 0:
            super().on_before_backward(*args)


class Slowest(TimeProfiler):
    """Those of the slower one."""


class Own(TimeProfiler):
    """Each rank's own."""


def main() -> None:
    warnings.simplefilter("ignore")  # of the packages
    clock = RankClock()
    times = Both(True, clock=clock.clock)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[
            times,
            Slowest(reduce="max", clock=clock.clock),
            Own(sync_dist=False, clock=clock.clock),
            TracekitCallback("traces/{run_id}/rank{rank}.json"),
        ],
        profiler=TracekitProfiler(),
    )
    net = Net(clock)
    trainer.fit(net, train_loader(clock, 8))
    found = {
        "module": type(net).__mro__[1].__module__.partition(".")[0],
        "values": dict(times.values),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    }
    Path(f"values{RANK}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
