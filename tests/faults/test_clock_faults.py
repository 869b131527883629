"""Clocks that misbehave, played with injected ones: what is in the file stays true, and the file says what happened."""

from __future__ import annotations

import logging
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Remains, opened
from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.formats.decimal_time import EXACT_NS, exact_time
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GRID = 7_889_238 * SECOND


class Slewed(FakeClock):
    """Its wall clock runs faster, as over a smeared leap second, or stands still."""

    ppm = 500

    def advance(self, ns: int) -> None:
        super().advance(ns)
        self.wall_ns += ns * self.ppm // 1_000_000


class Stopped(Slewed):
    ppm = -1_000_000


def clock_of(fake: FakeClock) -> Clock:
    return fake.clock


def recording(path: Path, clock: Clock, **options: Any) -> Profiler:
    return Profiler(
        JSONTraceHandler(path), clock=clock, record_batches=False, flush_interval=3600, **{"rank": 0, **options}
    )


def metadata(remains: Remains, name: str) -> list[dict[str, Any]]:
    return [event["args"] for event in remains.events if event["name"] == name]


def set_back(fake: FakeClock) -> None:
    fake.wall_ns -= HOUR


def suspend_and_set(fake: FakeClock) -> None:
    fake.suspend(HOUR)
    fake.wall_ns += 7 * SECOND


FAULTS: dict[str, tuple[type[FakeClock], Callable[[FakeClock], None], list[tuple[int, int]]]] = {
    "set back": (FakeClock, set_back, [(-HOUR, 0)]),
    "suspended": (FakeClock, lambda fake: fake.suspend(HOUR), [(HOUR, HOUR)]),
    "suspended and set": (FakeClock, suspend_and_set, [(HOUR + 7 * SECOND, HOUR)]),
    "slewed": (Slewed, lambda _: None, []),
}
"""By name: the clock, what happens to it, and the steps that are told, with how much of each the machine was suspended."""


