"""K8: lives that are too short, too long, or end in the wrong order. Nothing is lost, nothing raises, nothing hangs."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.faults import Child, in_process_writer, opened
from tracekit import JSONTraceHandler, Profiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

ENDS = {
    "falls off the end": "",
    "sys.exit": "sys.exit()",
    "stops": "profiler.stop()",
    "stops twice": "profiler.stop(); profiler.stop()",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_right_after_the_start_loses_nothing_and_ends_at_once(
    tmp_path: Path, engine: Engine, end: str
) -> None:
    program = f"""
        profiler = record(shutdown_timeout=3600.0)
        with profiler.marker("only"):
            pass
        {ENDS[end]}
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0  # it waits for nothing: a stop may wait for an hour
        assert child.errors == ""
    remains = opened(engine, tmp_path)
    assert remains.count("XB", "only") == 1
    assert remains.closed
    assert (remains.summary["slices"], remains.summary["dropped"]) == (1, {})


def test_a_profiler_that_is_never_stopped_and_forgotten_loses_nothing_at_a_kill(tmp_path: Path, engine: Engine) -> None:
    program = """
        import gc
        def forgotten():
            profiler = record()
            with profiler.marker("only"):
                pass
            profiler.flush()
        forgotten()
        gc.collect()
        say("forgotten")
        hear()
    """
    with Child(program, tmp_path) as child:
        child.hear("forgotten")
        child.kill()
        assert child.errors == ""
        remains = opened(engine, tmp_path)
        assert remains.count("XB", "only") == 1


def test_a_profiler_that_was_never_started_leaves_nothing_behind(tmp_path: Path) -> None:
    profiler = Profiler(JSONTraceHandler(tmp_path / "t.json"), rank=0)
    with profiler.marker("not recorded"), tracekit.marker("of the module, which outlives the profiler"):
        pass
    profiler.stop()
    assert profiler.flush() is False
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_profiler_is_freed(tmp_path: Path) -> None:
    with Profiler(JSONTraceHandler(tmp_path / "t.json"), rank=0) as profiler:
        shared = tracekit.marker("of the module, which outlives the profiler")
        with profiler.marker("own"), shared:
            shared.instant()
    forgotten = weakref.ref(profiler)
    del profiler
    gc.collect()
    assert forgotten() is None


def test_events_after_the_end_are_not_in_the_file_and_nothing_before_is_lost(tmp_path: Path, engine: Engine) -> None:
    profiler = Profiler(in_process_writer(tmp_path / "t.json"), rank=0, record_batches=False)
    profiler.start()
    marker = profiler.marker("work")
    for number in range(100):
        with marker:
            profiler.marker("n").counter({"n": number})
    marker.start()
    profiler.stop()
    size = (tmp_path / "t.json").stat().st_size
    marker.finish()
    marker.instant()
    profiler.marker("n").counter({"n": -1})
    with marker:
        profiler.step()
    profiler.next_epoch()
    profiler.stop()
    assert profiler.flush() is False
    assert (tmp_path / "t.json").stat().st_size == size
    remains = opened(engine, tmp_path / "t.json")
    assert remains.values("n", "n") == list(range(100))
    assert remains.count("X", "work") + remains.count("B", "work") == 101
    assert (profiler.stats.slices, profiler.stats.counters) == (remains.count("XE"), remains.count("C"))
