"""A trace handler and a source for `tracekit run`, found by the entry points in pyproject.toml."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from tracekit import ProfilerAction, Recording, Source, Timestamp, TraceHandler


class StepTable(TraceHandler):
    """Writes epoch, batch and length of each step to ``steps-rank0.csv`` in the current folder."""

    def open(self, recording: Recording) -> None:
        self.file = Path(f"steps-rank{recording.process.rank}.csv").open("w", newline="")  # noqa: SIM115 - closed in close()
        self.table = csv.writer(self.file)
        self.table.writerow(["epoch", "batch", "ms"])

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        if name != "batch" or "training loop" not in categories:
            return
        if is_start:
            self.step, self.start_ns = timestamp, wall_clock_time_ns
        else:
            length_ns = wall_clock_time_ns - self.start_ns
            self.table.writerow([int(self.step.epoch), int(self.step.batch), length_ns / 1e6])

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class Load(Source):
    """Counts at each step how many processes wait for a processor."""

    def open(self, recorder: object, action: ProfilerAction) -> None:
        self.marker = recorder.marker("load")

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        self.marker.counter({"processes": os.getloadavg()[0]})

    def close(self) -> None:
        pass
