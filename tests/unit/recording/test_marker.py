"""Markers: what is recorded, when, on which track; re-entrancy, threads, tasks, exceptions, decorators, states."""

from __future__ import annotations

import asyncio
import decimal
import fractions
import inspect
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit import ConfigError, Marker, MemoryTraceHandler, Profiler, ProfilerAction, TraceHandler
from tracekit.recording import attached_markers, lifecycle
from tracekit.recording.attached_markers import AttachedMarkers
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from tracekit import SliceBegin, SliceEnd, Timestamp


class Run:
    """A profiler with a memory handler, a clock that only the test moves, and an action that the test sets."""

    def __init__(self) -> None:
        self.time = FakeClock(tick_ns=10)
        self.memory = MemoryTraceHandler()
        self.next_action = ProfilerAction.ACTIVE
        self.profiler = Profiler(
            self.memory, self._schedule, clock=self.time.clock, record_batches=False, flush_interval=3600, rank=0
        )

    def _schedule(self, timestamp: Timestamp) -> ProfilerAction:
        return self.next_action

    def set_action(self, action: ProfilerAction) -> None:
        self.next_action = action
        self.profiler.step()

    def slices(self) -> list[tuple[SliceBegin, SliceEnd]]:
        assert self.profiler.flush()
        return self.memory.slices

    def names(self) -> list[str]:
        return [start.label.name for start, _ in self.slices()]


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    with run.profiler:
        yield run


def duration_ns(pair: tuple[SliceBegin, SliceEnd]) -> int:
    return pair[1].wall_clock_time_ns - pair[0].wall_clock_time_ns


def test_the_same_arguments_give_the_same_marker_and_others_another(run: Run) -> None:
    marker = run.profiler.marker
    assert marker("a") is marker("a")
    assert marker("a", categories=("x",)) is marker("a", categories=["x"])
    assert marker("a") is not marker("a", categories=("x",))
    assert marker("a", actions=[ProfilerAction.ACTIVE]) is not marker("a")
    assert marker("a", categories="abc").categories == ("abc",)


def in_thread(use: Callable[[], object]) -> None:
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()


def use_once(marker: Marker) -> None:
    with marker:
        pass


def share(marker: Marker) -> None:
    """Have a thread find another one in the marker."""
    with marker:
        in_thread(lambda: use_once(marker))


@pytest.mark.parametrize(
    "asked",
    [
        lambda profiler: profiler.marker("made twice"),
        lambda profiler: profiler.marker("made twice", ("of a category",)),
        lambda profiler: tracekit.marker("made twice"),
    ],
    ids=["by name", "by name and category", "of the module"],
)
def test_a_thread_that_asks_for_a_marker_while_another_makes_it_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: Callable[[Profiler], Marker]
) -> None:
    adopt, main = Profiler.adopt, threading.main_thread()

    def adopt_late(profiler: Profiler, marker: Marker) -> None:
        if threading.current_thread() is main:
            in_thread(lambda: use_once(asked(run.profiler)))
        adopt(profiler, marker)

    monkeypatch.setattr(Profiler, "adopt", adopt_late)
    use_once(asked(run.profiler))
    assert run.names() == ["made twice"] * 2


