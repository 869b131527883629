"""Parts of real runs in Perfetto's own engine: what is selected is there as it is in the whole, and nothing is wrong with it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.merge import Selection, merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

# Without the lane: lanes are found among the slices that are selected.
SLICES = """
select slice.ts, slice.dur, slice.name, slice.category,
  substr(thread.name, 1, instr(thread.name || ' (overlap', ' (overlap') - 1), process.name
from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
"""
ARROWS = """
select out_.ts, out_.name, in_.ts, in_.name
from flow join slice out_ on out_.id = slice_out join slice in_ on in_.id = slice_in
"""
RUNS = {"dlrm": "dlrm_8gpu/*.gz", "gloo": "torch_2.13_gloo/full_*.gz"}
SELECTIONS: dict[str, dict[str, Any]] = {
    "no python": {"exclude_categories": ["python_function", "cuda_runtime"]},
    "all": {"time_window": (0.001, 0.03), "exclude_categories": ["Trace"], "min_duration_ns": 2000},
}


@pytest.mark.parametrize("ending", ["json", "pftrace"])
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("run", RUNS)
def test_a_selection_is_a_part_of_the_whole(
    engine: Engine, traces: RealTraces, tmp_path: Path, run: str, selection: str, ending: str
) -> None:
    sources = [str(path) for path in traces.glob(RUNS[run])]
    whole, part = str(tmp_path / f"whole.{ending}"), str(tmp_path / f"part.{ending}")
    merge_traces(whole, sources)
    report = merge_traces(part, sources, select=Selection(**SELECTIONS[selection]))
    assert report.complete
    with engine.load(whole) as all_, engine.load(part) as some:
        assert some.errors() == []
        for sql in (SLICES, ARROWS):
            assert not Counter(some.rows(sql)) - Counter(all_.rows(sql))
        slices = int(some.scalar("select count(*) from slice"))  # type: ignore[arg-type]
    assert 0 < slices < sum(report.events_in.values())
