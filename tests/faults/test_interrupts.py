"""T6: Ctrl-C at any point of a marker. It is never swallowed, and the marker works afterwards."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Child, opened, read_trace
from tests.faults.points import AtPoint
from tracekit import JSONTraceHandler, Profiler
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine
    from tracekit import Marker

INTERRUPTED = """
    import random
    profiler = record(flush_interval={interval})
    marker, outer = profiler.marker("work"), profiler.marker("outer")
    fired = 0

    def interrupt(number, frame):
        global fired
        fired += 1
        raise KeyboardInterrupt

    def recurse(depth):
        with marker:
            if depth:
                recurse(depth - 1)

    signal.signal(signal.SIGALRM, interrupt)
    for number in range({interrupts}):
        before = fired
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 2e-4))
            while fired == before:
                if number % 3 == 0:
                    with marker:
                        pass
                elif number % 3 == 1:
                    recurse(3)
                else:
                    with outer, marker:
                        marker.instant()
            tally[2] += 1  # the signal came, and its exception did not
        except KeyboardInterrupt:
            tally[3] += 1
    while fired < {interrupts}:
        time.sleep(0.001)
    profiler.flush()
    after = profiler.marker("after")
    for number in range(100):
        with after, marker, outer:
            profiler.marker("n").counter({{"n": number}})
    profiler.stop()
"""


@pytest.mark.parametrize(
    ("interval", "processes"),
    [
        (0.2, 1),
        (0.005, 1),  # the writer is late again and again, and the interrupted thread writes itself
        # Several: what was interrupted stays open to the end, and Perfetto draws 512 slices inside of each other.
        pytest.param(0.2, 25, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_at_any_point_is_not_swallowed_and_the_marker_works_afterwards(
    tmp_path: Path, engine: Engine, interval: float, processes: int
) -> None:
    for number in range(processes):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Child(INTERRUPTED.format(interrupts=400, interval=interval), folder) as child:
            assert child.end() == 0, child.errors
            assert "Error" not in child.errors
            swallowed, raised = child.tally[2], child.tally[3]
        assert (swallowed, raised) == (0, 400)
        remains = opened(engine, folder)
        assert remains.values("n", "n") == list(range(100))
        assert remains.count("XE", "after") == 100  # one that is open at a cut is a B and an E
        # Inside each of the 100 stand exactly one of the others: what was interrupted before takes nothing from them.
        first = min(event["ts"] for event in remains.of("XB", "after"))
        last = max(event["ts"] + event.get("dur", 0) for event in remains.of("XE", "after"))
        for name in ("work", "outer"):
            later = [event for event in remains.of("XE", name) if event["ts"] >= first]
            assert len(later) == 100
            assert all(event["ts"] + event.get("dur", 0) <= last for event in later)
        assert len(remains.open_slices()) <= 400


def interrupted(number: int, work: Callable[[], None]) -> bool:
    """Do some work, raise KeyboardInterrupt where a signal may, at the n-th point, and return whether that was reached."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    point = AtPoint(number, interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        point.during(work)
    return point.has_come


def flat(marker: Marker) -> None:
    with marker:
        pass


def recursive(marker: Marker) -> None:
    with marker, marker, marker:
        pass


def failing(marker: Marker) -> None:
    with contextlib.suppress(ValueError), marker:
        raise ValueError


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Hide what exists already from gc: after an interrupt, the writer asks it which ``with`` statements still hold a marker."""
    gc.freeze()
    yield
    gc.unfreeze()


@contextlib.contextmanager
def recording(path: Path, core: bool) -> Iterator[Profiler]:
    """Record with the markers of the core, where there is one, or with Python's, which any other clock has."""
    options: dict[str, Any] = {} if core else {"clock": FakeClock(tick_ns=10).clock}
    handler = JSONTraceHandler(path)
    with Profiler(handler, rank=0, record_batches=False, flush_interval=3600, **options) as profiler:
        yield profiler