def test_a_task_ends_its_slice_that_began_before_the_marker_was_shared_by_threads(run: Run) -> None:
    marker = run.profiler.marker("shared while tasks are in it")

    async def early(entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with marker:
            entered.set()
            await leave.wait()

    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        with marker:  # what the other thread meets
            before = asyncio.create_task(early(entered, leave))
            await entered.wait()
            in_thread(lambda: use_once(marker))
        async with marker:
            leave.set()
            await before
        assert marker.open_slices() == []

    asyncio.run(main())
    assert len(run.slices()) == 4


def test_a_shared_marker_forgets_threads_that_have_ended(run: Run) -> None:
    marker = run.profiler.marker("a")
    share(marker)
    for _ in range(200):
        in_thread(lambda: use_once(marker))
    assert len(marker._clones) <= 70
    assert len(run.slices()) == 202


def test_an_exception_in_a_nested_use_of_one_marker_closes_the_right_slice(run: Run) -> None:
    marker = run.profiler.marker("a")
    with marker:
        with pytest.raises(ValueError, match="inner"), marker:
            raise ValueError("inner")
        run.time.advance(1_000)
    inner, outer = sorted(run.slices(), key=duration_ns)
    assert inner[1].label.args == {"exception": "ValueError"}
    assert outer[1].label.args == {}


def test_a_slice_that_was_begun_is_ended_by_any_thread_in_any_order(run: Run) -> None:
    marker = run.profiler.marker("copy", categories=["io"])
    first = marker.begin()
    second = marker.begin()
    assert run.slices() == []
    in_thread(first.end)
    with pytest.raises(KeyError), marker.begin():
        raise KeyError
    second.end()
    second.end()
    with marker:
        run.time.advance(5)
    slices = run.slices()
    assert [(end.label.args, start.track.async_id > 0) for start, end in slices] == [
        ({}, True),
        ({"exception": "KeyError"}, True),
        ({}, True),
        ({}, False),
    ]
    assert slices[0][0].track == slices[1][0].track != slices[2][0].track, "a track is used again"
    marker.begin()  # never ended: begun, and counted
    run.profiler.flush()
    assert (run.profiler.stats.slices, run.profiler.stats.dropped) == (5, {})


def test_a_slice_that_was_begun_and_outlives_the_profiler_counts_once() -> None:
    run = Run()
    with run.profiler:
        handle = run.profiler.marker("copy").begin()
    handle.end()
    assert (run.profiler.stats.recorded, run.profiler.stats.dropped) == (1, {})


def test_a_slice_that_was_begun_follows_the_schedule_at_its_begin(run: Run) -> None:
    marker = run.profiler.marker("copy")
    run.set_action(ProfilerAction.SKIP)
    skipped = marker.begin()
    run.set_action(ProfilerAction.ACTIVE)
    skipped.end()
    with marker.begin():
        run.set_action(ProfilerAction.SKIP)
    assert run.names() == ["copy"]


def test_inline_handlers_get_slices_that_were_begun_also_of_a_shared_marker_and_finite_counter_values() -> None:
    found: list[Any] = []

    class Inline(TraceHandler):
        inline = True

        def process_duration_event(self, *args: Any) -> None:
            found.append(args[:3])

        def process_counter_event(self, *args: Any) -> None:
            found.append(args[-1])

    with Profiler(Inline(), rank=0, record_batches=False) as profiler:
        marker = profiler.marker("m")
        share(marker)
        found.clear()
        marker.begin().end()
        marker.counter({"a": float("nan"), "b": 2, "c": "3"})  # type: ignore[dict-item]
    assert found == [("m", (), True), ("m", (), False), {"b": 2}]


@pytest.mark.parametrize("shared", [False, True])
def test_a_finish_by_a_thread_that_did_not_start_is_logged_once(
    run: Run, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    marker = run.profiler.marker("m")
    if shared:
        share(marker)
    marker.finish()  # of nothing at all
    assert not caplog.records
    marker.start()
    for _ in range(3):
        in_thread(marker.finish)
    (logged,) = [record.getMessage() for record in caplog.records]
    assert "marker 'm' was finished by a thread or task that had not started it" in logged
    assert "marker.begin()" in logged
    marker.finish()
    assert run.names()[-1] == "m"


def test_instants_and_counters_have_their_time_and_values(run: Run) -> None:
    run.profiler.marker("saved").instant()
    values = {"loss": 1.5, "steps": 3}
    run.profiler.marker("train").counter(values)
    values["loss"] = 99.0  # the marker has its own copy
    run.profiler.flush()
    (instant,), (counter,) = run.memory.instants, run.memory.counters
    assert instant.label.name == "saved"
    assert counter.values == {"loss": 1.5, "steps": 3}
    assert instant.wall_clock_time_ns < counter.wall_clock_time_ns <= run.time.wall_ns


def test_refused_counter_values_are_logged_once_for_each_marker_and_reason(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[tuple[str, Any]] = [
        ("a", {"loss": float("nan"), "norm": float("inf")}),
        ("a", {"loss": 1.0, "norm": object()}),
        ("b", {"loss": float("nan")}),
        ("b", []),
        ("c", {"loss": 10**5000}),
        ("d", {"1": 1.0, 1: 2.0}),
    ]
    for _ in range(3):
        for name, values in given:
            run.profiler.marker(name).counter(values)
        run.profiler.flush()
    logged = [record.getMessage() for record in caplog.records]
    assert sorted(line.removeprefix("tracekit: counter ").partition(". Such")[0] for line in logged) == [
        "'a': 'loss' is nan, which is no finite number below 2**63",
        "'a': 'norm' is of type object, which is no finite number below 2**63",
        "'b' was given list, not a mapping of numbers by name, such as {'loss': 0.5}",
        "'b': 'loss' is nan, which is no finite number below 2**63",
        "'c': 'loss' is of type int, which is no finite number below 2**63",
        "'d': two of its names are the same as text",
    ]
    assert all("are left out and counted" in line for line in logged)
    assert run.profiler.stats.dropped == {"counter values that are not numbers": 21}


def test_refused_counter_values_of_ever_new_names_do_not_fill_the_log(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(150):
        run.profiler.marker(f"c{number}").counter({"loss": "7"})
    run.profiler.flush()
    assert len(caplog.records) == 100
    assert "and the last" in caplog.records[-1].getMessage()
    assert run.profiler.stats.dropped == {"counter values that are not numbers": 150}


def test_counter_values_of_numpy_and_decimal_are_numbers_and_integers_stay_exact(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    numpy = pytest.importorskip("numpy")
    large = 2**53 + 1
    values: dict[str, Any] = {
        "array": numpy.array(0.5),
        "whole": numpy.array(large),
        "scalar": numpy.int64(large),
        "float": numpy.float32(0.25),
        "int": large,
        "decimal": decimal.Decimal("1.5"),
        "whole decimal": decimal.Decimal(large),
        "fraction": fractions.Fraction(1, 4),
        "bool": True,
        "bool of numpy": numpy.bool_(True),
        "vector": numpy.zeros(1),
        "not a number": decimal.Decimal("NaN"),
        "infinite": decimal.Decimal("-Infinity"),
        "endless": decimal.Decimal("1e999999"),
        "beyond 64 bits": 1 << 70,
        "nothing": None,
        "text": "7",
    }
    run.profiler.marker("c").counter(values)
    run.profiler.flush()
    found = run.memory.counters[0].values
    assert found == {
        "array": 0.5,
        "whole": large,
        "scalar": large,
        "float": 0.25,
        "int": large,
        "decimal": 1.5,
        "whole decimal": large,
        "fraction": 0.25,
        "bool": 1,
        "bool of numpy": 1,
    }
    assert {type(value) for value in found.values()} == {int, float}
    assert run.profiler.stats.dropped == {"counter values that are not numbers": 7}
    assert [record.getMessage().partition(", ")[0] for record in caplog.records] == [
        "tracekit: counter 'c': 'vector' is of type ndarray",
        "tracekit: counter 'c': 'not a number' is of type Decimal",
        "tracekit: counter 'c': 'beyond 64 bits' is of type int",
        "tracekit: counter 'c': 'nothing' is of type NoneType",
        "tracekit: counter 'c': 'text' is of type str",
    ]


def test_instants_at_the_edges_of_a_slice_have_its_times(run: Run) -> None:
    with run.profiler.marker("a", record_instant_on_start=True, record_instant_on_finish=True):
        run.time.advance(1_000)
    ((start, end),) = run.slices()
    assert [instant.wall_clock_time_ns for instant in run.memory.instants] == [
        start.wall_clock_time_ns,
        end.wall_clock_time_ns,
    ]


@pytest.mark.parametrize("made", ["before the start", "later"])
def test_a_marker_with_actions_of_its_own_records_in_those_only(made: str) -> None:
    run = Run()
    run.next_action = ProfilerAction.SKIP
    if made == "before the start":
        markers = [run.profiler.marker("m", actions=[action]) for action in ProfilerAction]
    with run.profiler:
        if made == "later":
            markers = [run.profiler.marker("m", actions=[action]) for action in ProfilerAction]
        always = run.profiler.marker("always", actions=list(ProfilerAction))
        usual = run.profiler.marker("usual")
        for action in (ProfilerAction.SKIP, ProfilerAction.WARMUP, ProfilerAction.ACTIVE):
            if action is not ProfilerAction.SKIP:
                run.set_action(action)
            for marker in (*markers, always, usual):
                with marker:
                    pass
        found = run.names()
    assert Counter(found) == {"m": 3, "always": 3, "usual": 2}


@pytest.mark.parametrize("actions", ["active", "ACTIVE", ProfilerAction.ACTIVE, ["active"]], ids=repr)
def test_a_marker_takes_one_action_or_several_by_member_or_name(run: Run, actions: Any) -> None:
    with run.profiler.marker("m", actions=actions):
        pass
    run.set_action(ProfilerAction.WARMUP)
    with run.profiler.marker("m", actions=actions):
        pass
    assert run.names() == ["m"]


@pytest.mark.parametrize("actions", [None, 5, "act", ["active", "record"]], ids=repr)
def test_a_marker_refuses_what_is_no_action(run: Run, actions: Any) -> None:
    with pytest.raises(ConfigError, match="is not a ProfilerAction; the actions are skip,"):
        run.profiler.marker("m", actions=actions)


def test_a_change_of_the_schedule_costs_work_for_the_markers_in_use_only(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(500):
        with run.profiler.marker(f"step {number}"):
            pass
    run.set_action(ProfilerAction.SKIP)
    touched: list[str] = []
    for name in ("_put", "_send_to_sleep"):
        method = getattr(AttachedMarkers, name)

        def note(self: AttachedMarkers, marker: Marker, method: Any = method) -> Any:
            touched.append(marker.name)
            return method(self, marker)

        monkeypatch.setattr(AttachedMarkers, name, note)
    run.profiler.marker("step 3").start()  # not recorded, and open during the next changes
    run.set_action(ProfilerAction.ACTIVE)
    run.set_action(ProfilerAction.SKIP)
    run.set_action(ProfilerAction.ACTIVE)
    with run.profiler.marker("step 7"):
        run.set_action(ProfilerAction.SKIP)
    assert {name for name in touched if name.startswith("step ")} == {"step 3", "step 7"}
    run.profiler.marker("step 3").finish()
    run.set_action(ProfilerAction.ACTIVE)
    run.profiler.marker("step 9").instant()
    run.profiler.marker("step 8").counter({"x": 1})
    with run.profiler.marker("step 3"):
        pass
    assert run.names()[500:] == ["step 7", "step 3"]
    assert (len(run.memory.instants), len(run.memory.counters)) == (1, 1)


def test_a_task_records_again_with_a_marker_that_slept_through_a_change(run: Run) -> None:
    marker = run.profiler.marker("m")

    async def in_task() -> None:
        async with marker:
            run.time.advance(100)

    for _ in range(3):
        for action, times in ((ProfilerAction.SKIP, 1), (ProfilerAction.ACTIVE, 2)):
            run.set_action(action)
            for _ in range(times):
                asyncio.run(in_task())
    assert [duration_ns(pair) >= 100 for pair in run.slices()] == [True] * 6
    assert not marker.open_slices()


def test_tasks_of_a_thread_get_no_lane_of_an_ended_one_with_its_ident(run: Run) -> None:
    @run.profiler.marker("m")
    async def in_task() -> None:
        await asyncio.sleep(0)

    for name in ("first", "second"):
        thread = threading.Thread(target=lambda: asyncio.run(in_task()), name=name)
        thread.start()
        thread.join()
    assert [start.track.name for start, _ in run.slices()] == ["first · task 1", "second · task 1"]


def test_markers_that_are_not_used_any_more_are_not_looked_at_at_every_flush(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_markers, "_MANY_AWAKE", 20)
    used, left = run.profiler.marker("used"), run.profiler.marker("open")
    left.start()
    for number in range(100):
        with run.profiler.marker(f"step {number}"):
            pass
    for _ in range(40):
        with used:
            pass
        run.profiler.flush()
    awake = {marker.name for marker in run.profiler._attached._awake.values()}
    assert {"used", "open"} <= awake
    assert not any(name.startswith("step ") for name in awake)
    left.finish()
    with run.profiler.marker("step 5"):
        pass
    assert sorted(run.names()[100:]) == sorted(["used"] * 40 + ["open", "step 5"])


def test_names_that_are_made_without_end_share_one_in_the_end_and_are_warned_of(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "MANY_MARKERS", 10)
    monkeypatch.setattr(lifecycle, "MAX_MARKERS", 20)
    labels = len(run.profiler._buffer.labels)
    for number in range(40):
        with run.profiler.marker(f"step {number}", categories=(f"c{number}",)):
            pass
    for number in range(3):  # those that are known keep their names
        with run.profiler.marker(f"step {number}", categories=(f"c{number}",)):
            pass
    assert run.names() == [f"step {number}" for number in range(20)] + ["(other names)"] * 20 + [
        "step 0",
        "step 1",
        "step 2",
    ]
    assert len(run.profiler._buffer.labels) == labels + 21
    assert [record.getMessage().partition(" markers")[0] for record in caplog.records] == [
        "tracekit: there are 10",
        "tracekit: there are 20",
    ]
    other = run.profiler.marker("new", actions=[ProfilerAction.ACTIVE])
    assert (other.name, other.actions) == ("(other names)", {ProfilerAction.ACTIVE})


@pytest.mark.parametrize("brackets", [False, True])
def test_a_decorated_function_keeps_its_value_name_and_signature(run: Run, brackets: bool) -> None:
    marker = run.profiler.marker("f")
    decorate: Any = marker() if brackets else marker

    @decorate
    def add(a: int, *, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1, b=5) == 6
    assert add.__name__ == "add"
    assert add.__doc__ == "Add."
    assert str(inspect.signature(add)) == "(a: 'int', *, b: 'int' = 2) -> 'int'"
    assert run.names() == ["f"]


def test_a_decorated_generator_records_each_time_it_runs_and_is_otherwise_the_same(run: Run) -> None:
    caught: list[str] = []

    def numbers() -> Generator[int, str, str]:
        try:
            answer = yield 1
            caught.append(answer)
            try:
                yield 2
            except KeyError:
                caught.append("KeyError")
                yield 3
        finally:
            caught.append("closed")
        return "end"

    decorated: Callable[[], Generator[int, str, str]] = run.profiler.marker("g")(numbers)  # type: ignore[assignment]
    generator = decorated()
    assert next(generator) == 1
    run.time.advance(1_000_000)  # the caller's time is not the generator's
    assert generator.send("hello") == 2
    assert generator.throw(KeyError("x")) == 3
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "end"
    assert caught == ["hello", "KeyError", "closed"]
    pairs = run.slices()
    assert len(pairs) == 4
    assert max(duration_ns(pair) for pair in pairs) < 1_000_000
    assert all(not end.label.args for _, end in pairs), "the end of a generator is no exception"


def test_decorated_coroutines_and_async_generators_keep_their_values(run: Run) -> None:
    @run.profiler.marker("c")
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    @run.profiler.marker("ag")
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    async def main() -> list[int]:
        return [await double(number) async for number in numbers()]

    assert asyncio.run(main()) == [0, 2, 4]
    assert sorted(run.names()) == ["ag"] * 4 + ["c"] * 3
    assert all(not end.label.args for _, end in run.slices())


def test_a_module_level_marker_records_into_the_innermost_profiler_and_only_while_there_is_one() -> None:
    outer, inner = Run(), Run()

    @tracekit.marker("innermost, test")
    def f() -> None:
        pass

    f()
    with outer.profiler:
        f()
        with inner.profiler:
            f()
            f()
        f()
    f()
    assert len(outer.memory.slices) == 2
    assert len(inner.memory.slices) == 2
