"""The table of all ranks from their traces: the same as the timers' own, whatever the files look like."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from tracekit import JSONTraceHandler, Profiler, StorageError, Timers, TraceFormatError
from tracekit.testing import FakeClock
from tracekit.timers import TimerTable, read_timers

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def record(rank: int, *handlers: JSONTraceHandler, calls: int = 20, flush: str = "") -> TimerTable:
    """Record some calls of timers on one rank; returns what the timers say."""
    clock = FakeClock()
    timers = Timers(2, "max", clock=clock.clock)
    with Profiler(handlers, rank=rank, world_size=4, run_id="run", clock=clock.clock, flush_interval=3600) as profiler:
        for number in range(calls):
            with timers("outer"):
                clock.advance((number + rank + 1) * MS)
                if flush == "inside":
                    profiler.flush()  # what is open is then written as a beginning, and its end on its own
                with timers('inner, with "quotes" and é'), timers("outer"):
                    clock.advance(7)
            with profiler.marker("no timer", ["timers", "x"]):
                clock.advance(11)
            if flush:
                profiler.flush()
            profiler.step()
        if rank % 2:
            with timers("only on odd ranks"):
                clock.advance(1)
    return TimerTable({rank: timers.snapshot().ranks[0]})


def test_the_traces_of_all_ranks_say_what_the_timers_say(tmp_path: Path) -> None:
    expected = TimerTable({})
    for rank in (2, 0, 1):
        expected = expected.merged_with(record(rank, JSONTraceHandler(tmp_path / "rank{rank}.json")))
    (tmp_path / "other.json").write_text(
        json.dumps({"traceEvents": [{"ph": "X", "cat": "timer", "name": "x", "dur": 1}]})
    )
    found = read_timers(tmp_path)
    assert found == expected
    assert (found.across("outer").count, found.slowest("outer"), list(found.of("only on odd ranks"))) == (60, 2, [1])
    assert found == read_timers(*[str(tmp_path / f"rank{rank}.json") for rank in range(3)])
    assert found.names == ["outer", 'inner, with "quotes" and é', "only on odd ranks"]
    assert found.text() == expected.text()


@pytest.mark.parametrize("flush", ["inside", "between"])
@pytest.mark.parametrize("compressed", ["", ".gz"])
def test_a_call_that_goes_on_in_the_next_file_is_one_call(tmp_path: Path, flush: str, compressed: str) -> None:
    handler = JSONTraceHandler(tmp_path / ("rank{rank}-part{part}.json" + compressed), rotate_bytes=2000)
    expected = record(1, handler, calls=30, flush=flush)
    assert len(handler.paths) > 3
    assert read_timers(tmp_path) == expected


def test_threads_and_attempts_of_a_rank_belong_together(tmp_path: Path) -> None:
    for attempt in range(2):
        clock = FakeClock()
        timers = Timers(2, "max", clock=clock.clock)
        handler = JSONTraceHandler(tmp_path / "rank{rank}-{attempt}.json")
        with Profiler(handler, rank=3, world_size=4, attempt=attempt, run_id="run", clock=clock.clock):
            thread = threading.Thread(target=lambda timers=timers: timers("x").__enter__().__exit__(None, None, None))
            thread.start()
            thread.join()
            with timers("x"):
                clock.advance(MS)
    found = read_timers(tmp_path)
    assert list(found.ranks) == [3]
    assert (found.of("x")[3].count, found.of("x")[3].total_ns) == (4, 2 * MS)


def test_what_had_not_ended_is_left_out_and_a_rank_without_timers_is_not(tmp_path: Path) -> None:
    timers = Timers(2, "max")
    with Profiler(JSONTraceHandler(tmp_path / "rank0.json"), rank=0, run_id="run") as profiler:
        with timers("ended"):
            profiler.flush()
        timers("open").start()
        profiler.flush()
    timers("open").stop()
    record(2, JSONTraceHandler(tmp_path / "rank{rank}.json"), calls=0)
    found = read_timers(tmp_path)
    assert (found.names, list(found.ranks)) == (["ended"], [0, 2])
    assert read_timers() == TimerTable({})


def test_files_that_are_no_rank_traces_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "torch.json"
    other.write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "x", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}))
    with pytest.raises(TraceFormatError, match="no rank trace of tracekit"):
        read_timers(other)
    other.with_name("second.json").write_bytes(other.read_bytes())
    with pytest.raises(TraceFormatError, match="hold no rank trace"):
        read_timers(tmp_path)
    with pytest.raises(StorageError):
        read_timers(tmp_path / "nothing.json")
