"""T3, T4: code that runs in the middle of other code, and records: signal handlers, finalisers, GC callbacks, handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, bites, left_in, opens, writers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine

SIGNALS = """
    import itertools
    profiler = record(flush_interval=0.01)
    same, others = profiler.marker("same"), [profiler.marker(f"other {{number}}") for number in range(3)]
    numbers, depth, new = itertools.count(), [], []

    def on_signal(signal_number, frame):
        if len(depth) > 3:
            return  # a machine this slow would do nothing else
        depth.append(None)
        number = tally[5] = next(numbers)
        with same:
            profiler.marker("in the handler").counter({{"n": number}})
        if number % 50 == 0:
            # New labels and tracks are made under a lock, which the code below may hold at this moment.
            with profiler.marker(f"new {{number % 400}}"):
                same.instant()
            new.append(None)
        depth.pop()

    signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    end = time.monotonic() + {seconds}
    # Longer, where the machine is too busy for the signals.
    while time.monotonic() < end or (tally[5] <= 100 * {seconds} and time.monotonic() < end + 60):
        for _ in range(20):
            with same, others[tally[0] % 3]:
                pass
            tally[0] += 1
        try:
            with profiler.marker(f"raises {{tally[0] % 1000}}"):
                raise KeyError
        except KeyError:
            tally[3] += 1
        if tally[3] % 20 == 0:
            profiler.flush()
            profiler.step()
    signal.setitimer(signal.ITIMER_REAL, 0)
    tally[2], tally[4] = next(numbers), len(new)
    profiler.stop()
"""


def interrupt_everything(folder: Path, engine: Engine, writer: str, seconds: int) -> None:
    with bites(writer), Child(SIGNALS.format(seconds=seconds), folder, writer=writer) as child:
        assert child.end(150 + 2 * seconds) == 0, child.errors
        assert "Error" not in child.errors
        in_loop, in_handler, raised, new = child.tally[0], child.tally[2], child.tally[3], child.tally[4]
        assert in_handler > 100 * seconds, "the machine was too busy for the signals"
        remains = left_in(folder)
        opens(engine, remains)
        # Sorted, since a handler may be interrupted by the next one.
        assert sorted(remains.values("in the handler", "n")) == list(range(in_handler))
        assert remains.count("XE", "same") == in_loop + in_handler
        assert remains.count("i", "same") == new
        assert remains.summary is not None
        assert remains.summary["slices"] == 2 * in_loop + in_handler + raised + new
        assert (remains.summary["dropped"], remains.summary["failures"]) == ({}, {})


@writers("loses silently", "tears records")
def test_a_signal_handler_that_records_2000_times_a_second(tmp_path: Path, engine: Engine, writer: str) -> None:
    interrupt_everything(tmp_path, engine, writer, 1)


@pytest.mark.slow
def test_a_signal_handler_that_records_for_long(tmp_path: Path, engine: Engine) -> None:
    interrupt_everything(tmp_path, engine, "tracekit", 4)


def finalisers(folder: Path, writer: str, handlers: str = "") -> tuple[Remains, Child]:
    program = f"""
        import gc, weakref
        from tracekit import TraceHandler

        class Emits:
            \"\"\"Garbage that only a collection finds, and which records when it is found.\"\"\"
            def __init__(self):
                self.me = self
                refs.append(weakref.ref(self, lambda _: count(3)))
            def __del__(self):
                count(2)

        refs = []
        def count(slot):
            # Collections happen on any thread, that of the writer too.
            with finalised:
                pass
            counts[slot].append(None)

        def on_collection(phase, info):
            with collections:
                pass
            counts[4].append(None)

        counts = {{slot: [] for slot in (2, 3, 4)}}
        {handlers or "handler = TraceHandler()"}
        profiler = record("t.json", handler, flush_interval=0.005)
        finalised, collections, work = map(profiler.marker, ("finalised", "collections", "work"))
        gc.callbacks.append(on_collection)
        gc.set_threshold(50, 2, 2)
        for number in range(3000):
            with work:
                Emits()
            tally[0] += 1
            if number % 100 == 0:
                profiler.flush()
        deadline = time.monotonic() + 60
        while min(len(counts[2]), len(counts[3])) < 3000 and time.monotonic() < deadline:
            gc.collect()  # does nothing while another thread is at it
            time.sleep(0.001)
        gc.callbacks.remove(on_collection)
        profiler.flush()  # what other threads were in the middle of is over
        for slot, entries in counts.items():
            tally[slot] = len(entries)
        profiler.stop()
    """
    with Child(program, folder, writer=writer) as child:
        assert child.end() == 0, child.errors
        assert "Error" not in child.errors, child.errors
        return left_in(folder), child


@writers("loses silently")
def test_finalisers_and_gc_callbacks_record_on_any_thread(tmp_path: Path, engine: Engine, writer: str) -> None:
    with bites(writer):
        remains, child = finalisers(tmp_path, writer)
        opens(engine, remains)
        tally = child.tally
        assert tally[2] == tally[3] == 3000
        assert tally[4] > 100
        assert remains.count("XE", "work") == tally[0]
        assert remains.count("XE", "finalised") == tally[2] + tally[3]
        assert remains.count("XE", "collections") == tally[4]
        assert remains.summary is not None
        assert (remains.summary["dropped"], remains.summary["failures"]) == ({}, {})


def test_a_handler_that_records_and_flushes_while_it_is_delivered_to(tmp_path: Path, engine: Engine) -> None:
    program = """
        from tracekit import TraceHandler

        class Records(TraceHandler):
            inside = False
            def process_events(self, batch):
                if tally[2] < 1000 and not tally[6] and not self.inside:
                    self.inside = True
                    tally[2] += 1
                    with profiler.marker("in the handler"):
                        tally[3] += 1
                    before = time.monotonic_ns()
                    profiler.flush(timeout=60.0)  # nobody can wait for itself
                    tally[4] = max(tally[4], time.monotonic_ns() - before)
                    self.inside = False
            def flush(self):
                if tally[2] < 1000 and not tally[6]:
                    profiler.marker("n").counter({"n": 1})
                    tally[5] += 1

        profiler = record("t.json", Records(), flush_interval=0.002)
        for number in range(2000):
            with profiler.marker("work"):
                pass
            tally[0] += 1
            if number % 10 == 0:
                profiler.flush()
        tally[6] = 1  # after the end it could record nothing
        profiler.flush()
        profiler.stop()
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
        assert child.errors == ""
        remains = left_in(tmp_path)
        opens(engine, remains)
        assert child.tally[3] > 100
        assert child.tally[4] < 30e9, "a flush inside of a handler waited for itself"
        assert remains.count("XE", "work") == child.tally[0]
        assert remains.count("XE", "in the handler") == child.tally[3]
        assert remains.count("C", "n") == child.tally[5]
        assert remains.summary is not None
        assert remains.summary["failures"] == {}
