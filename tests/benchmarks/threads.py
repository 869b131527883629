"""Compare the cost of a marker on four threads with that on one. The threads may only wait for the interpreter lock."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from tests.benchmarks import peers
from tests.benchmarks.measure import Spread, count_for
from tests.benchmarks.pure_python import beside
from tests.benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.benchmarks.measure import Effort, Loop

NAME = "threads"
THREADS = 4
BOUND = 1.5


def rows(effort: Effort) -> Iterator[Row]:
    """Measure threads, with the compiled core and in pure Python."""
    yield from beside(own_rows(effort), __name__, effort)


def own_rows(effort: Effort) -> Iterator[Row]:
    """Measure threads that share one marker, as with the same name, and threads with a marker each."""
    for what, shared in (("with marker: on 4 threads, one marker", True), ("the same, a marker each", False)):
        with peers.recording() as profiler:
            markers = [profiler.marker("x" if shared else f"x{thread}") for thread in range(THREADS)]
            loops = [peers.entering(marker) for marker in markers]
            # Long enough that every thread gets the interpreter lock more than once; it changes hands every 5 ms.
            count = count_for(loops[0], effort.round_ns * 20)
            ratios, times = [], []
            alone = peers.entering(profiler.marker("alone"))  # a marker that threads have shared stays dearer
            for _ in range(max(2, effort.rounds // 10)):
                single_ns = wall_time_of([alone], count * THREADS)
                profiler.flush()
                threaded_ns = wall_time_of(loops, count)
                profiler.flush()
                ratios.append(threaded_ns / single_ns)
                times.append(threaded_ns)
        remarks = f"{statistics.median(times):.0f} ns an event"
        yield Row(NAME, what, Spread.of(ratios), " x one thread", at_most=BOUND, remarks=remarks)


def wall_time_of(loops: Sequence[Loop], count: int) -> float:
    """Run each loop ``count`` times on a separate thread; return the wall time of one operation of all, in ns."""
    ready = threading.Barrier(len(loops))
    starts, ends = [], []

    def run(loop: Loop) -> None:
        ready.wait()
        starts.append(time.perf_counter_ns())
        loop(count)
        ends.append(time.perf_counter_ns())

    threads = [threading.Thread(target=run, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (max(ends) - min(starts)) / (count * len(loops))
