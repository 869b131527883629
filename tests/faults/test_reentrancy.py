"""T3, T4: code that runs in the middle of other code, and records: signal handlers, finalisers, GC callbacks, handlers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Child, left_in, opened, opens
from tests.faults.points import AtPoint
from tracekit import Profiler, TraceHandler
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine
    from tracekit import Marker

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


@pytest.mark.parametrize("seconds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_signal_handler_that_records_2000_times_a_second(tmp_path: Path, engine: Engine, seconds: int) -> None:
    with Child(SIGNALS.format(seconds=seconds), tmp_path) as child:
        assert child.end(150) == 0, child.errors
        assert "Error" not in child.errors
        in_loop, in_handler, raised, new = child.tally[0], child.tally[2], child.tally[3], child.tally[4]
        assert in_handler > 100 * seconds, "the machine was too busy for the signals"
        remains = opened(engine, tmp_path)
        # Sorted, since a handler may be interrupted by the next one.
        assert sorted(remains.values("in the handler", "n")) == list(range(in_handler))
        assert remains.count("XE", "same") == in_loop + in_handler
        assert remains.count("i", "same") == new
        assert remains.summary["slices"] == 2 * in_loop + in_handler + raised + new
        assert (remains.summary["dropped"], remains.summary["failures"]) == ({}, {})


FINALISERS = """
    import gc, weakref

    class Emits:
        # Garbage that only a collection finds, and which records when it is found.
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

    counts = {slot: [] for slot in (2, 3, 4)}
    profiler = record(flush_interval=0.005)
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


def test_finalisers_and_gc_callbacks_record_on_any_thread(tmp_path: Path, engine: Engine) -> None:
    with Child(FINALISERS, tmp_path) as child:
        assert child.end() == 0, child.errors
        assert "Error" not in child.errors, child.errors
        remains, tally = left_in(tmp_path), child.tally
        opens(engine, remains)
        assert tally[2] == tally[3] == 3000
        assert tally[4] > 100
        assert remains.count("XE", "work") == tally[0]
        assert remains.count("XE", "finalised") == tally[2] + tally[3]
        assert remains.count("XE", "collections") == tally[4]
        assert (remains.summary["dropped"], remains.summary["failures"]) == ({}, {})


