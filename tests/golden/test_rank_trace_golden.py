"""Rank traces as the recorder writes them, looked at through Perfetto's own engine: everything there, no error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import JSONTraceHandler, Profiler, validate_trace
from tracekit.testing import FakeClock, record_sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace

SLICES = """
select thread.name, slice.name, slice.ts, slice.dur, slice.depth
from slice join thread_track on thread_track.id = track_id join thread using (utid) order by slice.ts, slice.depth
"""


def counts(trace: LoadedTrace) -> dict[Any, Any]:
    return dict(trace.rows("select name, count(*) from slice group by name"))


def load(engine: Engine, path: Path) -> LoadedTrace:
    assert validate_trace(str(path)).counts == {}
    trace = engine.load(path)
    assert trace.errors() == []
    return trace


def test_a_run_with_everything_in_it_loads_whole(tmp_path: Path, engine: Engine) -> None:
    record_sample(JSONTraceHandler(tmp_path / "t.json"), folder=tmp_path)
    with load(engine, tmp_path / "t.json") as trace:
        # Per epoch of three batches: one warm-up, one active, one skipped; the first epoch slice begins in the warm-up.
        assert counts(trace) == {
            "batch": 4, "dataloader": 4, "epoch": 2, "forward": 8, "layer": 8, "loss": 4, "saw a batch": 4,
        }  # fmt: skip
        assert trace.rows("select distinct name from process_counter_track") == [("loss train",)]
        assert trace.scalar("select count(*) from counter") == 4
        assert trace.scalar("select count(*) from slice where dur < 0") == 0
        exceptions = "select count(*) from args where key = 'args.exception' and string_value = 'ArithmeticError'"
        assert trace.scalar(exceptions) == 4


def test_times_and_depths_are_those_of_the_recording(tmp_path: Path, engine: Engine) -> None:
    clock = FakeClock(wall_ns=1_795_225_970_824_242_740)
    handler = JSONTraceHandler(tmp_path / "t.json")
    with Profiler(handler, clock=clock.clock, rank=0, record_batches=False, flush_interval=3600) as profiler:
        start_ns = clock.wall_ns - 1_793_457_026_000_000_000
        with profiler.marker("outer"):
            clock.advance(1_234_567)
            with profiler.marker("inner"):
                clock.advance(1)
            profiler.flush()
            with profiler.marker("later"):
                clock.advance(999)
    with load(engine, tmp_path / "t.json") as trace:
        assert trace.rows(SLICES) == [
            ("MainThread", "outer", start_ns, 1_235_567, 0),
            ("MainThread", "inner", start_ns + 1_234_567, 1, 1),
            ("MainThread", "later", start_ns + 1_234_568, 999, 1),
        ]


def test_hostile_names_and_categories_do_not_hurt_the_file(tmp_path: Path, engine: Engine) -> None:
    names = ['quote "q"', "back\\slash", "line\nbreak", "tab\t", "ünï 😀", "nul\x00", "\ud800 lone", "</script>"]
    names += ["100 % %d %b %%", "", "x" * 9000]
    with Profiler(JSONTraceHandler(tmp_path / "t.json"), rank=0, run_id="ü/\n", flush_interval=3600) as profiler:
        for name in names:
            with profiler.marker(name, categories=[name, "a,b"]):
                profiler.marker(name).instant()
            profiler.marker(name).counter({name: 1, "é": 2})
    with engine.load(tmp_path / "t.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice") == 2 * len(names)
        assert trace.scalar("select count(*) from counter") == 2 * len(names)
        assert trace.scalar("select count(*) from slice where name = 'ünï 😀'") == 2
