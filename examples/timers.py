"""Timers like Megatron's: a report in the log, statistics in a file, and slices in the trace. python examples/timers.py"""

from __future__ import annotations

import time

from tracekit import JSONTraceHandler, Profiler, Timers
from tracekit.timers import CSVSink, read_timers

STEPS = 10


def main() -> None:
    timers = Timers(log_level=2, log_option="minmax")
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    with Profiler(trace_handlers=[handler]) as profiler:
        for step in range(1, STEPS + 1):
            with timers("forward-backward", log_level=1):
                time.sleep(0.002)
            timers("optimizer", log_level=1).start()
            time.sleep(0.001)
            timers("optimizer").stop()
            profiler.step()
            CSVSink("timers.csv").write(timers.snapshot(reset=True), step)
    timers.log(["forward-backward", "optimizer"], normalizer=STEPS)
    print(read_timers(*handler.paths).text())  # or afterwards, of all ranks: read_timers("traces/RUN/")


if __name__ == "__main__":
    main()
