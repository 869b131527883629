"""Clocks that misbehave, played with injected ones: what is in the file stays true, and the file says what happened."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import GOOD, Remains, bites, opens, read_trace
from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.formats import chrome_writer
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

BY_WALL = "by the wall clock"
"""The bad way: events are stamped with the wall clock."""


def clock_of(fake: FakeClock, stamps: str) -> Clock:
    return fake.clock if stamps == GOOD else Clock(wall_ns=lambda: fake.wall_ns, monotonic_ns=lambda: fake.wall_ns)


def metadata(remains: Remains, name: str) -> list[dict[str, Any]]:
    return [event["args"] for event in remains.events if event["name"] == name]


def set_by(ns: int) -> Callable[[FakeClock], None]:
    def fault(fake: FakeClock) -> None:
        fake.wall_ns += ns

    return fault


class Slewed(FakeClock):
    """Its wall clock runs faster, as over a smeared leap second, or stands still."""

    ppm = 500

    def advance(self, ns: int) -> None:
        super().advance(ns)
        self.wall_ns += ns * self.ppm // 1_000_000


class Stopped(Slewed):
    ppm = -1_000_000


FAULTS: dict[str, tuple[type[FakeClock], Callable[[FakeClock], None], list[tuple[int, int]]]] = {
    "back": (FakeClock, set_by(-HOUR), [(-HOUR, 0)]),
    "forth": (FakeClock, set_by(HOUR), [(HOUR, 0)]),
    "a little": (FakeClock, set_by(-30_000_000), [(-30_000_000, 0)]),
    "suspend": (FakeClock, lambda fake: fake.suspend(HOUR), [(HOUR, HOUR)]),
    "suspend and set": (
        FakeClock,
        lambda fake: (fake.suspend(HOUR), set_by(7 * SECOND)(fake)),
        [(HOUR + 7 * SECOND, HOUR)],
    ),
    "slew": (Slewed, set_by(0), []),
}


def record(fake: FakeClock, stamps: str, path: Path, fault: Callable[[FakeClock], None]) -> None:
    """Record five minutes of slices, a second each, and let the fault happen in the middle of some that are open."""
    with Profiler(
        JSONTraceHandler(path), clock=clock_of(fake, stamps), rank=0, record_batches=False, flush_interval=3600
    ) as profiler:
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


@pytest.mark.parametrize("stamps", [GOOD, BY_WALL])
@pytest.mark.parametrize("name", FAULTS)
def test_durations_stay_true_and_the_step_is_told(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture, name: str, stamps: str
) -> None:
    kind, fault, steps = FAULTS[name]
    with bites(stamps), caplog.at_level(logging.WARNING, "tracekit"):
        record(kind(), stamps, tmp_path / "t.json", fault)
        remains = read_trace(tmp_path / "t.json")
        opens(engine, remains)
        assert validate_trace(str(remains.path)).counts == {}
        assert min(event["ts"] for event in remains.events if "ts" in event) >= 0
        with engine.load(remains.path) as trace:
            for slices, dur_ns in (("outer", SECOND), ("inner", SECOND // 2)):
                assert trace.rows(f"select dur, count(*) from slice where name = '{slices}' group by dur") == [
                    (dur_ns, 300)
                ]
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
            assert (f"the wall clock was set by {set_ns / 1e9:+.3f} s" in message) == bool(set_ns)


@pytest.mark.parametrize("kind", [FakeClock, Slewed, Stopped])
def test_the_clocks_are_read_once_a_minute_at_least(tmp_path: Path, kind: type[FakeClock]) -> None:
    fake = kind()
    record(fake, GOOD, tmp_path / "t.json", set_by(0))
    remains = read_trace(tmp_path / "t.json")
    anchors = [remains.metadata["clock"], *metadata(remains, "tracekit_clock_anchor")]
    times = [anchor["monotonic_ns"] for anchor in anchors]
    assert max(after - before for before, after in pairwise(times)) <= MINUTE + 5 * SECOND
    # Where the wall clock is slewed, it is they that tell.
    gained_ns = [anchor["wall_ns"] - anchor["monotonic_ns"] for anchor in anchors]
    ran_ns = times[-1] - times[0]
    assert gained_ns[-1] - gained_ns[0] == pytest.approx(ran_ns * getattr(kind, "ppm", 0) // 1_000_000, abs=10_000)


def test_a_wall_clock_that_stands_still_floods_neither_the_log_nor_the_file(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Stopped()
    with (
        caplog.at_level(logging.WARNING, "tracekit"),
        Profiler(
            JSONTraceHandler(tmp_path / "t.json"), clock=fake.clock, rank=0, record_batches=False, flush_interval=3600
        ) as profiler,
    ):
        for _ in range(1500):  # five minutes, at the usual flush interval
            with profiler.marker("work"):
                fake.advance(SECOND // 5)
            profiler.flush()
    remains = read_trace(tmp_path / "t.json")
    opens(engine, remains)
    assert len(caplog.messages) == 3
    assert "further steps are in the trace only" in caplog.messages[-1]
    steps = metadata(remains, "tracekit_clock_step")
    assert 25 <= len(steps) <= 31
    assert sum(step["step_ns"] for step in steps) == pytest.approx(-300 * SECOND, rel=0.01)
    with engine.load(remains.path) as trace:
        assert trace.rows("select dur, count(*) from slice group by dur") == [(SECOND // 5, 1500)]


def test_ranks_stay_aligned_when_merged_over_a_step(tmp_path: Path, engine: Engine) -> None:
    fake = FakeClock()
    profilers = [
        Profiler(
            JSONTraceHandler(tmp_path / "rank{rank}.json"), clock=fake.clock, rank=rank, world_size=2, run_id="run",
            record_batches=False, flush_interval=3600,
        )
        for rank in range(2)
    ]  # fmt: skip
    for profiler in profilers:
        profiler.start()
        fake.advance(123_456)
    for step_ns in (-HOUR, 2 * HOUR):
        fake.wall_ns += step_ns
        for profiler in profilers:
            marker = profiler.marker(f"rank {profiler.process.rank}")
            marker.instant()
            fake.advance(1000)
        for profiler in profilers:
            profiler.flush()
            fake.advance(20 * SECOND)
    for profiler in reversed(profilers):
        profiler.stop()
    merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / f"rank{rank}.json") for rank in range(2)], strict=True)
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        (first, second), (third, fourth) = (
            [ts for (ts,) in trace.rows(f"select ts from slice where name = 'rank {rank}' order by ts")]
            for rank in range(2)
        )
        assert (third - first, fourth - second, second - first) == (1000, 1000, 40 * SECOND + 2000)


# ---- resolution and range --------------------------------------------------------------------------------------------------


def test_equal_stamps_lose_nothing(tmp_path: Path, engine: Engine) -> None:
    """A monotonic clock that moves every 15.6 ms, as on some systems: most slices have no duration."""
    fake = FakeClock()
    with Profiler(
        JSONTraceHandler(tmp_path / "t.json"), clock=fake.clock, rank=0, record_batches=False, flush_interval=3600
    ) as profiler:
        for number in range(200):
            with profiler.marker("outer"), profiler.marker("inner"), profiler.marker("innermost"):
                if number % 7 == 0:
                    fake.advance(15_600_000)
            profiler.marker("moment").instant()
            profiler.marker("number").counter({"n": number})
            if number % 50 == 0:
                profiler.flush()
    remains = read_trace(tmp_path / "t.json")
    opens(engine, remains)
    assert validate_trace(str(remains.path)).counts == {}
    assert remains.values("number", "n") == list(range(200))
    with engine.load(remains.path) as trace:
        counts = (
            "select name, count(*), min(dur), max(dur) from slice where name != 'moment' group by name order by name"
        )
        assert trace.rows(counts) == [(name, 200, 0, 15_600_000) for name in ("inner", "innermost", "outer")]
        # Slices that begin and end together nest, in whatever order.
        depths = "select depth, count(*) from slice where dur > 0 group by depth order by depth"
        assert trace.rows(depths) == [(0, 29), (1, 29), (2, 29)]


@pytest.mark.parametrize(
    ("wall_ns", "monotonic_ns"),
    [
        (3 * SECOND, 3),  # a board without a battery: 1970; the first 3 ns after it was switched on stand for no start
        (1_795_225_970 * SECOND, 2**62),
        (2**63 - HOUR, 2**62),  # the year 2262
    ],
)
def test_the_ends_of_the_range_load(tmp_path: Path, engine: Engine, wall_ns: int, monotonic_ns: int) -> None:
    fake = FakeClock(wall_ns=wall_ns, monotonic_ns=monotonic_ns)
    record(fake, GOOD, tmp_path / "t.json", set_by(0))
    remains = read_trace(tmp_path / "t.json")
    opens(engine, remains)
    base_ns = remains.metadata["baseTimeNanoseconds"]
    with engine.load(remains.path) as trace:
        assert trace.scalar("select min(ts) from slice") + base_ns == wall_ns
        assert trace.rows("select dur, count(*) from slice where name = 'inner' group by dur") == [(SECOND // 2, 300)]


@pytest.mark.parametrize(
    ("start_ns", "encoder"),
    [(0, GOOD), (85 * DAY, GOOD), (85 * DAY, "any nanosecond")],
    ids=["early", "late", "late, bad"],
)
def test_forty_days_lose_nothing(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, start_ns: int, encoder: str
) -> None:
    if encoder != GOOD:
        monkeypatch.setattr(chrome_writer, "_exact_records", lambda records, *_: records)
    fake = FakeClock(wall_ns=226 * GRID + start_ns + 123_456_789)
    with Profiler(
        JSONTraceHandler(tmp_path / "t.json"), clock=fake.clock, rank=0, record_batches=False, flush_interval=3600
    ) as profiler:
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
    with bites(encoder):
        remains = read_trace(tmp_path / "t.json")
        opens(engine, remains)
        assert validate_trace(str(remains.path)).counts == {}
        with engine.load(remains.path) as trace:
            for name, wanted_ns, count in (("outer", 5, 200), ("inner", 3, 200), ("long", DAY // 1000 + 1, 40)):
                found = trace.rows(f"select dur from slice where name = '{name}'")
                assert len(found) == count
                # To the nanosecond where a viewer reads it.
                assert max(abs(dur - wanted_ns) for (dur,) in found) <= {0: 0, 20: 10, 85: 1}[start_ns // DAY]


def test_a_time_that_a_viewer_misreads_is_moved_back_a_little(tmp_path: Path, engine: Engine) -> None:
    starts = (0, 2**42 * 1000 - 500, 51 * DAY, 2**52 - 500, 2**52, EXACT_NS - 500, 2**53 - 500, 131 * DAY)
    moved: list[int] = []
    for start in starts:
        asked = range(start, start + 1000)
        found = [exact_time(ns) for ns in asked]
        most = 1 if start >= EXACT_NS - 500 else 10
        assert all(0 <= before - after <= most for before, after in zip(asked, found, strict=True))
        assert found == sorted(found)
        assert start not in (0, 2**52) or found == list(asked)
        moved += found
    lines = [
        f'{{"ph":"i","s":"t","name":"{ns}","pid":1,"tid":1,"ts":{ns // 1000}.{ns % 1000:03d}}}'
        for ns in sorted(set(moved))
    ]
    (tmp_path / "t.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    with engine.load(tmp_path / "t.json") as trace:
        assert trace.scalar("select count(*) from slice where ts != cast(name as int)") == 0
        assert trace.scalar("select count(*) from slice") == len(lines)


def test_the_system_s_clocks_tell_how_long_the_machine_slept() -> None:
    """Nobody can suspend the machine for a test; that the reading stands still while it is awake, can be seen."""
    if SYSTEM_CLOCK.boottime_ns is None:
        pytest.skip("this system has no CLOCK_BOOTTIME")
    readings = [SYSTEM_CLOCK.asleep_ns() for _ in range(1000)]
    assert max(readings) - sorted(readings)[500] < 20_000
