"""Offsets to other ranks' clocks, from a source to the files."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from tracekit import ClockOffset, FlightRecorder, JSONTraceHandler, Profiler, TraceHandler, validate_trace
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

FIRST = ClockOffset(
    monotonic_ns=5,
    offset_ns=-7,
    monotonic_offset_ns=8,
    error_ns=9,
    round_trips=10,
    reference_rank=0,
    reference_boot_id=None,
)
SECOND = dataclasses.replace(FIRST, monotonic_ns=50, drift_ppb=-1, drift_error_ppb=2)


def offsets(path: Path) -> list[ClockOffset]:
    events = json.loads(path.read_text())
    return [ClockOffset(**event["args"]) for event in events if event["name"] == "tracekit_clock_offset"]


def test_every_handler_is_told_and_every_file_says_it(tmp_path: Path) -> None:
    told: list[ClockOffset] = []

    class Keeps(TraceHandler):
        def clock_offset(self, offset: ClockOffset) -> None:
            told.append(offset)

    class Mirror(Keeps):
        inline = True

    clock = FakeClock(tick_ns=1)
    handlers = [
        Keeps(), Mirror(), JSONTraceHandler(tmp_path / "whole.json"), FlightRecorder(tmp_path / "dump{dump}.json", on_close=True),
        JSONTraceHandler(tmp_path / "part{part}.json", rotate_seconds=1e-3), JSONTraceHandler(tmp_path / "epoch{epoch}.json"),
    ]  # fmt: skip
    with Profiler(handlers, clock=clock.clock, rank=0, flush_interval=3600) as profiler:
        for offset in (FIRST, SECOND):
            profiler.record_clock_offset(offset)
            for _ in range(2):
                with profiler.marker("work"):
                    clock.advance(10_000_000)
                profiler.flush()
    assert told == [FIRST, FIRST, SECOND, SECOND]
    assert offsets(tmp_path / "whole.json") == offsets(tmp_path / "dump0.json") == [FIRST, SECOND]
    assert FIRST in offsets(tmp_path / "epoch0.json")
    parts = sorted(tmp_path.glob("part*.json"))
    assert len(parts) >= 3
    assert all(offsets(path) for path in parts)
    assert SECOND in offsets(parts[-1])
    for path in tmp_path.glob("*.json"):
        assert validate_trace(str(path)).counts == {}
