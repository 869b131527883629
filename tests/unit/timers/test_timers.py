"""Timer and the levels of Timers: Megatron's and NeMo's sequences, as there, or better where a weakness asks for it."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import ConfigError, MemoryTraceHandler, Profiler, TimerError, Timers
from tracekit.testing import FakeClock
from tracekit.timers import DummyTimer, OffTimer, Timer, TimerBase

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND_NS = 1_000_000_000


class Run:
    """Timers on a clock that a test sets."""

    def __init__(self, log_level: int = 2, log_option: str = "max", **options: Any) -> None:
        self.clock = FakeClock()
        self.timers = Timers(log_level, log_option, clock=self.clock.clock, **options)

    def later(self, seconds: float) -> None:
        self.clock.advance(round(seconds * SECOND_NS))


@pytest.fixture
def run() -> Run:
    return Run()


# ---- one timer ----------------------------------------------------------------------------------------------------------


def test_elapsed_of_a_running_timer_counts_what_has_passed_and_goes_on(run: Run) -> None:
    """The sequence of the reference; only `active_time` differs, which there lacks the second that runs (T14)."""
    timer = run.timers("x")
    timer.start()
    run.later(2)
    assert timer.elapsed(reset=False) == 2.0
    run.later(3)
    assert timer.elapsed() == 5.0
    assert timer.active_time() == 5.0
    run.later(1)
    assert timer.active_time() == 6.0
    assert timer.elapsed() == 1.0
    timer.stop()


def test_elapsed_adds_up_until_it_is_reset(run: Run) -> None:
    timer = run.timers("x")
    for seconds in (1, 2):
        with timer:
            run.later(seconds)
    assert timer.elapsed(reset=False) == 3.0
    assert timer.elapsed(reset=False) == 3.0
    assert timer.elapsed() == 3.0
    assert timer.elapsed() == 0.0
    assert timer.active_time() == 3.0


def test_reading_splits_no_call(run: Run) -> None:
    with run.timers("x") as timer:
        run.later(1)
        timer.elapsed()
        run.later(1)
    found = run.timers.snapshot().of("x")[0]
    assert (found.count, found.total_ns) == (1, 2 * SECOND_NS)


def test_a_timer_is_not_started_twice_nor_stopped_before(run: Run) -> None:
    timer = run.timers("x")
    with pytest.raises(TimerError, match="has not been started"):
        timer.stop()
    timer.start()
    with pytest.raises(TimerError, match="has already been started"):
        timer.start()
    timer.stop()
    with pytest.raises(TimerError, match="has not been started"):
        timer.stop()


def test_errors_are_raised_without_assertions_too() -> None:
    """T11: there they are assertions, which ``python -O`` takes out."""
    code = """
from tracekit import ConfigError, TimerError, Timers
for call, error in [
    (lambda: Timers(2, "max")("x").stop(), TimerError),
    (lambda: Timers(2, "most"), ConfigError),
    (lambda: Timers(2, "max")("x", 3), ConfigError),
    (lambda: Timers(2, "max").log(normalizer=0), ConfigError),
    (lambda: Timers(0, "max")("x", 1).elapsed(), TimerError),
]:
    try:
        call()
    except error:
        print("raised")
