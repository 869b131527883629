"""Labels of parallelism in merges: titles, order, metadata; and merging again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import ConfigError, MergeError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000
VLLM = "dp{dp}_pp0_tp{tp}_rank{rank}.17.pt.trace.json"


def op(pid: int, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "op", "pid": pid, "tid": pid, "ts": 5, "dur": 2, **more}


def write_trace(path: Path, rank: int, **header: Any) -> None:
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **header}
    label = {"ph": "M", "name": "process_labels", "pid": rank, "tid": 0, "args": {"labels": f"GPU {rank}"}}
    path.write_text(json.dumps({**head, "traceEvents": [label, op(100 + rank), op(rank, tid=7, cat="kernel")]}))


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """Four ranks, two by two."""
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(4):
        write_trace(folder / VLLM.format(rank=rank, dp=rank // 2, tp=rank % 2), rank, host_name=f"host{rank % 2}")
    return folder


def merged(path: Path, *inputs: Path, **options: Any) -> dict[str, Any]:
    merge_traces(str(path), [str(one) for one in inputs], **options)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def titles(trace: dict[str, Any]) -> list[str]:
    """Return the names of the processes in the order that viewers give them."""
    told = {
        name: {event["pid"]: event["args"] for event in trace["traceEvents"] if event.get("name") == name}
        for name in ("process_name", "process_sort_index")
    }
    order = told["process_sort_index"]
    return [told["process_name"][pid]["name"] for pid in sorted(order, key=lambda pid: order[pid]["sort_index"])]


def ranks(trace: dict[str, Any]) -> list[int]:
    found = [int(re.match(r"rank (\d+)", title)[1]) for title in titles(trace)]  # type: ignore[index]
    return list(dict.fromkeys(found))


def events(trace: dict[str, Any]) -> list[Any]:
    named = ("process_sort_index", "process_name")
    return [event for event in trace["traceEvents"] if event.get("name") not in named]


def test_labels_stand_in_the_titles_of_processes_and_in_the_metadata(vllm: Path, tmp_path: Path) -> None:
    trace = merged(tmp_path / "merged.json", vllm)
    assert titles(trace)[:4] == [
        "rank 0 · tp0 dp0 · process 100",
        "rank 0 · tp0 dp0 · GPU 0",
        "rank 1 · tp1 dp0 · process 101",
        "rank 1 · tp1 dp0 · GPU 1",
    ]
    assert trace["tracekit"]["merge"]["labels"][3] == [3, {"tp": 1, "dp": 1, "pp": 0}]


@pytest.mark.parametrize(
    ("group_by", "order"),
    [(None, [0, 1, 2, 3]), ("tp", [0, 2, 1, 3]), ("dp", [0, 1, 2, 3]), ("pp", [0, 1, 2, 3]), ("node", [0, 2, 1, 3])],
)
def test_group_by_changes_the_order_and_nothing_else(
    vllm: Path, tmp_path: Path, group_by: str | None, order: list[int]
) -> None:
    plain = merged(tmp_path / "plain.json", vllm)
    grouped = merged(tmp_path / "grouped.json", vllm, group_by=group_by)
    assert ranks(grouped) == order
    assert events(grouped) == events(plain)
    assert sorted(titles(grouped)) == sorted(titles(plain))


def test_a_merge_keeps_labels_and_grouping_when_it_is_merged_again(vllm: Path, tmp_path: Path) -> None:
    merged(tmp_path / "grouped.json", vllm, group_by="tp")
    merged(tmp_path / "again.json", tmp_path / "grouped.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "grouped.json").read_bytes()


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_merges_of_parts_are_grouped_by_the_labels_that_they_keep(vllm: Path, tmp_path: Path, ending: str) -> None:
    files = sorted(vllm.iterdir())
    for number in range(2):
        part = [str(path) for path in files[2 * number : 2 * number + 2]]
        merge_traces(str(tmp_path / f"{number}.{ending}"), part)
    parts = [tmp_path / f"{number}.{ending}" for number in range(2)]
    trace = merged(tmp_path / "merged.json", *parts, group_by="tp")
    assert ranks(trace) == [0, 2, 1, 3]
    assert "rank 2 · tp0 dp1 · GPU 2" in titles(trace)
    if ending == "json":
        assert titles(trace) == titles(merged(tmp_path / "whole.json", vllm, group_by="tp"))


def test_labels_come_from_process_groups(tmp_path: Path) -> None:
    for rank in range(4):
        groups = [
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
            {"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [rank // 2 * 2, rank // 2 * 2 + 1]},
            {"pg_name": "2", "pg_desc": "mesh_dp", "ranks": [rank % 2, rank % 2 + 2]},
        ]
        info = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": groups}
        write_trace(tmp_path / f"{rank}.json", rank, distributedInfo=info)
    trace = merged(tmp_path / "merged.json", *[tmp_path / f"{rank}.json" for rank in range(4)], group_by="tp")
    assert titles(trace)[::2] == [
        f"rank {rank} · tp{rank % 2} dp{rank // 2} · process {100 + rank}" for rank in (0, 2, 1, 3)
    ]


def test_ranks_follow_from_the_labels_in_names(tmp_path: Path) -> None:
    for tp in range(2):
        for pp in range(2):
            write_trace(tmp_path / f"17-TP-{tp}-DP-0-PP-{pp}-EP-0.trace.json", 2 * pp + tp)
    trace = merged(tmp_path / "merged.json", tmp_path)
    assert titles(trace)[::2] == [f"rank {2 * pp + tp} · tp{tp} pp{pp} · process {100 + 2 * pp + tp}"
                                  for pp in range(2) for tp in range(2)]  # fmt: skip
    (tmp_path / "17-TP-0-DP-0-PP-1-EP-0.trace.json").unlink()
    with pytest.raises(MergeError, match="does not say its rank"):
        merge_traces(str(tmp_path / "again.json"), [str(tmp_path / "17-*")])


def test_labels_that_all_ranks_share_are_not_shown(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}_dp0_tp{rank}_pp3.json", rank)
    assert titles(merged(tmp_path / "merged.json", tmp_path))[0] == "rank 0 · tp0 · process 100"


@pytest.mark.parametrize(("group_by", "says"), [("ep", "place in ep"), ("node", "host"), ("zz", "give one of")])
def test_a_grouping_that_no_input_states_is_refused(tmp_path: Path, group_by: str, says: str) -> None:
    write_trace(tmp_path / "rank0.json", 0)
    with pytest.raises(ConfigError, match=says):
        merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "rank0.json")], group_by=group_by)
    assert not (tmp_path / "merged.json").exists()


def test_ranks_without_a_place_come_last(vllm: Path, tmp_path: Path) -> None:
    write_trace(tmp_path / "rank-9.json", 9)
    write_trace(tmp_path / "rank-8.json", 8)
    inputs = [vllm, tmp_path / "rank-9.json", tmp_path / "rank-8.json"]
    assert ranks(merged(tmp_path / "merged.json", *inputs, group_by="dp")) == [0, 1, 2, 3, 8, 9]


def test_a_rank_trace_and_a_torch_trace_of_one_rank_share_their_labels(vllm: Path, tmp_path: Path) -> None:
    own = {"rank": 3, "pid": 103, "host": "host1", "boot_id": "b", "baseTimeNanoseconds": BASE_NS}
    metadata = {"ph": "M", "name": "tracekit_metadata", "pid": 103, "tid": 103, "args": own}
    (vllm / "rank3.json").write_text(json.dumps([metadata, op(103, ts=20)]))
    assert "rank 3 · tp1 dp1 · process 103" in titles(merged(tmp_path / "merged.json", vllm))


@pytest.mark.parametrize("change", [lambda own: own.update(labels=3), lambda own: own.update(labels=[["x", {}], 7])])
def test_damaged_labels_of_a_merge_are_ignored(vllm: Path, tmp_path: Path, change: Callable[[Any], None]) -> None:
    trace = merged(tmp_path / "merged.json", vllm)
    change(trace["tracekit"]["merge"])
    (tmp_path / "changed.json").write_text(json.dumps(trace))
    assert titles(merged(tmp_path / "again.json", tmp_path / "changed.json"))[0] == "rank 0 · process 100"