def interrupt_at_each_point(profiler: Profiler, work: Callable[[Marker], None], shared: bool) -> int:
    """Interrupt some work with a marker at each point, each time inside a slice of another; return at how many."""
    outer, marker, after = map(profiler.marker, ("outer", "inner", "after"))
    if shared:
        with marker:  # a second thread makes it one that is shared
            thread = threading.Thread(target=flat, args=(marker,))
            thread.start()
            thread.join()
    buffer = profiler._buffer
    for number in range(1000):
        buffer.look_after = lambda _: None
        buffer.due_ns = 0 if number % 2 else 1 << 62  # the writer is late, or is not
        with outer:
            is_interrupted = interrupted(number // 4, lambda: work(marker))
            if number & 2:
                assert profiler.flush()  # writes the starts of open slices
        with after, marker:
            pass
        if not is_interrupted and number % 4 == 3:
            return number
    raise AssertionError("there is no end of points at which it is interrupted")


def assert_nested(remains: Remains) -> None:
    """Check that slices nest on every track."""
    ends: dict[int, list[float]] = {}
    whole = remains.of("X")
    for event in sorted(whole, key=lambda event: (event["ts"], -event["dur"])):
        around = ends.setdefault(event["tid"], [])
        while around and around[-1] <= event["ts"] + 0.004:
            around.pop()
        assert not around or event["ts"] + event["dur"] <= around[-1] + 0.004  # what a float is exact to
        around.append(event["ts"] + event["dur"])


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize(("work", "shared"), [(flat, False), (recursive, False), (failing, False), (flat, True)])
def test_a_slice_whose_with_was_interrupted_ends_with_what_is_around_it(
    tmp_path: Path, engine: Engine, work: Callable[[Marker], None], shared: bool, core: bool
) -> None:
    path = tmp_path / "t.json"
    with recording(path, core) as profiler:
        times = interrupt_at_each_point(profiler, work, shared)
        assert profiler.flush()
        assert profiler._attached.open_slices() == []
        assert profiler.marker("inner")._contended == 0
    remains = opened(engine, path)
    assert remains.open_slices() == []
    assert remains.count("XE", "after") == times + 1
    assert remains.count("XE", "outer") == times + 1
    assert_nested(remains)


@pytest.mark.parametrize("core", [True, False])
def test_a_slice_that_may_outlive_what_is_around_it_is_not_ended_with_it(tmp_path: Path, core: bool) -> None:
    path = tmp_path / "t.json"

    def waits() -> Iterator[None]:
        with profiler.marker("generator"):
            yield

    with recording(path, core) as profiler:
        generator, stack = waits(), contextlib.ExitStack()
        for number in range(12):
            with profiler.marker("outer"):
                if number == 0:
                    profiler.marker("started").start()
                    next(generator)
                    stack.enter_context(profiler.marker("stack"))
            assert profiler.flush()
        assert len(profiler._attached.open_slices()) == 3
        with profiler.marker("last"):
            pass
        profiler.marker("started").finish()
        generator.close()
        stack.close()
    remains = read_trace(path)
    assert remains.open_slices() == []
    (last,) = remains.of("XE", "last")
    for name in ("started", "generator", "stack"):
        assert max(event["ts"] + event.get("dur", 0) for event in remains.of("XE", name)) > last["ts"]


def test_a_slice_that_was_left_with_nothing_around_it_takes_nothing_from_the_next_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with recording(path, core=False) as profiler:
        cell = profiler.marker("cell")
        assert interrupted(2, lambda: flat(cell))
        for _ in range(3):
            with cell, profiler.marker("inner"):
                pass
    remains = read_trace(path)
    cells, inner = remains.of("X", "cell"), remains.of("X", "inner")
    assert len(cells) == len(inner) == 3
    for around, inside in zip(cells, inner, strict=True):
        assert around["ts"] <= inside["ts"]
        assert inside["ts"] + inside["dur"] <= around["ts"] + around["dur"]
