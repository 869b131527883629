"""Labels of parallelism in merges: titles, order, metadata; and merging again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import event, meta, rank_trace, torch_trace, write
from tests.merge_inputs import titles as titles_of
from tracekit.errors import ConfigError, MergeError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def trace(rank: int, **header: Any) -> dict[str, Any]:
    """Return a torch trace with a process and a GPU."""
    label = meta("process_labels", rank, labels=f"GPU {rank}")
    op, kernel = (event("op", pid=pid, tid=7, cat=cat) for pid, cat in ((100 + rank, "cpu_op"), (rank, "kernel")))
    return torch_trace(label, op, kernel, **header)


# Four ranks, two by two.
VLLM = {
    f"dp{rank // 2}_pp0_tp{rank % 2}_rank{rank}.17.pt.trace.json": trace(rank, host_name=f"host{rank % 2}")
    for rank in range(4)
}


def titles(merged: dict[str, Any]) -> list[str]:
    return list(titles_of(merged).values())


def ranks(merged: dict[str, Any]) -> list[int]:
    """Return the ranks in the order of their processes."""
    return list(dict.fromkeys(int(title.split()[1]) for title in titles(merged)))


def without_order(merged: dict[str, Any]) -> list[Any]:
    return [event for event in merged["traceEvents"] if event["name"] not in ("process_sort_index", "process_name")]


def test_labels_stand_in_the_titles_of_processes_and_in_the_metadata(merge: Any) -> None:
    merged, _ = merge(VLLM)
    assert titles(merged)[:4] == [
        "rank 0 · tp0 dp0 · process 100",
        "rank 0 · tp0 dp0 · GPU 0",
        "rank 1 · tp1 dp0 · process 101",
        "rank 1 · tp1 dp0 · GPU 1",
    ]
    assert merged["tracekit"]["merge"]["labels"][3] == [3, {"tp": 1, "dp": 1, "pp": 0}]


@pytest.mark.parametrize(
    ("group_by", "order"),
    [(None, [0, 1, 2, 3]), ("tp", [0, 2, 1, 3]), ("dp", [0, 1, 2, 3]), ("pp", [0, 1, 2, 3]), ("node", [0, 2, 1, 3])],
)
def test_group_by_changes_the_order_and_nothing_else(merge: Any, group_by: str | None, order: list[int]) -> None:
    plain, _ = merge(VLLM)
    grouped, _ = merge(VLLM, group_by=group_by)
    assert ranks(grouped) == order
    assert without_order(grouped) == without_order(plain)
    assert sorted(titles(grouped)) == sorted(titles(plain))


@pytest.mark.parametrize("ending", ["json", "pftrace"])
def test_merges_of_parts_are_grouped_by_the_labels_that_they_keep(merge: Any, tmp_path: Path, ending: str) -> None:
    files = write(tmp_path / "run", VLLM)
    parts = [tmp_path / f"{number}.{ending}" for number in range(2)]
    for number, part in enumerate(parts):
        merge_traces(str(part), files[2 * number : 2 * number + 2])
    merged, _ = merge({part.name: part.read_bytes() for part in parts}, group_by="tp")
    assert ranks(merged) == [0, 2, 1, 3]
    assert "rank 2 · tp0 dp1 · GPU 2" in titles(merged)
    if ending == "json":
        assert titles(merged) == titles(merge(VLLM, group_by="tp")[0])
    assert titles(merge({"grouped.json": merged})[0]) == titles(merged)


def test_labels_come_from_process_groups(merge: Any) -> None:
    files = {}
    for rank in range(4):
        groups = [
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
            {"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [rank // 2 * 2, rank // 2 * 2 + 1]},
            {"pg_name": "2", "pg_desc": "mesh_dp", "ranks": [rank % 2, rank % 2 + 2]},
        ]
        info = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": groups}
        files[f"{rank}.json"] = trace(rank, distributedInfo=info)
    merged, _ = merge(files, group_by="tp")
    assert titles(merged)[::2] == [
        f"rank {rank} · tp{rank % 2} dp{rank // 2} · process {100 + rank}" for rank in (0, 2, 1, 3)
    ]


def test_ranks_follow_from_the_labels_in_names_of_all(merge: Any) -> None:
    files = {f"17-TP-{rank % 2}-DP-0-PP-{rank // 2}-EP-0.trace.json": trace(rank) for rank in range(4)}
    merged, _ = merge(files)
    assert titles(merged)[::2] == [
        f"rank {rank} · tp{rank % 2} pp{rank // 2} · process {100 + rank}" for rank in range(4)
    ]
    del files["17-TP-0-DP-0-PP-1-EP-0.trace.json"]
    with pytest.raises(MergeError, match="does not say its rank"):
        merge(files)


def test_labels_that_all_ranks_share_are_not_shown(merge: Any) -> None:
    merged, _ = merge({f"rank{rank}_dp0_tp{rank}_pp3.json": trace(rank) for rank in range(2)})
    assert titles(merged)[0] == "rank 0 · tp0 · process 100"


@pytest.mark.parametrize(("group_by", "says"), [("ep", "place in ep"), ("node", "host"), ("zz", "give one of")])
def test_a_grouping_that_no_input_states_is_refused(merge: Any, group_by: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        merge({"rank0.json": trace(0)}, group_by=group_by)


def test_ranks_without_a_place_come_last(merge: Any) -> None:
    files = {**VLLM, "rank-9.json": trace(9), "rank-8.json": trace(8)}
    assert ranks(merge(files, group_by="dp")[0]) == [0, 1, 2, 3, 8, 9]


def test_a_rank_trace_and_a_torch_trace_of_one_rank_share_their_labels(merge: Any) -> None:
    own = rank_trace(event("step", 20, pid=103), rank=3, pid=103, host="host1", boot_id="b")
    assert "rank 3 · tp1 dp1 · process 103" in titles(merge({**VLLM, "rank3.json": own})[0])


@pytest.mark.parametrize("change", [lambda own: own.update(labels=3), lambda own: own.update(labels=[["x", {}], 7])])
def test_damaged_labels_of_a_merge_are_ignored(merge: Any, change: Callable[[Any], None]) -> None:
    merged, _ = merge(VLLM)
    change(merged["tracekit"]["merge"])
    assert titles(merge({"changed.json": merged})[0])[0] == "rank 0 · process 100"
