"""Mirrors: which end belongs to which start, what is begun and what is not, failures; and NVTX by a stand-in for the package."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import (
    ConfigError,
    MemoryTraceHandler,
    MissingExtraError,
    NVTXMirror,
    OpenTelemetryMirror,
    Profiler,
    ProfilerAction,
    RecordFunctionMirror,
)
from tracekit.handlers.mirrors.mirror import Mirror, Moment
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S, A, V = ProfilerAction.SKIP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE


class Noting(Mirror):
    """Notes what it is told, with the number of the slice that ends; fails where it is asked to."""

    def __init__(self, *, fails: Sequence[str] = ()) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self.listening: Callable[[], bool] = lambda: True
        self.fails = set(fails)
        self.count = 0

    def is_listening(self) -> bool:
        return self.listening()

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> int:
        self.threads.add(threading.get_ident())
        if "begin" in self.fails:
            raise OSError("begin")
        self.count += 1
        self.calls.append(("begin", name, self.count))
        self.first = getattr(self, "first", moment)
        return self.count

    def end(self, opened: int, moment: Moment, exception: str | None) -> None:
        if "end" in self.fails:
            raise OSError("end")
        self.calls.append(("end", opened, *([exception] if exception else [])))
        self.last = moment

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        self.calls.append(("mark", name, categories))

    def leave(self, opened: int, moment: Moment) -> None:
        self.calls.append(("leave", opened))


def profiler(*handlers: Any, **options: Any) -> Profiler:
    options.setdefault("record_batches", False)
    return Profiler(list(handlers), rank=3, run_id="run", **options)


def test_slices_are_told_of_at_once_on_the_thread_that_records_them() -> None:
    mirror, clock = Noting(), FakeClock(tick_ns=1)
    with profiler(
        mirror, clock=clock.clock, flush_interval=3600
    ) as one:  # the writer's looks at the clock are ticks, too
        one.step(samples=2)
        with one.marker("a", ["x"]):
            assert mirror.calls == [("begin", "a", 1)]
            one.marker("now", ["y"]).instant()
            one.marker("loss").counter({"train": 1.0})
            clock.advance(5_000)
        assert mirror.calls == [("begin", "a", 1), ("mark", "now", ("y",)), ("end", 1)]
    assert mirror.threads == {threading.get_ident()}
    assert 5_000 <= mirror.last.wall_clock_time_ns - mirror.first.wall_clock_time_ns < 5_020
    assert (int(mirror.first.timestamp.batch), int(mirror.first.timestamp.sample)) == (1, 2)
    assert one.stats.failures == {}


def test_slices_that_end_crosswise_are_told_apart_where_the_clock_stands_still() -> None:
    mirror = Noting()
    with profiler(mirror, clock=FakeClock().clock) as one:
        first, second = one.marker("a", ["x"]), one.marker("a", ["y"])
        first.start()
        second.start()
        first.finish()
        second.finish()
    assert mirror.calls == [("begin", "a", 1), ("begin", "a", 2), ("end", 1), ("end", 2)]


def test_the_slices_of_threads_that_use_one_marker_end_as_they_began() -> None:
    mirror = Noting()
    order = [threading.Event() for _ in range(3)]
    with profiler(mirror) as one:
        shared = one.marker("shared")

        def other() -> None:
            with shared:
                order[0].set()
                order[1].wait(60)
            order[2].set()

        thread = threading.Thread(target=other)
        thread.start()
        order[0].wait(60)
        with shared:
            order[1].set()
            order[2].wait(60)
        thread.join()
    assert mirror.calls == [("begin", "shared", 1), ("begin", "shared", 2), ("end", 1), ("end", 2)]


@pytest.mark.parametrize("how", ["with", "start and finish"])
def test_the_slices_of_tasks_end_as_they_began_in_whatever_order(how: str) -> None:
    mirror = Noting()

    async def work(one: Profiler, mine: asyncio.Event, next_: asyncio.Event) -> None:
        shared = one.marker("task")
        if how == "with":
            with shared:
                next_.set()
                await mine.wait()
        else:
            shared.start()
            next_.set()
            await mine.wait()
            shared.finish()

    async def both(one: Profiler) -> None:
        first, second = asyncio.Event(), asyncio.Event()
        # The second begins while the first is open, and the first ends when the second has begun.
        await asyncio.gather(work(one, first, second), work(one, second, first))

    with profiler(mirror) as one:
        asyncio.run(both(one))
    assert [call[0] for call in mirror.calls] == ["begin", "begin", "end", "end"]
    assert {call[1] for call in mirror.calls[2:]} == {1, 2}
    assert not mirror.has_open


def test_what_the_schedule_skips_is_not_mirrored_and_what_began_before_is_ended() -> None:
    mirror = Noting()
    plan = [S, A, V, S, A, S]
    with profiler(mirror, schedule=lambda timestamp: plan[int(timestamp.batch)]) as one:
        across = one.marker("across")
        for number in range(5):
            if number in (0, 2):
                across.start()  # first in SKIP, then in the last batch of a window
            with one.marker(f"in {number}"):
                pass
            one.step()
            if number in (1, 2):
                across.finish()
    assert mirror.calls == [
        ("begin", "in 1", 1),
        ("end", 1),
        ("begin", "across", 2),
        ("begin", "in 2", 3),
        ("end", 3),
        ("end", 2),
        ("begin", "in 4", 4),
        ("end", 4),
    ]


# Name, whether anybody listens at its start, whether the mirror fails there, whether the slice raises, what runs in it.
Run = tuple[str, bool, bool, bool, list[Any]]
RUNS: st.SearchStrategy[list[Run]] = st.recursive(
    st.just([]),
    lambda inner: st.lists(st.tuples(st.sampled_from("ab"), *[st.booleans()] * 3, inner), max_size=4),
    max_leaves=9,
)


@given(RUNS, st.sampled_from([0, 1]))
def test_whoever_listens_when_a_slice_begins_is_told_of_its_end(runs: list[Run], tick_ns: int) -> None:
    mirror, memory = Noting(), MemoryTraceHandler()
    expected: list[tuple[Any, ...]] = []
    begun = 0

    def execute(one: Profiler, runs: list[Run]) -> int:
        nonlocal begun
        count = 0
        for name, listens, fails, raises, inner in runs:
            mirror.listening = lambda listens=listens: listens  # type: ignore[misc]
            mirror.fails = {"begin"} if fails else set()
            if listened := listens and not fails:
                begun += 1
                number = begun
                expected.append(("begin", name, number))
            if listens:
                expected.append(("mark", "now", ()))
            with suppress(KeyError), one.marker(name):
                one.marker("now").instant()
                count += 1 + execute(one, inner)
                if raises:
                    raise KeyError
            if listened:
                expected.append(("end", number, *(["KeyError"] if raises else [])))
        return count

    with profiler(mirror, memory, clock=FakeClock(tick_ns=tick_ns).clock, flush_interval=3600) as one:
        count = execute(one, runs)
    assert mirror.calls == expected
    assert not mirror.has_open
    assert len(memory.slices) == count


def test_what_is_open_when_the_profiler_stops_is_ended_once_and_the_innermost_first() -> None:
    mirror = Noting()
    one = profiler(mirror)
    one.start()
    outer, inner = one.marker("outer"), one.marker("inner")
    with outer, inner:
        one.stop()
        assert mirror.calls[2:] == [("leave", 2), ("leave", 1)]
    assert len(mirror.calls) == 4
    assert one.stats.failures == {}


def test_slice_that_begins_while_its_profiler_stops_is_ended_in_the_tool() -> None:
    mirror = Noting()
    one = profiler(mirror)
    one.start()
    mirror.listening = lambda: one.stop() or True  # type: ignore[func-returns-value]
    # With the instant, nobody asks whether the mirror listens before the start.
    with one.marker("a", record_instant_on_start=True):
        assert mirror.calls == [("begin", "a", 1), ("end", 1)]
    assert len(mirror.calls) == 2


@pytest.mark.parametrize("where", ["begin", "end", "is_listening"])
def test_a_mirror_that_raises_reaches_neither_training_nor_the_others(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, fine, memory = Noting(fails=[where]), Noting(), MemoryTraceHandler()
    if where == "is_listening":
        broken.listening = lambda: bool(1 / 0)
    with profiler(broken, fine, memory) as one:
        for _ in range(3):
            with one.marker("a"), one.marker("b"):
                pass
    kind = "begin" if where == "is_listening" else where
    assert one.stats.failures == {f"Noting.{kind}": 6}
    assert caplog.text.count(f"Noting.{kind} failed") == 1
    assert len(fine.calls) == 12
    assert len(memory.slices) == 6


def test_markers_are_as_quick_as_without_a_mirror_that_nobody_can_listen_to() -> None:
    mirror = Noting()
    mirror.is_inactive = True
    with profiler(mirror) as one:
        plain = one.marker("a")
        kind = type(plain)
        with plain:
            pass
    assert mirror.calls == []
    with profiler() as two:
        assert type(two.marker("a")) is kind


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        (NVTXMirror, "nvtx", "nvtx"),
        (OpenTelemetryMirror, "opentelemetry.context", "otel"),
        (RecordFunctionMirror, "torch", "torch"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(
    kind: Callable[[], Mirror], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{kind.__name__} needs .*: pip install 'tracekit-ml\[{extra}\]'"):  # type: ignore[attr-defined]
        kind()


class FakeDomain:
    """What `nvtx.get_domain` returns where a tool listens."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def get_event_attributes(self, message: str, color: Any = None, category: Any = None) -> tuple[Any, ...]:
        return (message, color, category)

    def push_range(self, attributes: Any) -> None:
        self.calls.append(("push", *attributes))

    def pop_range(self) -> None:
        self.calls.append(("pop",))

    def start_range(self, attributes: Any) -> int:
        self.calls.append(("start", *attributes))
        return len(self.calls)

    def end_range(self, number: int) -> None:
        self.calls.append(("end", number))

    def mark(self, attributes: Any) -> None:
        self.calls.append(("mark", *attributes))


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> FakeDomain:
    found = FakeDomain()
    module = SimpleNamespace(Domain=FakeDomain, get_domain=lambda name: found)
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return found


