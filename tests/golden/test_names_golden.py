"""Names and order of rows in merges of real traces, as Perfetto's own engine reads them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.merge_inputs import titles
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine
    from tests.real_traces import RealTraces

ROWS = """
select distinct process.name, coalesce(nullif(track.name, ''), thread.name) from slice
join track on track.id = slice.track_id
left join thread_track on thread_track.id = track.id left join thread using (utid)
left join process_track on process_track.id = track.id
join process on process.upid = coalesce(thread.upid, process_track.upid)
"""
GPU_ROWS = {7: "compute", 22: "memcpy h2d", 24: "compute", 84: "nccl"}


def test_rows_of_gpus_say_rank_device_and_role_and_ranks_stand_in_order(
    engine: Engine, traces: RealTraces, tmp_path: Path
) -> None:
    output = tmp_path / "merged.json"
    merge_traces(str(output), [str(traces / "dlrm_8gpu")])
    with engine.load(output) as loaded:
        assert loaded.errors() == []
        rows = {(process, row) for process, row in loaded.rows(ROWS) if row and "stream" in row}
    assert rows == {
        (f"rank {rank} · GPU {rank}", f"rank {rank} · GPU {rank} · stream {stream} ({role})")
        for rank in range(4)
        for stream, role in GPU_ROWS.items()
    }
    assert list(titles(json.loads(output.read_text())).values()) == [
        *[f"rank {rank} · {what}" for rank in range(4) for what in ("python3", f"GPU {rank}")],
        *[f"rank {rank} · profiler" for rank in range(4)],
    ]


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_lanes_are_named_after_their_threads_and_no_name_holds_a_synthetic_number(
    engine: Engine, traces: RealTraces, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"merged.{ending}"
    merge_traces(str(output), [str(path) for path in sorted((traces / "torch_2.13_gloo").glob("full_*"))])
    with engine.load(output) as loaded:
        rows = set(loaded.rows(ROWS))
        # A viewer writes the number of a thread behind its name.
        numbers = [tid for (tid,) in loaded.rows("select tid from thread where tid >= 1 << 30")]
    assert {
        ("rank 0 · python3", "thread 18312 (python3) (overlap)"),
        ("rank 1 · python3", "thread 18313 (python3) (overlap)"),
    } <= rows
    assert not [row for row in rows if re.search(r"\d{9}", str(row))]
    assert ending == "json" or numbers == []