def test_a_handler_that_records_and_flushes_while_it_is_delivered_to(tmp_path: Path, engine: Engine) -> None:
    program = """
        from tracekit import TraceHandler

        class Records(TraceHandler):
            inside = False
            def process_events(self, batch):
                if tally[0] and tally[2] < 1000 and not tally[6] and not self.inside:
                    self.inside = True
                    tally[2] += 1
                    with profiler.marker("in the handler"):
                        tally[3] += 1
                    before = time.monotonic_ns()
                    profiler.flush(timeout=60.0)  # nobody can wait for itself
                    tally[4] = max(tally[4], time.monotonic_ns() - before)
                    self.inside = False
            def flush(self):  # also before `record` returns; no `profiler` then
                if tally[0] and tally[2] < 1000 and not tally[6]:
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
        remains = opened(engine, tmp_path)
        assert child.tally[3] > 100
        assert child.tally[4] < 30e9, "a flush inside of a handler waited for itself"
        assert remains.count("XE", "work") == child.tally[0]
        assert remains.count("XE", "in the handler") == child.tally[3]
        assert remains.count("C", "n") == child.tally[5]
        assert remains.summary["failures"] == {}


class CountNames(TraceHandler):
    """Counts the slices, instants and counter values by name."""

    def __init__(self) -> None:
        self.slices: Counter[str] = Counter()
        self.instants: Counter[str] = Counter()
        self.values: Counter[str] = Counter()

    def process_duration_event(self, name: str, categories: Any, is_start: bool, timestamp: Any, time_ns: int) -> None:
        self.slices[name] += not is_start

    def process_instant_event(self, name: str, categories: Any, timestamp: Any, time_ns: int) -> None:
        self.instants[name] += 1

    def process_counter_event(self, name: str, categories: Any, timestamp: Any, time_ns: int, values: Any) -> None:
        self.values[name] += 1


def use(marker: Marker) -> None:
    with marker:
        marker.instant()
        marker.counter({"n": 1})


def use_in_thread(marker: Marker) -> threading.Thread:
    thread = threading.Thread(target=use, args=(marker,))
    thread.start()
    thread.join(0.02)  # it waits for a lock where the disturbed thread has it
    return thread


def nested(marker: Marker) -> None:
    with marker, marker:
        marker.instant()
        marker.counter({"n": 2})


def failing(marker: Marker) -> None:
    with contextlib.suppress(ValueError), marker:
        raise ValueError


def by_hand(marker: Marker) -> None:
    marker.start()
    marker.finish()
    marker.begin().end()


def in_tasks(marker: Marker) -> None:
    async def one() -> None:
        async with marker:
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(one(), one())

    asyncio.run(both())


def point_events(marker: Marker) -> None:
    marker.instant()
    marker.counter({"n": 2})


SHAPES: list[tuple[Callable[[Marker], None], tuple[int, int, int]]] = [  # slices, instants, counters
    (nested, (2, 1, 1)),
    (failing, (1, 0, 0)),
    (by_hand, (2, 0, 0)),
    (in_tasks, (2, 0, 0)),
    (point_events, (0, 1, 1)),
]


def count_disturbed(
    state: str, core: bool, by_thread: bool, work: Callable[[Marker], None]
) -> list[tuple[int, int, int]]:
    """Use a marker at each point of some work with it; return the numbers of slices, instants and counters each time."""
    handler = CountNames()
    clock: dict[str, Any] = {} if core else {"clock": FakeClock(tick_ns=10).clock}
    markers: list[Marker] = []
    with Profiler(handler, rank=0, record_batches=False, flush_interval=3600, **clock) as profiler:
        has_come = True
        while has_come:
            marker = profiler.marker(f"m{len(markers)}")
            markers.append(marker)
            if state == "shared":
                with marker:
                    use_in_thread(marker).join()
            elif state == "asleep":
                profiler._attached.pass_to(profiler._attached._action)
            assert type(marker).__name__ == {"asleep": "AsleepMarker", "shared": "SharedMarker"}.get(
                state, "RecordingMarker"
            )
            threads: list[threading.Thread] = []

            def disturb(marker: Marker = marker, threads: list[threading.Thread] = threads) -> None:
                if by_thread:
                    threads.append(use_in_thread(marker))
                else:
                    use(marker)

            has_come = AtPoint(len(markers) - 1, disturb).during(lambda marker=marker: work(marker))  # type: ignore[misc]
            for thread in threads:
                thread.join()
    assert profiler.stats.dropped == {}
    assert all((marker._start, marker._contended, marker._skipped) == (0, 0, 0) for marker in markers)
    return [(handler.slices[m.name], handler.instants[m.name], handler.values[m.name]) for m in markers]


@pytest.mark.parametrize("by_thread", [False, True], ids=["by a signal handler", "by a thread"])
@pytest.mark.parametrize("core", [True, False], ids=["core", "python"])
@pytest.mark.parametrize("state", ["asleep", "recording", "shared"])
@pytest.mark.parametrize(("work", "recorded"), SHAPES)
def test_a_marker_that_is_used_at_any_point_of_its_own_methods_loses_nothing(
    state: str, core: bool, by_thread: bool, work: Callable[[Marker], None], recorded: tuple[int, int, int]
) -> None:
    *disturbed, last = count_disturbed(state, core, by_thread, work)
    before = (2, 1, 1) if state == "shared" else (0, 0, 0)
    assert last == tuple(map(sum, zip(before, recorded, strict=True)))  # the work was over before the disturbance came
    assert disturbed == [tuple(count + 1 for count in last)] * len(disturbed)
    assert disturbed or (core and state == "recording")


@pytest.mark.parametrize("core", [True, False], ids=["core", "python"])
@pytest.mark.parametrize("use", ["start", "instant"])
def test_a_marker_that_is_used_while_the_schedule_changes_is_asleep_only_if_nothing_is_open(
    core: bool, use: str
) -> None:
    clock: dict[str, Any] = {} if core else {"clock": FakeClock(tick_ns=10).clock}
    handler = CountNames()
    with Profiler(handler, rank=0, record_batches=False, flush_interval=3600, **clock) as profiler:
        attached, has_come, points = profiler._attached, True, 0
        while has_come:
            marker = profiler.marker(f"m{points}")
            has_come = AtPoint(points, getattr(marker, use)).during(lambda: attached.pass_to(attached._action))
            is_open = has_come and use == "start"
            assert len(attached.open_slices()) == is_open
            if is_open:
                marker.finish()
            points += has_come
    assert points > 5
    assert (handler.slices if use == "start" else handler.instants).total() == points
