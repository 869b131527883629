"""What a merged trace tells before its events: of thousands of ranks, of long values, and of a part of the ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import BASE_NS, event, rank_trace, torch_trace, write
from tests.merged_tables import inputs
from tracekit import TraceFormatError, recover_trace, summarize_traces, validate_trace
from tracekit.merge import Selection, merge_traces

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = [{"pg_name": str(number), "backend_config": "cuda:nccl", "ranks": list(range(64))} for number in range(20)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merged trace whose head is as large as that of thousands of ranks."""
    folder = tmp_path_factory.mktemp("large")
    said = {f"key{number}": "x" * 4000 for number in range(60)}
    ranks = [
        torch_trace(event("a", rank, pid=100 + rank), distributedInfo={"rank": rank}, **said) for rank in range(80)
    ]
    write(folder / "ranks", {f"rank{rank}.json": trace for rank, trace in enumerate(ranks)})
    merge_traces(folder / "merged.json", folder / "ranks")
    assert (folder / "merged.json").stat().st_size > 17 << 20
    return folder / "merged.json"


def test_a_merge_of_thousands_of_ranks_is_read_again(large: Path, tmp_path: Path) -> None:
    assert validate_trace(large).problems == ()
    assert len(summarize_traces(large).ranks) == 80
    merge_traces(tmp_path / "again.json", large)
    assert (tmp_path / "again.json").read_bytes() == large.read_bytes()


def test_a_merge_of_thousands_of_ranks_that_was_cut_is_recovered_with_all_that_it_tells(
    large: Path, tmp_path: Path
) -> None:
    whole = large.read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[:-40])
    report = recover_trace(tmp_path / "cut.json", tmp_path / "recovered.json")
    assert (report.lost_parts, report.events) == (0, len(json.loads(whole)["traceEvents"]) - 1)
    recovered = json.loads((tmp_path / "recovered.json").read_text())
    assert recovered["tracekit"] == json.loads(whole)["tracekit"]


def test_what_only_begins_as_a_merged_trace_is_given_up_at_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.formats.json.reader.MAX_HEAD_BYTES", 1 << 20)
    endless = tmp_path / "endless.json"
    endless.write_text('{"schemaVersion":1,"tracekit":{"merge":{},"processes":[' + "1," * (4 << 20))
    with pytest.raises(TraceFormatError, match=r"no traceEvents in its first [12]\d{6} bytes"):
        merge_traces(tmp_path / "merged.json", endless)


def test_what_is_too_long_beside_the_events_is_named_and_the_rest_is_kept(merge: Any) -> None:
    info = {"backend": "nccl", "rank": 1, "world_size": 64, "pg_config": GROUPS}
    long = torch_trace(event("b"), distributedInfo=info, config="y" * 5000, with_stack=1, samples=["z" * 99] * 99)
    left_out = ["distributedInfo.pg_config", "config", "samples"]
    merged, report = merge({"first.json": rank_trace(event("a")), "second.json": long}, align="wall")
    assert [item.header_left_out for item in report.inputs] == [(), tuple(left_out)]
    assert (report.complete, report.warnings) == (True, [])
    lines = [line for line in report.lines() if "beside the events" in line]
    assert lines[1] == "left out: config beside the events of 1 input: longer than 4,096 bytes, or behind 64 other keys"
    kept = inputs(merged)
    assert "header_left_out" not in kept[0]
    assert kept[1]["header_left_out"] == left_out
    assert kept[1]["header"] == {
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 64},
        "with_stack": 1,
    }
    # An earlier merge has said so already.
    again, report = merge({"merged.json": merged}, align="wall")
    assert report.inputs[0].header_left_out == ()
    assert again == merged


def test_a_header_of_many_keys_keeps_the_first(merge: Any) -> None:
    _, report = merge({"many.json": torch_trace(event("a"), rank=0, **{f"key{number}": 1 for number in range(70)})})
    assert report.inputs[0].header_left_out == tuple(f"key{number}" for number in range(62, 70))


def test_some_ranks_of_an_earlier_merge_tell_of_themselves_only(merge: Any) -> None:
    files = {f"{rank}.json": rank_trace(event("a", pid=100 + rank), rank=rank, pid=100 + rank) for rank in range(4)}
    everything, _ = merge(files)
    some = Selection(ranks=[1, 3])  # type: ignore[arg-type]
    of_all, of_ranks = (inputs(merge(each, select=some)[0]) for each in ({"all.json": everything}, files))
    assert [entry["rank"] for entry in of_all] == [1, 3]
    assert of_all == of_ranks
