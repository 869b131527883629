"""A custom trace handler: adds up the time of each marker, and prints a table at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from tracekit import Profiler, Timestamp, TraceHandler


class TotalTimes(TraceHandler):
    """Prints how often each marker ran, and for how long in all."""

    def __init__(self) -> None:
        self.durations_ns: dict[str, list[int]] = defaultdict(list)
        self.starts_ns: list[int] = []

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        if is_start:
            self.starts_ns.append(wall_clock_time_ns)
        else:
            self.durations_ns[name].append(wall_clock_time_ns - self.starts_ns.pop())

    def close(self) -> None:
        for name, durations in sorted(self.durations_ns.items()):
            print(f"{name:<12} {len(durations):>4} x {sum(durations) / 1e6:>10.3f} ms")


if __name__ == "__main__":
    with Profiler(trace_handlers=[TotalTimes()], record_batches=False) as profiler:
        for _batch in profiler.iterate(range(3), "dataloader"):
            with profiler.marker("step"), profiler.marker("forward"):
                time.sleep(0.01)
            profiler.step()
