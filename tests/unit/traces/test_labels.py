"""Labels of parallelism, from the names that real projects give to traces and from Kineto's process groups."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.formats.kineto import rank_in_name
from tracekit.traces.labels import (
    labels_from_json,
    labels_in_name,
    labels_of_groups,
    labels_of_trace,
    labels_text,
    ranks_of_labels,
    shown_dimensions,
)


def groups(*groups: tuple[str, Any]) -> dict[str, Any]:
    return {
        "pg_config": [{"pg_name": str(n), "pg_desc": desc, "ranks": ranks} for n, (desc, ranks) in enumerate(groups)]
    }


@pytest.mark.parametrize(
    ("name", "labels", "rank"),
    [
        # sglang: its merger's names, with a prefix, and of one stage of inference.
        ("1759255878.904894-TP-3-DP-1-PP-0-EP-3.trace.json.gz", {"tp": 3, "dp": 1, "pp": 0, "ep": 3}, None),
        ("DECODE-1759255878.9-TP-1-DP-0-PP-0-EP-0.trace.json.gz", {"tp": 1, "dp": 0, "pp": 0, "ep": 0}, 1),
        ("bs-8-il-4096-1767553793.8151712-TP-2-EXTEND.trace.json.gz", {"tp": 2}, 2),
        ("1728625868.5155685-TP-5.trace.json.gz", {"tp": 5}, 5),
        # vLLM since 0.17, with a prefix, and before.
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1772972000123.pt.trace.json", {"dp": 0, "pp": 0, "tp": 1, "dcp": 0, "ep": 1}, 1),
        ("warmup_dp1_pp0_tp0_rank2.1772972000.pt.trace.json", {"dp": 1, "pp": 0, "tp": 0}, 2),
        ("host_17-rank-3.1772972000.pt.trace.json.gz", {}, 3),
        # TensorRT-LLM, Megatron, torchtitan, verl, Primus, torch's own examples.
        ("trace-rank-0.json", {}, 0),
        ("rank-3.json.gz", {}, 3),
        ("rank3_trace.json.gz", {}, 3),
        ("prof_rank-3.json.gz", {}, 3),
        ("primus-megatron-exp[llama2-70b-run1]-rank[3].1760000000.pt.trace.json.gz", {}, 3),
        ("worker3_step_12.1694128201545.pt.trace.json.gz", {}, 3),
        # Megatron and its forks, and what DeepSpeed calls the ranks of ZeRO and of model parallelism.
        ("memory_profile_rank12_dp1_pp0_tp4.json", {"dp": 1, "pp": 0, "tp": 4}, 12),
        ("trace_tp_rank_1_pp_rank_0.json", {"tp": 1, "pp": 0}, None),
        ("zero_pp_rank_3_mp_rank_01.json", {"dp": 3, "tp": 1}, None),
        ("rank_tp1_pp0_dp2.json", {"tp": 1, "pp": 0, "dp": 2}, None),
        # The place on a host, which is that in the run where the name states no other and no node.
        ("local_rank_0_rank_3.json", {}, 3),
        ("node_rank_1_global_rank_9.json", {}, 9),
        ("trace_local_rank_2.json", {}, 2),
        ("node1_local_rank_2.json", {}, None),
        ("group_rank_1.json", {}, None),
        # Sizes, and words that look like labels.
        ("llama_tp8_pp2_rank3.json", {}, 3),
        ("moe_dp2tp4.json", {}, None),
        ("http-1-app-2.json", {}, None),
        ("trace.json", {}, None),
    ],
)
def test_labels_and_rank_of_names_in_use(name: str, labels: dict[str, int], rank: int | None) -> None:
    assert (labels_in_name(name), rank_in_name(name)) == (labels, rank)


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("mesh_tp", "tp"),
        ("TP", "tp"),
        ("tp:0", "tp"),
        ("tensor_parallel", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP, of the policy", "tp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "etp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("pipeline parallel", "pp"),
        ("mesh_fsdp", "dp"),
        ("default_pg", None),
        ("undefined", None),
        ("DATA_PARALLEL_GROUP_WITH_CP", None),
        ("mesh_infer_tp", None),
    ],
)
def test_a_process_group_gives_its_members_their_place(description: str, dimension: str | None) -> None:
    info = groups((description, [1, 3, 5]))
    assert labels_of_groups(info, 3) == ({dimension: 1} if dimension else {})
    assert labels_of_groups(info, 2) == {}


@pytest.mark.parametrize(
    ("info", "rank", "labels"),
    [
        # The halves of data parallelism are one dimension.
        (groups(("mesh_dp_replicate", [2, 6]), ("mesh_dp_shard", [4, 5, 6, 7])), 6, {"dp": 6}),
        (groups(("mesh_dp_shard", [4, 5, 6]), ("mesh_dp", [0, 6])), 6, {"dp": 1}),
        (groups(("mesh_tp", "[0, 1]")), 1, {"tp": 1}),
        (None, 0, {}),
        ([], 0, {}),
        ({}, 0, {}),
        ({"pg_config": 3}, 0, {}),
        ({"pg_config": [3, {"ranks": "[0,"}, {"pg_desc": 1}]}, 0, {}),
    ],
)
def test_odd_process_groups_give_the_labels_that_they_can(info: Any, rank: int, labels: dict[str, int]) -> None:
    assert labels_of_groups(info, rank) == labels


def test_process_groups_count_more_than_the_name() -> None:
    header = {"distributedInfo": groups(("mesh_tp", [4, 5]))}
    assert labels_of_trace("dp1_pp0_tp0_rank5.json", header, 5) == {"dp": 1, "pp": 0, "tp": 1}


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        # Tensor parallelism alone; with the places of others following from it, as sglang's attention has them.
        ([{"tp": 1}, {"tp": 0}], [1, 0]),
        ([{"tp": tp, "dp": tp // 2, "pp": 0, "ep": tp} for tp in range(4)], [0, 1, 2, 3]),
        ([{"tp": tp, "dp": tp // 2, "pp": pp} for pp in range(2) for tp in range(4)], list(range(8))),
        ([{"tp": tp, "dp": dp} for tp in range(2) for dp in range(2)], [0, 2, 1, 3]),
        # Several traces of one rank.
        ([{"tp": 1}, {"tp": 0}, {"tp": 1}], [1, 0, 1]),
        # Without a rank, without some labels, and without any.
        ([{"tp": 0}, {"tp": 2}], None),
        ([{"tp": 0}, {}], None),
        ([{}, {}], None),
        ([{"ep": 0}, {"ep": 1}], None),
    ],
)
def test_ranks_follow_from_labels_only_where_all_are_there(
    labels: list[dict[str, int]], ranks: list[int] | None
) -> None:
    assert ranks_of_labels(labels) == ranks


def test_dimensions_are_shown_that_tell_ranks_apart() -> None:
    labels = [{"tp": tp, "dp": dp, "pp": 0} for dp in range(2) for tp in range(2)]
    assert shown_dimensions(labels) == ("tp", "dp")
    assert shown_dimensions(labels[3:]) == ("tp", "dp")
    assert shown_dimensions([{"tp": 8}, {"tp": 8}]) == ()
    assert labels_text({"dp": 2, "tp": 1, "pp": 0}, ("tp", "dp")) == "tp1 dp2"


def test_damaged_labels_of_a_merge_are_left_out() -> None:
    assert labels_from_json({"tp": 1, "dp": "2", "pp": -1, "ep": True, "zz": 3}) == {"tp": 1}
    assert labels_from_json([1]) == {}