def record(fake: FakeClock, path: Path, fault: Callable[[FakeClock], None] = lambda _: None) -> None:
    """Record five minutes of slices, a second each, and let the fault happen in the middle of some that are open."""
    with recording(path, clock_of(fake)) as profiler:
        outer, inner = profiler.marker("outer"), profiler.marker("inner")
        for second in range(300):
            with outer:
                fake.advance(SECOND // 4)
                with inner:
                    fake.advance(SECOND // 4 + 1)
                    if second == 100:
                        fault(fake)
                    fake.advance(SECOND // 4 - 1)
                fake.advance(SECOND // 4)
            if second % 5 == 0:
                profiler.flush()


@pytest.mark.parametrize("name", FAULTS)
def test_durations_stay_true_and_the_step_is_told(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    kind, fault, steps = FAULTS[name]
    with caplog.at_level(logging.WARNING, "tracekit"):
        record(kind(), tmp_path / "t.json", fault)
        remains = opened(engine, tmp_path / "t.json")
        assert validate_trace(str(remains.path)).counts == {}
        assert min(event["ts"] for event in remains.events if "ts" in event) >= 0
        with engine.load(remains.path) as trace:
            durations = trace.rows("select name, dur, count(*) from slice group by name, dur order by name")
            assert durations == [("inner", SECOND // 2, 300), ("outer", SECOND, 300)]
            starts = [start for (start,) in trace.rows("select ts from slice where name = 'outer' order by ts")]
            assert {after - before for before, after in pairwise(starts)} == {SECOND}
        told = metadata(remains, "tracekit_clock_step")
        assert [(step["step_ns"], step["suspended_ns"]) for step in told] == steps
        # Noticed at the flush after it, and not a minute later.
        began_ns = remains.metadata["clock"]["monotonic_ns"]
        assert all(100 * SECOND < step["monotonic_ns"] - began_ns < 106 * SECOND for step in told)
        assert len(caplog.messages) == len(steps)
        for (step_ns, suspended_ns), message in zip(steps, caplog.messages, strict=True):
            assert ("was suspended for 3600.000 s" in message) == bool(suspended_ns)
            set_ns = step_ns - suspended_ns
            assert (f"the wall clock was set by {set_ns / 1e9:+.4f} s" in message) == bool(set_ns)
        # The clocks are read once a minute at least; where the wall clock is slewed, it is these readings that tell.
        anchors = [remains.metadata["clock"], *metadata(remains, "tracekit_clock_anchor")]
        times = [anchor["monotonic_ns"] for anchor in anchors]
        assert max(after - before for before, after in pairwise(times)) <= MINUTE + 5 * SECOND
        gained_ns = [anchor["wall_ns"] - anchor["monotonic_ns"] for anchor in anchors]
        slewed_ns = (times[-1] - times[0]) * getattr(kind, "ppm", 0) // 1_000_000
        assert gained_ns[-1] - gained_ns[0] == pytest.approx(slewed_ns + sum(step for step, _ in steps), abs=10_000)


def test_a_wall_clock_that_stands_still_floods_neither_the_log_nor_the_file(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Stopped()
    with caplog.at_level(logging.WARNING, "tracekit"), recording(tmp_path / "t.json", fake.clock) as profiler:
        for _ in range(1500):  # five minutes, at the usual flush interval
            with profiler.marker("work"):
                fake.advance(SECOND // 5)
            profiler.flush()
    remains = opened(engine, tmp_path / "t.json")
    assert len(caplog.messages) == 3
    assert "further steps are in the trace only" in caplog.messages[-1]
    steps = metadata(remains, "tracekit_clock_step")
    assert 25 <= len(steps) <= 31
    assert sum(step["step_ns"] for step in steps) == pytest.approx(-300 * SECOND, rel=0.01)
    with engine.load(remains.path) as trace:
        assert trace.rows("select dur, count(*) from slice group by dur") == [(SECOND // 5, 1500)]


def test_ranks_stay_aligned_when_merged_over_a_step(tmp_path: Path, engine: Engine) -> None:
    fake = FakeClock()
    options: dict[str, Any] = {"world_size": 2, "run_id": "run"}
    profilers = [recording(tmp_path / "rank{rank}.json", fake.clock, rank=rank, **options) for rank in range(2)]
    for profiler in profilers:
        profiler.start()
        fake.advance(123_456)
    for step_ns in (-HOUR, 2 * HOUR):
        fake.wall_ns += step_ns
        for rank, profiler in enumerate(profilers):
            profiler.marker(f"rank {rank}").instant()
            fake.advance(1000)
        for profiler in profilers:
            profiler.flush()
            fake.advance(20 * SECOND)
    for profiler in reversed(profilers):
        profiler.stop()
    merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / f"rank{rank}.json") for rank in range(2)], strict=True)
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        found = trace.rows("select name, ts from slice where name glob 'rank *' order by ts")
    assert [name for name, _ in found] == ["rank 0", "rank 1"] * 2
    assert [after - before for (_, before), (_, after) in pairwise(found)] == [1000, 40 * SECOND + 1000, 1000]


def test_equal_stamps_lose_nothing(tmp_path: Path, engine: Engine) -> None:
    """A monotonic clock that moves every 15.6 ms, as on some systems: most slices have no duration."""
    fake = FakeClock()
    with recording(tmp_path / "t.json", fake.clock) as profiler:
        for number in range(200):
            with profiler.marker("outer"), profiler.marker("inner"), profiler.marker("innermost"):
                if number % 7 == 0:
                    fake.advance(15_600_000)
            profiler.marker("moment").instant()
            profiler.marker("number").counter({"n": number})
            if number % 50 == 0:
                profiler.flush()
    remains = opened(engine, tmp_path / "t.json")
    assert validate_trace(str(remains.path)).counts == {}
    assert remains.values("number", "n") == list(range(200))
    with engine.load(remains.path) as trace:
        counts = "select name, count(*), min(dur), max(dur) from slice where name != 'moment' group by 1 order by 1"
        assert trace.rows(counts) == [(name, 200, 0, 15_600_000) for name in ("inner", "innermost", "outer")]
        # Slices that begin and end together nest, in whatever order.
        depths = "select depth, count(*) from slice where dur > 0 group by depth order by depth"
        assert trace.rows(depths) == [(0, 29), (1, 29), (2, 29)]


@pytest.mark.parametrize(
    ("wall_ns", "monotonic_ns"),
    [
        (3 * SECOND, 3),  # a board without a battery: 1970; the first 3 ns after it was switched on stand for no start
        (2**63 - HOUR, 2**62),  # the year 2262
    ],
)
def test_the_ends_of_the_range_load(tmp_path: Path, engine: Engine, wall_ns: int, monotonic_ns: int) -> None:
    fake = FakeClock(wall_ns=wall_ns, monotonic_ns=monotonic_ns)
    record(fake, tmp_path / "t.json")
    remains = opened(engine, tmp_path / "t.json")
    base_ns = remains.metadata["baseTimeNanoseconds"]
    with engine.load(remains.path) as trace:
        assert trace.scalar("select min(ts) from slice") + base_ns == wall_ns
        assert trace.rows("select dur, count(*) from slice where name = 'inner' group by dur") == [(SECOND // 2, 300)]


def test_forty_days_lose_nothing(tmp_path: Path, engine: Engine) -> None:
    """They begin late in a quarter, where a viewer does not read every nanosecond."""
    fake = FakeClock(wall_ns=226 * GRID + 85 * DAY + 123_456_789)
    with recording(tmp_path / "t.json", fake.clock) as profiler:
        for _ in range(40):
            for _ in range(5):
                with profiler.marker("outer"):  # each begins where the one before it ends
                    fake.advance(1)
                    with profiler.marker("inner"):
                        fake.advance(3)
                    fake.advance(1)
            fake.advance(DAY - 25 + 1)
            with profiler.marker("long"):
                profiler.flush()
                fake.advance(DAY // 1000 + 1)
    remains = opened(engine, tmp_path / "t.json")
    assert validate_trace(str(remains.path)).counts == {}
    with engine.load(remains.path) as trace:
        for name, wanted_ns, count in (("outer", 5, 200), ("inner", 3, 200), ("long", DAY // 1000 + 1, 40)):
            found = trace.rows(f"select dur from slice where name = '{name}'")
            assert len(found) == count
            assert max(abs(dur - wanted_ns) for (dur,) in found) <= 1


def test_a_time_that_a_viewer_misreads_is_moved_back_a_little(tmp_path: Path, engine: Engine) -> None:
    moved: set[int] = set()
    for start in (0, 2**42 * 1000 - 500, 51 * DAY, 2**52 - 500, 2**52, EXACT_NS - 500, 2**53 - 500, 131 * DAY):
        asked = range(start, start + 1000)
        found = [exact_time(ns) for ns in asked]
        most = 1 if start >= EXACT_NS - 500 else 10
        assert all(0 <= before - after <= most for before, after in zip(asked, found, strict=True))
        assert found == sorted(found)
        assert start not in (0, 2**52) or found == list(asked)
        moved.update(found)
    line = '{{"ph":"i","s":"t","name":"{}","pid":1,"tid":1,"ts":{}.{:03d}}}'
    lines = [line.format(ns, ns // 1000, ns % 1000) for ns in sorted(moved)]
    (tmp_path / "t.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    with engine.load(tmp_path / "t.json") as trace:
        assert trace.scalar("select count(*) from slice where ts != cast(name as int)") == 0
        assert trace.scalar("select count(*) from slice") == len(lines)


def test_the_system_s_clocks_tell_how_long_the_machine_slept() -> None:
    if SYSTEM_CLOCK.boottime_ns is None:
        pytest.skip("this system has no CLOCK_BOOTTIME")
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert SYSTEM_CLOCK.asleep_ns() == pytest.approx(slept_ns, abs=MINUTE)
