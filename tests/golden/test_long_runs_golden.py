"""Files of a long run, looked at through Perfetto's own engine: every part and dump loads, and together they are the run."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import JSONTraceHandler, Profiler, merge_traces, validate_trace
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

SLICES = """
select thread.name, slice.name, slice.ts, slice.dur
from slice join thread_track on thread_track.id = track_id join thread using (utid)
"""
COUNTERS = "select name, ts, value from counter join process_counter_track on process_counter_track.id = track_id"


def record(*handlers: Any, flushes: int = 8) -> None:
    """Two threads, slices across every flush, instants, counters, batches, two epochs."""
    clock = FakeClock(tick_ns=11)
    with Profiler(handlers, rank=0, run_id="run", clock=clock.clock, flush_interval=3600) as profiler:
        outer, inner = profiler.marker("outer"), profiler.marker("inner", categories=["model"])

        def work() -> None:
            with outer:
                for _ in range(flushes):
                    with inner:
                        clock.advance(1_000)
                        barrier.wait()
                        barrier.wait()

        barrier = threading.Barrier(2)
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        for number in range(flushes):
            with outer, inner:
                barrier.wait()
                profiler.marker("moment").instant()
                profiler.marker("loss").counter({"train": number, "eval": number / 2})
                clock.advance(10_000)
                profiler.flush()
                clock.advance(5_000)
                barrier.wait()
            profiler.step(samples=2)
            if number == flushes // 2:
                profiler.next_epoch()
        thread.join()


def load(engine: Engine, path: str) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """Return how long the slices of each name and thread took in all, the moments, and the counter values."""
    assert validate_trace(path).counts == {}
    with engine.load(path) as trace:
        assert trace.errors() == []
        durations: Counter[Any] = Counter()
        moments: Counter[Any] = Counter()
        for thread, name, time_ns, duration_ns in trace.rows(SLICES):
            if name == "moment":
                moments[thread, time_ns] += 1
            else:
                durations[thread, name] += duration_ns
        return durations, moments, Counter(trace.rows(COUNTERS))


@pytest.mark.parametrize(
    ("rotation", "suffix"),
    [({"rotate_bytes": 1}, ".json"), ({"rotate_seconds": 5e-5}, ".json.gz"), ({"rotate_every": "1ep"}, ".json")],
)
def test_every_part_loads_and_together_and_merged_they_hold_every_event_once(
    tmp_path: Path, engine: Engine, rotation: dict[str, Any], suffix: str
) -> None:
    whole = JSONTraceHandler(tmp_path / "whole.json")
    parts = JSONTraceHandler(tmp_path / ("part{part}" + suffix), **rotation)
    record(whole, parts)
    assert len(parts.paths) >= 2
    wanted = load(engine, whole.paths[0])
    found = [load(engine, path) for path in parts.paths]
    for index in range(3):
        assert sum((part[index] for part in found), Counter()) == wanted[index]
    for output, inputs in (("merged.json", parts.paths), ("alone.json", whole.paths)):
        merge_traces(str(tmp_path / output), inputs, strict=True)
    assert load(engine, str(tmp_path / "merged.json")) == load(engine, str(tmp_path / "alone.json"))
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.scalar("select count(distinct upid) from thread join thread_track using (utid)") == 1
