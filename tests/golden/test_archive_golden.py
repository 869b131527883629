"""Archives of real traces in Perfetto's own engine.

The engine is older than v58 and passes over the manifest, so that this shows what older viewers make of an archive: files on
one timeline as they are, and processes of one pid as one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import event, meta, rank_trace, write
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace
    from tests.real_traces import RealTraces

SLICES = """
select slice.ts, slice.dur, slice.name, slice.category, process.pid, process.name
from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
order by 1, 2, 3, 4, 5, 6
"""
COUNTERS = (
    "select ts, track.name, value from counter join process_counter_track track on track.id = track_id order by 1, 2"
)
ARROWS = """
select out_.ts, out_.name, in_.ts, in_.name
from flow join slice out_ on out_.id = slice_out join slice in_ on in_.id = slice_in order by 1, 2, 3, 4
"""
RUNS = {
    "dlrm": [f"dlrm_8gpu/worker{rank}_step_12.*.gz" for rank in range(4)],
    "gloo": [f"torch_2.13_gloo/full_rank{rank}_step4.json.gz" for rank in range(2)],
}
# An archive holds the files as they are, without the clocks that a merge adds.
COUNTS = [
    f"select count(*) from {table}" for table in ("slice where coalesce(category, '') != 'clock'", "counter", "flow")
]


def counts(trace: LoadedTrace) -> list[int]:
    return [int(trace.scalar(sql)) for sql in COUNTS]  # type: ignore[arg-type]


@pytest.mark.parametrize(("run", "ending"), [("dlrm", "tar"), ("gloo", "zip")])
def test_an_archive_shows_what_the_merged_trace_shows(
    engine: Engine, traces: RealTraces, tmp_path: Path, run: str, ending: str
) -> None:
    sources = [str(path) for pattern in RUNS[run] for path in traces.glob(pattern)]
    archive, merged = tmp_path / f"all.{ending}", tmp_path / "all.json"
    report = merge_traces(str(archive), sources)
    merge_traces(str(merged), sources)
    # Every rank declares the devices of all.
    assert len(report.rewritten or {}) == len(sources)
    with engine.load(archive) as together, engine.load(merged) as one:
        assert together.errors() == []
        for sql in (SLICES, COUNTERS, ARROWS):
            assert together.rows(sql) == one.rows(sql)
        assert counts(together) == counts(one)


def test_rank_traces_are_in_the_archive_as_they_are_and_stand_beside_each_other(engine: Engine, tmp_path: Path) -> None:
    files = {}
    for rank in range(3):
        pid = 4711 + rank
        place: dict[str, Any] = {"pid": pid, "tid": pid}
        flow: dict[str, Any] = {"cat": "c", "id": 1, **place}
        files[f"rank{rank}.json"] = rank_trace(
            meta("process_name", pid, pid, name=f"rank {rank}"),
            event(f"step of {rank}", 100.25 + rank, 7, **place),
            event("go", 101 + rank, ph="s", **flow),
            event("go", 103 + rank, ph="f", bp="e", **flow),
            rank=rank,
            pid=pid,
        )
    report = merge_traces(str(tmp_path / "run.tar"), write(tmp_path, files))
    assert report.rewritten == {}
    with engine.load(tmp_path / "run.tar") as loaded:
        assert loaded.errors() == []
        assert [row[:3] + row[4:] for row in loaded.rows(SLICES)] == [
            (100_250 + 1000 * rank, 7000, f"step of {rank}", 4711 + rank, f"rank {rank}") for rank in range(3)
        ]
        # The same ids in several files are not one arrow.
        assert len(loaded.rows(ARROWS)) == 3
