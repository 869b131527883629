"""A run that records nothing until somebody asks: from another terminal, by a signal, or from inside.

Run it:       python examples/capture.py
Capture it:   with the command that it prints, as often as you like
"""

from __future__ import annotations

import signal
import time

from tracekit import JSONTraceHandler, Profiler, on_demand


def main() -> None:
    capture = on_demand("traces/{run_id}/control", on_signal=signal.SIGUSR2)
    # {batch} in the name: each capture writes a separate file.
    handler = JSONTraceHandler("traces/{run_id}/rank{rank}-{batch}.json")
    with Profiler(trace_handlers=[handler], schedule=capture) as profiler:
        run = f"traces/{profiler.process.run_id}"
        print(
            f"tracekit capture {run} --steps 5 -o merged.json.gz    or    kill -USR2 {profiler.process.pid}", flush=True
        )
        for batch in range(3000):
            with profiler.marker("forward"):
                sum(range(1000))
            with profiler.marker("backward"):
                time.sleep(0.01)
            if batch == 2900:
                profiler.capture(steps=3)  # returns at once; the next batches are recorded
            profiler.step()


if __name__ == "__main__":
    main()