"""
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["raised"] * 5


def test_reset_while_it_runs_counts_from_there(run: Run) -> None:
    """There the running interval is lost, and the stop that follows asserts (T11)."""
    timer = run.timers("x")
    timer.start()
    run.later(2)
    timer.reset()
    run.later(3)
    timer.stop()
    assert timer.elapsed() == 3.0
    assert timer.active_time() == 5.0


def test_start_after_reset_begins_anew_as_there(run: Run) -> None:
    timer = run.timers("x")
    timer.start()
    run.later(2)
    timer.reset()
    run.later(4)
    timer.start()
    run.later(1)
    timer.stop()
    assert timer.elapsed() == 1.0
    timer.start()
    with pytest.raises(TimerError):
        timer.start()
    timer.stop()


def test_reset_or_stop_inside_a_with_does_not_break_its_end(run: Run) -> None:
    with run.timers("x") as timer:
        run.later(1)
        timer.reset()
        run.later(2)
    assert timer.elapsed() == 2.0

    def stop_and_fail() -> None:
        with timer:
            run.later(1)
            timer.stop()
            raise KeyError

    with pytest.raises(KeyError):
        stop_and_fail()
    assert timer.elapsed() == 1.0


def test_an_exception_ends_the_interval_and_gets_out(run: Run) -> None:
    timer = run.timers("x")

    def fail() -> None:
        with timer:
            run.later(4)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert timer.elapsed() == 4.0


def test_a_wall_clock_that_is_set_back_changes_nothing(run: Run) -> None:
    """T1: there 5 s back between start and stop give minus 5 s, which the report then hides."""
    with run.timers("x") as timer:
        run.clock.wall_ns -= 5 * SECOND_NS
        run.later(1)
    assert timer.elapsed(reset=False) == 1.0
    assert "1000.00" in str(run.timers.get_all_timers_string())


def test_set_elapsed_is_what_is_reported(run: Run) -> None:
    timer = run.timers("startup")
    with timer:
        run.later(1)
    timer.set_elapsed(12.5)
    assert timer.elapsed(reset=False) == 12.5
    assert "12500.00" in str(run.timers.get_all_timers_string(reset=False))
    timer.set_elapsed(3)
    assert timer.elapsed() == 3.0
    assert timer.active_time() == 1.0
    assert timer.elapsed() == 0.0


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "3"])
def test_set_elapsed_takes_seconds_only(run: Run, value: Any) -> None:
    with pytest.raises(TimerError, match="number of seconds"):
        run.timers("x").set_elapsed(value)


# ---- more than one at once -----------------------------------------------------------------------------------------------


def test_recursion_is_counted_once_and_every_slice_is_in_the_trace(run: Run) -> None:
    """T9: a ``with`` inside of a ``with`` of the same timer."""
    handler = MemoryTraceHandler()

    def work(depth: int) -> None:
        with run.timers("x"):
            run.later(1)
            if depth:
                work(depth - 1)

    with Profiler([handler]):
        work(2)
    assert run.timers("x").elapsed() == 3.0
    assert run.timers.snapshot().of("x")[0].count == 1
    assert len(handler.slices) == 3


def test_threads_time_with_one_timer_at_once(run: Run) -> None:
    """T9: there the second thread asserts."""
    together = threading.Barrier(3)
    timer = run.timers("x")

    def work() -> None:
        together.wait(60)
        timer.start()
        together.wait(60)
        together.wait(60)
        timer.stop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    together.wait(60)
    together.wait(60)
    run.later(1)
    together.wait(60)
    for thread in threads:
        thread.join()
    assert timer.elapsed() == 2.0
    assert run.timers.snapshot().of("x")[0].count == 2


def test_another_thread_cannot_stop_it_and_is_told_so(run: Run) -> None:
    timer = run.timers("x")
    timer.start()
    said: list[str] = []

    def stop() -> None:
        try:
            timer.stop()
        except TimerError as error:
            said.append(str(error))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert "another thread has started it" in said[0]
    timer.stop()


def test_no_call_is_lost_when_many_threads_end_theirs() -> None:
    timers = Timers(2, "max")
    calls, threads = 3000, 4

    def work() -> None:
        for _ in range(calls):
            with timers("x"):
                pass

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        timers.snapshot()
    for worker in workers:
        worker.join()
    assert timers.snapshot().of("x")[0].count == calls * threads


def test_tasks_have_intervals_of_their_own(run: Run) -> None:
    timer = run.timers("x")

    async def first() -> None:
        with timer:
            await asyncio.sleep(0)
            run.later(1)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(first(), first())

    asyncio.run(both())
    assert run.timers.snapshot().of("x")[0].count == 2


# ---- levels ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registry", "asked", "on"),
    [
        (0, 0, True), (0, 1, False), (0, 2, False), (0, None, False),
        (1, 0, True), (1, 1, True), (1, 2, False), (1, None, False),
        (2, 0, True), (2, 1, True), (2, 2, True), (2, None, True),
        (-1, 0, False), (-1, -1, True), (5, 2, True), (5, None, True),
    ],
)  # fmt: skip
def test_a_timer_is_on_if_its_level_is_not_above_that_of_the_registry(
    registry: int, asked: int | None, on: bool
) -> None:
    timers = Run(registry).timers
    assert isinstance(timers("x", asked), Timer) is on
    assert timers.names == (["x"] if on else [])


def test_the_level_of_a_timer_that_exists_must_be_the_same(run: Run) -> None:
    timer = run.timers("x", 1)
    assert run.timers("x") is run.timers("x", log_level=1) is timer
    with pytest.raises(ConfigError, match="was made with log_level 1"):
        run.timers("x", 2)
    with pytest.raises(ConfigError, match="was made with log_level 1"):
        run.timers("x", 3)  # checked before the largest level, as there


@pytest.mark.parametrize("level", [3, 100, True, 1.0, "1"])
def test_levels_above_two_are_refused(run: Run, level: Any) -> None:
    with pytest.raises(ConfigError, match="log_level must be a whole number up to 2"):
        run.timers("x", level)


def test_a_name_that_was_off_can_be_made_with_a_lower_level() -> None:
    timers = Run(1).timers
    assert not isinstance(timers("x"), Timer)
    assert isinstance(timers("x", 1), Timer)
    assert isinstance(timers("x"), Timer), "from now on the name is known"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_option": "Max"}, "'max', 'minmax', 'all'"),
        ({"log_option": None}, "'max', 'minmax', 'all'"),
        ({"log_level": "2"}, "Timers: log_level must be a whole number"),
        ({"log_level": True}, "Timers: log_level must be a whole number"),
        ({"device": "gpu"}, "Timers: device must be one of"),
        ({"timeout": 0}, "Timers: timeout"),
        ({"name": ""}, "name must be text"),
        ({"name": 3}, "name must be text"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Timers(**{"log_level": 2, "log_option": "max", **arguments})


def test_the_name_of_a_timer_is_text(run: Run) -> None:
    with pytest.raises(ConfigError, match="must be text"):
        run.timers(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Timers(0, "max")("x", 1, barrier=True), r"'x' is off .* level is 1, and Timers has log_level 0"),
        (DummyTimer, "dummy timer measures nothing"),
    ],
    ids=["of a level that is off", "dummy"],
)
def test_a_timer_that_is_off_does_nothing_until_it_is_read(make: Callable[[], OffTimer], reason: str) -> None:
    timer = make()
    assert isinstance(timer, OffTimer)
    handler = MemoryTraceHandler()
    with Profiler([handler]), timer as entered:
        assert entered is timer
    assert handler.slices == []
    timer.start(barrier=True)
    timer.start()
    timer.stop(barrier=True)
    timer.reset()
    timer.set_elapsed(1)
    timer.set_barrier_group(None)
    assert timer.with_barrier() is timer
    for read in (timer.elapsed, timer.active_time):
        with pytest.raises(TimerError, match=reason):
            read()


def test_a_timer_that_is_off_is_logged_once_whether_or_not_its_level_is_given(caplog: pytest.LogCaptureFixture) -> None:
    """T5: there it is silent. The default level surprises people, so it is a warning; a level that was given is not.

    Megatron's code gives the level at the start and leaves it out at the stop.
    """
    timers = Run(0).timers
    with caplog.at_level(logging.INFO, "tracekit"):
        for name, first, second in (("a", 2, None), ("b", None, 2), ("c", 1, 2)):
            timers(name, first).start()
            timers(name, second).stop()
            timers(name, first).start()
    assert [(record.levelname, record.message.split("'")[1]) for record in caplog.records] == [
        ("INFO", "a"),
        ("WARNING", "b"),
        ("INFO", "c"),
    ]
    assert "Timers has log_level 0" in caplog.messages[0]
    assert timers.get_all_timers_string() is None


# ---- timers without a Timers ----------------------------------------------------------------------------------------------


def test_a_timer_of_its_own_measures_and_is_in_the_trace() -> None:
    clock = FakeClock()
    handler = MemoryTraceHandler()
    with Profiler([handler], clock=clock.clock):
        timer = Timer("load", clock=clock.clock.monotonic_ns)
        timer.start(barrier=True)
        clock.advance(2 * SECOND_NS)
        timer.stop(barrier=True)
        with timer.with_barrier(), pytest.raises(TimerError, match="already been started"):
            timer.start()
    assert (timer.name, timer.log_level, timer.device) == ("load", 2, "host")
    assert timer.elapsed(reset=True) == 2.0
    assert (timer.elapsed(), timer.active_time()) == (0.0, 2.0)
    assert [begin.label.name for begin, _ in handler.slices] == ["load", "load"]
    with pytest.raises(ConfigError, match="device must be one of"):
        Timer("load", device="gpu")


# ---- barriers, in one process --------------------------------------------------------------------------------------------------


def test_barriers_of_one_process_wait_for_nobody(run: Run) -> None:
    timer = run.timers("x")
    timer.start(barrier=True)
    run.later(1)
    assert timer.elapsed(reset=False, barrier=True) == 1.0
    timer.stop(barrier=True)
    run.timers.log(barrier=True)


def test_a_barrier_that_was_asked_for_does_not_reach_another_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """T10: there the flag stays on the timer when the context is not entered, or when its end asserts."""
    waits: list[str] = []
    monkeypatch.setattr(run.timers._ranks, "barrier", lambda name, *_: waits.append(name))
    run.timers("x")._barrier = run.timers._ranks.barrier  # type: ignore[attr-defined]
    run.timers("x", barrier=True)
    run.timers("x").with_barrier()
    with run.timers("x"):
        pass
    assert waits == []
    with run.timers("x", barrier=True) as timer:
        timer.stop()
    with run.timers("x"):
        pass
    assert waits == ["x", "x"]
    assert run.timers("x").with_barrier(False) is run.timers("x")


def test_a_body_that_raises_does_not_wait_for_the_other_ranks(run: Run) -> None:
    waits: list[str] = []
    run.timers("x")._barrier = lambda name, *_: waits.append(name)  # type: ignore[attr-defined]
    with pytest.raises(KeyError), run.timers("x", barrier=True):
        raise KeyError
    assert waits == ["x"], "only at its beginning"


def test_a_timer_with_barriers_is_the_timer_in_everything_else(run: Run) -> None:
    timer = run.timers("x", barrier=True)
    assert isinstance(timer, TimerBase)
    assert repr(copy.copy(timer)) == "<Timer 'x' with barriers>"
    timer.set_barrier_group(None)
    timer.start()
    run.later(1)
    timer.stop()
    assert (timer.elapsed(reset=False), timer.active_time(), timer.name) == (1.0, 1.0, "x")
    timer.set_elapsed(4)
    assert run.timers("x").elapsed(reset=False) == 4.0
    timer.reset()
    assert run.timers("x").elapsed() == 0.0
    assert timer.with_barrier(False) is run.timers("x")


# ---- the trace ---------------------------------------------------------------------------------------------------------------


def test_what_is_timed_is_in_the_trace_of_the_active_profiler(run: Run) -> None:
    """T8: there nothing is."""
    handler = MemoryTraceHandler()
    with run.timers("before"), Profiler([handler]):
        with run.timers("outer"), run.timers("inner", barrier=True):
            pass
        run.timers("by hand").start()
        run.timers("by hand").stop()
    assert [(begin.label.name, begin.label.categories) for begin, _ in handler.slices] == [
        ("inner", ("timer",)),
        ("outer", ("timer",)),
        ("by hand", ("timer",)),
    ]
    assert run.timers.snapshot().of("before")[0].count == 1


def test_timers_record_into_the_profiler_that_they_are_given() -> None:
    given, active = MemoryTraceHandler(), MemoryTraceHandler()
    with Profiler([given]) as profiler, Profiler([active]), Timers(2, "max", profiler=profiler)("x"):
        pass
    assert [begin.label.name for begin, _ in given.slices] == ["x"]
    assert active.slices == []


def test_a_slice_of_the_trace_is_as_long_as_the_timer_says() -> None:
    clock = FakeClock(tick_ns=10)
    handler = MemoryTraceHandler()
    timers = Timers(2, "max", clock=clock.clock)
    # An interval of an hour: the writer's looks at the clock are ticks, too.
    with Profiler([handler], clock=clock.clock, flush_interval=3600), timers("x"):
        clock.advance(SECOND_NS)
    ((begin, end),) = handler.slices
    longer_ns = end.wall_clock_time_ns - begin.wall_clock_time_ns - timers.snapshot().of("x")[0].total_ns
    assert longer_ns == 20, "two readings of the clock"


def test_timers_need_no_torch() -> None:
    """T15: there torch, CUDA and a process group are needed to print on one process."""
    code = """
