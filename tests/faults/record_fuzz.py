"""Fuzzing of recording with the compiled core beside pure Python; `tests.faults.core_fuzz` builds it with sanitizers before.

Four kinds of rounds take turns: batches of odd records, which must become the same lines in C and in Python; programs that
use markers on several threads, which must record the same; threads that record, finalisers and a signal handler that record
in between, and forks, with nothing lost; and memory that fails at the N-th request, which must end in MemoryError or in a
record that is counted as lost, and leave everything usable.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from typing import Any


def same_lines(source: random.Random) -> None:
    """Encode odd batches in both ways."""
    from tests.both_recorders import encoded, odd_batches, pure

    batches = odd_batches(source)
    with pure():
        expected = encoded(batches)
    assert encoded(batches) == expected


def same_program(source: random.Random) -> None:
    """Do the same things with markers in both ways."""
    from tests.both_recorders import other_clock, played, program, pure
    from tracekit.clock import SYSTEM_CLOCK

    steps = program(source, 40)
    with pure():
        expected = played(steps, other_clock())
    assert played(steps, SYSTEM_CLOCK) == expected


class _Finaliser:
    """Records when the garbage collector finds it."""

    def __init__(self, marker: Any) -> None:
        self.itself = self
        self.marker = marker

    def __del__(self) -> None:
        with self.marker:
            self.marker.counter({"x": 1})


def disturbed(source: random.Random) -> None:
    """Record on several threads while signal handlers, finalisers and forks come in between; count what arrives."""
    import tracekit
    from tracekit.events import COUNTER, INSTANT, count_kinds

    found = [0, 0, 0]

    class Count(tracekit.TraceHandler):
        def process_events(self, batch: Any) -> None:
            counters, instants, begins = count_kinds(batch.records, COUNTER, INSTANT, -3)
            found[0] += len(batch) - counters - instants - begins
            found[1] += instants
            found[2] += counters

    expected = [0, 0, 0]
    rounds = source.randrange(50, 400)
    profiler = tracekit.Profiler(Count(), flush_interval=0.002, record_batches=False, rank=0)
    markers = [profiler.marker(f"m{number}") for number in range(3)]
    handled = threading.Lock()

    def record(count: int) -> None:
        for number in range(count):
            with markers[number % 3], markers[0]:
                markers[1].instant()
                markers[2].counter({"n": number, "m": 0.5} if number % 2 else {"n": float(number)})
        with handled:
            for which, each in enumerate((2, 1, 1)):
                expected[which] += count * each

    def on_signal(_number: int, _frame: Any) -> None:
        with markers[0], markers[1]:
            markers[2].instant()
        expected[0] += 2  # in the main thread alone
        expected[1] += 1

    before = signal.signal(signal.SIGALRM, on_signal)
    with profiler:
        threads = [threading.Thread(target=record, args=(rounds,)) for _ in range(3)]
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for thread in threads:
            thread.start()
        for _ in range(rounds // 10):
            for _ in range(10):
                _Finaliser(markers[1])
            gc.collect(source.randrange(3))
        child = os.fork()
        if child == 0:
            with markers[0]:
                markers[1].instant()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for thread in threads:
            thread.join()
        gc.collect()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    finalised = rounds // 10 * 10
    assert found == [expected[0] + finalised, expected[1], expected[2] + finalised], (found, expected, finalised)
    assert not profiler.stats.dropped


def fail_memory(source: random.Random, left: Any) -> None:
    """Have each request for memory fail in turn."""
    from tests.both_recorders import encoded, odd_batches
    from tracekit import core
    from tracekit.recording.lanes import Lanes
    from tracekit.recording.recording_marker import marker_classes

    compiled: Any = core.record
    assert compiled is not None
    assert marker_classes(time.perf_counter_ns)
    batches = odd_batches(source)

    def use() -> None:
        encoded(batches)
        for batch in batches:
            records = compiled.Records(batch.records)
            records += batch.records * 10
            rest = records[8:]
            del records[4:12]
            taken = records.take(8)
            assert taken + rest
            for kept in (1, 8, 9):
                assert len(compiled.Records([1, 2, -2, {}] * 10).take(40 - 4 * kept)) == 40 - 4 * kept
            Lanes(None)._look(records, [(0, 5, 1)])  # type: ignore[arg-type]

    def attempt() -> None:
        try:
            use()
        except MemoryError:
            left.value = 0
            use()

    for number in range(1, 200):
        left.value = number
        attempt()
        failed = left.value == 0
        left.value = 0
        if not failed:
            return


def lose_records(left: Any) -> None:
    """Have there be no memory for a record, whichever method makes it; the marker goes on, and the loss is counted."""
    import tracekit

    for lost in range(4):
        with tracekit.Profiler(flush_interval=3600, record_batches=False, rank=0) as profiler:
            marker = profiler.marker("a")
            uses = [marker.instant, partial(marker.counter, {"x": 1}), partial(marker.__exit__, None, None, None)]
            if lost == 3:  # what another thread finds in the marker makes it one for many
                marker.__enter__()
                thread = threading.Thread(target=marker.__enter__)
                thread.start()
                thread.join()
                marker.__exit__(None, None, None)
            profiler.flush()
            marker.__enter__()
            left.value = 1
            uses[min(lost, 2)]()
            assert left.value == 0
            assert profiler._buffer.lost_events == 1
            with marker:
                marker.instant()
            profiler.flush()
            assert profiler.stats.dropped == {"events there was no memory for": 1}


def main() -> int:
    """Run for some time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    from tracekit import core

    assert core.record is not None
    assert core.record.__file__ is not None
    # Only a core that was built for these tests has requests that fail.
    left = ctypes.c_long.in_dll(ctypes.CDLL(core.record.__file__), "tracekit_requests_left")
    end = time.monotonic() + told.seconds
    seed = told.seed
    while time.monotonic() < end:
        try:
            source = random.Random(seed)
            for _ in range(5):
                same_lines(source)
            same_program(source)
            disturbed(source)
            fail_memory(source, left)
            lose_records(left)
        except BaseException:
            print(f"at seed {seed}", file=sys.stderr)
            raise
        seed += 1
    print(f"{seed - told.seed} rounds of recording: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