def test_nvtx_ranges_have_the_first_category_and_the_color(domain: FakeDomain) -> None:
    with profiler(NVTXMirror(color="green")) as one, one.marker("a", ["model", "gpu"]), one.marker("b\0\udc80"):
        one.marker("i").instant()
    assert domain.calls == [
        ("push", "a", "green", "model"),
        ("push", "b??", "green", None),
        ("mark", "i", "green", None),
        ("pop",),
        ("pop",),
    ]


def test_nvtx_ranges_that_overlap_on_a_thread_are_cut_where_the_outer_one_ends(domain: FakeDomain) -> None:
    with profiler(NVTXMirror()) as one:
        names = "abc"
        markers = [one.marker(name) for name in names]
        for each in markers:
            each.start()
        for each in markers:
            each.finish()
    pushed: list[str] = []
    ended: list[str] = []
    for call in domain.calls:
        if call[0] == "push":
            pushed.append(call[1])
        else:
            ended.append(pushed.pop())
    assert pushed == []
    assert ended == ["c", "b", "a", "c", "b", "c"], "a ends in the first three, b in the next two"


def test_nvtx_ranges_of_this_thread_are_popped_at_the_end_and_those_of_others_left(domain: FakeDomain) -> None:
    begun, stopped = threading.Event(), threading.Event()
    one = profiler(NVTXMirror())
    one.start()

    def other() -> None:
        with one.marker("other"):
            begun.set()
            stopped.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(60)
    with one.marker("a"), one.marker("b"):
        one.stop()
    stopped.set()
    thread.join()
    assert [call[:2] for call in domain.calls] == [("push", "other"), ("push", "a"), ("push", "b"), ("pop",), ("pop",)]
    assert one.stats.failures == {}


def test_nvtx_without_a_tool_costs_nothing() -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed")
    mirror = NVTXMirror()
    with profiler(mirror) as one, one.marker("a"):
        one.marker("i").instant()
    assert mirror.is_inactive
    assert one.stats.failures == {}


def test_a_wrong_domain_and_an_old_nvtx_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="NVTXMirror: domain must be a name"):
        NVTXMirror("")
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=print))
    with pytest.raises(MissingExtraError, match=r"nvtx 0\.2\.12 or later"):
        NVTXMirror()