import sys
sys.modules["torch"] = None
from tracekit import Timers
timers = Timers(2, "all")
with timers("x", barrier=True):
    pass
timers("x").set_elapsed(1.25)
timers.log(["x"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "times across ranks (ms):\n  x:\n     rank  0: 1250.00\n"


# ---- forked children ------------------------------------------------------------------------------------------------------

FORKED = """
import os, signal, threading
from tracekit import Timers
from tracekit.testing import FakeClock
from tracekit.timers import Timer
from tracekit.timers.device import DeviceEvents

clock = FakeClock()
timers = Timers(2, "max", clock=clock.clock)
timer, on_device = timers("x"), Timer("on the device")  # one that belongs to no Timers as well
on_device._events = DeviceEvents("on the device")
entered, end = threading.Event(), threading.Event()


def hold():
    with timer, timer, timer._lock, on_device._lock:
        entered.set()
        end.wait()


thread = threading.Thread(target=hold)
thread.start()
entered.wait()
timer.start()
clock.advance(2_000_000_000)
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends it, if it waits for what nobody is going to release
    clock.advance(1_000_000_000)
    timer.stop()
    right = timer.elapsed() == 3.0 and on_device.elapsed() == 0.0
    clock.advance(1_000_000_000)
    os._exit(0 if right and timer.elapsed() == 0.0 and not timer._open and not timer._nested else 1)
_, status = os.waitpid(child, 0)
end.set()
thread.join()
assert timer.elapsed() == 4.0, "in the parent both threads' intervals are as they were"
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_neither_the_locks_nor_the_intervals_of_other_threads() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
