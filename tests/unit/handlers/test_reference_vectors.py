"""What Composer's profiler does in each observed case, and what tracekit does there instead.

The cases are those of the project's fact sheet on the reference systems, sections 5.2 and 5.5 to 5.7 (5.1, the schedule, is in
test_schedule.py; 5.3, the marker, in test_marker.py and test_marker_states.py; section 2, time, in test_time.py and
test_timestamp.py). Each test names what the reference does.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tracekit import (
    ConfigError,
    JSONTraceHandler,
    Profiler,
    cyclic_schedule,
    merge_traces,
)

if TYPE_CHECKING:
    from pathlib import Path


# ---- 5.2 and 5.5 the profiler and the trace file --------------------------------------------------------------------------


def test_a_cycle_that_the_end_of_the_run_cuts_short_is_in_the_file_where_the_reference_writes_none(
    tmp_path: Path,
) -> None:
    handler = JSONTraceHandler(tmp_path / "ep{epoch}-ba{batch}.json")
    with Profiler(handler, cyclic_schedule(warmup=0, active=4), rank=0) as one, one.marker("m"):
        one.step()
    (path,) = handler.paths
    names = [event["name"] for event in json.loads((tmp_path / path).read_text()) if event["ph"] in "XB"]
    assert sorted(names) == ["batch", "m"]


def test_every_cycle_of_the_schedule_is_kept(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "ep{epoch}-ba{batch}.json")
    with Profiler(handler, cyclic_schedule(warmup=0, wait=1, active=1, repeat=0), rank=0) as one:
        for _ in range(6):
            with one.marker("m"):
                pass
            one.step()
    assert [path.rpartition("/")[2] for path in handler.paths] == ["ep0-ba1.json", "ep0-ba3.json", "ep0-ba5.json"]


# ---- 5.6 the merger -------------------------------------------------------------------------------------------------------


def rank_file(folder: Path, rank: int, marker: str = "m") -> Path:
    with Profiler(
        JSONTraceHandler(folder / ("rank{rank}-" + marker + ".json")),
        rank=rank,
        world_size=4,
        run_id="r",
        flush_interval=3600,
    ) as one:
        with one.marker(marker):
            pass
        one.marker("i").instant()
    return folder / f"rank{rank}-{marker}.json"


TORCH = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1790857026000000000,
    "displayTimeUnit": "ms",
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 7, "tid": 7, "ts": 100.5, "dur": 2.25},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 9},
    ],
}  # fmt: skip


def merged_names(output: Path) -> dict[str, list[str]]:
    """Return the names of the slices in a merged trace by the rank of their process."""
    events = json.loads(output.read_text())["traceEvents"]
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault(titles[event["pid"]].split(" · ")[0], []).append(event["name"])
    return found


def test_a_torch_trace_alone_merges_where_the_reference_fails_on_an_assertion(tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text(json.dumps(TORCH))
    merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "torch.json")])
    assert sorted(merged_names(tmp_path / "out.json")["rank 0"]) == ["PyTorch Profiler (0)", "op"]


def test_times_of_newer_torch_traces_keep_their_base_where_the_reference_is_56_years_off(tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text(json.dumps({**TORCH, "rank": 0}))
    rank_file(tmp_path, 1)
    report = merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "torch.json"), str(tmp_path / "rank1-m.json")])
    (op,) = [event for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"] if event["name"] == "op"]
    assert report.base_time_ns + round(op["ts"] * 1000) == 1790857026000000000 + 100_500


@pytest.mark.parametrize("damage", ["missing bracket", "trailing comma", "event without a name", "gz"])
def test_inputs_that_stop_the_reference_are_merged(tmp_path: Path, damage: str) -> None:
    source = rank_file(tmp_path, 0)
    text = source.read_text()
    if damage == "missing bracket":
        source.write_text(text.rstrip().removesuffix("]"))
    elif damage == "trailing comma":
        source.write_text(text.rstrip().removesuffix("]").rstrip() + ",\n]")
    elif damage == "event without a name":
        source.write_text(text.replace("[\n", '[\n{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1},\n', 1))
    else:
        source.unlink()
        source = tmp_path / "rank0-m.json.gz"
        source.write_bytes(gzip.compress(text.encode()))
    report = merge_traces(str(tmp_path / "out.json"), [str(source)])
    assert report.complete
    assert "m" in merged_names(tmp_path / "out.json")["rank 0"] if damage != "event without a name" else True


def test_an_output_that_is_an_input_is_refused_and_left_as_it_was_where_the_reference_destroys_it(
    tmp_path: Path,
) -> None:
    source = rank_file(tmp_path, 0)
    before = source.read_bytes()
    with pytest.raises(ConfigError, match="one of the inputs"):
        merge_traces(str(source), [str(source)], overwrite=True)
    assert source.read_bytes() == before


def test_an_earlier_merge_with_new_cycles_keeps_every_rank_where_the_reference_makes_them_one(tmp_path: Path) -> None:
    first = merge_traces(str(tmp_path / "one.json"), [str(rank_file(tmp_path, rank)) for rank in (0, 1)])
    assert first.complete
    later = rank_file(tmp_path, 2, marker="later")
    merge_traces(str(tmp_path / "two.json"), [str(tmp_path / "one.json"), str(later)])
    names = merged_names(tmp_path / "two.json")
    assert {rank: sorted(found) for rank, found in names.items()} == {
        "rank 0": ["m"],
        "rank 1": ["m"],
        "rank 2": ["later"],
    }
