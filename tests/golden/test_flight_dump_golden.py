"""Dumps of torch's flight recorder, merged, as Perfetto's own engine shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.flight_dumps import BASE_NS, MS, as_json, as_pickle, hung
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

ROWS = """
select process.name, coalesce(process_track.name, thread_track.name, thread.name),
  slice.ts, slice.dur, slice.name,
  coalesce(extract_arg(slice.arg_set_id, 'args.completed'), extract_arg(slice.arg_set_id, 'debug.completed')),
  coalesce(extract_arg(slice.arg_set_id, 'args.Seq'), extract_arg(slice.arg_set_id, 'debug.Seq'))
from slice left join thread_track on thread_track.id = slice.track_id left join thread using (utid)
left join process_track on process_track.id = slice.track_id
join process on process.upid = coalesce(thread.upid, process_track.upid)
where slice.category is not 'clock'
order by process.pid, slice.ts
"""
DEFAULT = "process group 0 (default_pg)"
# Track, start and duration in ms, name, whether it completed, number: as `hung` tells.
EXPECTED = [
    (DEFAULT, 0, 9, "nccl:all_reduce", "yes", 1),
    (f"{DEFAULT} (overlap)", 1, 11, "nccl:_all_gather_base", "yes", 2),
    (f"{DEFAULT} send/recv", 13, 3, "nccl:send 0->1", "with the others of its launch (coalesced)", None),
    (f"{DEFAULT} send/recv", 13.5, 2.5, "nccl:recv 0<-1", "with the others of its launch (coalesced)", None),
    (f"{DEFAULT} send/recv", 14, 2, "nccl:coalesced", "yes", None),
    (DEFAULT, 20, None, "nccl:all_reduce (not completed)", "no", 3),
    (DEFAULT, 30, None, "nccl:reduce_scatter (not completed)", "no", 4),
    ("process group 1", 31, None, "nccl:barrier (not completed)", "no; it timed out", 1),
]


@pytest.mark.parametrize(
    ("form", "name"),
    [(as_json, "merged.json"), (as_pickle, "merged.json.gz"), (as_json, "merged.pftrace"), (as_pickle, "merged.zip")],
)
def test_rows_and_no_errors(tmp_path: Path, engine: Engine, form: type, name: str) -> None:
    for rank in range(2):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(form(hung(BASE_NS + rank * MS)))
        os.utime(path, ns=(BASE_NS + 1000 * MS, BASE_NS + 1000 * MS))
    report = merge_traces(str(tmp_path / name), [str(tmp_path / "nccl_trace_rank_*")])
    assert report.complete
    first = BASE_NS - (0 if name.endswith(".pftrace") else report.base_time_ns)
    with engine.load(tmp_path / name) as loaded:
        assert loaded.errors() == []
        rows = [row for row in loaded.rows(ROWS) if row[4] != "dump written"]
        (end,) = {ts for (ts,) in loaded.rows("select ts from slice where name = 'dump written'")}
    assert end == first + 1000 * MS
    for rank in range(2):
        mine = [row for row in rows if row[0] == f"rank {rank} · flight recorder"]
        assert [
            (track, (ts - first) / MS - rank, None if dur == -1 else dur / MS, name, completed, number)
            for _, track, ts, dur, name, completed, number in mine
        ] == EXPECTED
