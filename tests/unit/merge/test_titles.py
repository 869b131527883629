"""Titles and order of processes and threads, also by the labels of parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.merge_inputs import event, meta, rank_trace, torch_trace, write
from tests.merge_inputs import titles as titles_of
from tracekit.errors import ConfigError, MergeError
from tracekit.merge import merge_traces
from tracekit.merge.plan.titles import (
    COMPUTE,
    MEMSET,
    NCCL,
    SYNC,
    Process,
    Thread,
    process_sort_index,
    process_title,
    role_text,
    thread_sort_index,
    thread_title,
    work_of,
)
from tracekit.traces.process_identity import CHILD, CPU, DEVICE, GPU, OVERHEAD, PROFILER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def process(key: tuple[int, int | str] = (CPU, 100), **more: Any) -> Process:
    return Process(more.pop("rank", 2), key, **more)


def order_of(key: tuple[int, int | str], thread: int | str, declared: int | None) -> int:
    return thread_sort_index(process(key), Thread(5, thread, sort_index=declared))


STREAMS = (GPU, 3)
HOST = (CPU, 100)
LANE = 3 * 2**30
COPY_IN, COPY_OUT = (work_of(b'"gpu_memcpy"', b'"Memcpy %b (a -> b)"' % way) for way in (b"HtoD", b"DtoH"))


@pytest.mark.parametrize(
    ("name", "labels", "title"),
    [
        ("python3", "", "rank 3 · python3"),
        ("rank 3", "", "rank 3"),
        ("", "tp1", "rank 3 · tp1"),
        ("rank 3", "tp1 dp2", "rank 3 · tp1 dp2"),
        ("rank 3 · worker 0", "tp1", "rank 3 · tp1 · worker 0"),
        ("rank 31 · x", "", "rank 3 · rank 31 · x"),
    ],
)
def test_a_process_is_named_by_rank_labels_and_name(name: str, labels: str, title: str) -> None:
    assert process_title(process(rank=3, name=name, labels=labels)) == title


@pytest.mark.parametrize(
    ("category", "name", "role"),
    [
        ("Kernel", "elementwise", "compute"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "nccl"),
        ("kernel", "rcclGenericKernel", "nccl"),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", "memcpy h2d"),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", "memcpy d2h"),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", "memcpy d2d"),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "memcpy d2d"),
        ("gpu_memcpy", "something else", ""),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("cuda_sync", "Stream Sync", "sync"),
        ("gpu_user_annotation", "nccl:all_reduce", ""),
        ("cpu_op", "ncclAllReduce", ""),
    ],
)
def test_an_event_says_what_its_row_does(category: str, name: str, role: str) -> None:
    assert role_text(work_of(f'"{category}"'.encode(), f'"{name}"'.encode())) == role


STREAM = "rank 2 · GPU 3 · stream 7"
ROLES = {
    0: "",
    COMPUTE | COPY_IN | MEMSET | SYNC: " (compute)",
    COMPUTE | NCCL: " (compute, nccl)",
    COPY_IN | COPY_OUT | SYNC: " (memcpy h2d, d2h)",
    MEMSET | SYNC: " (memset, sync)",
}


@pytest.mark.parametrize(
    ("key", "thread", "tid", "name", "work", "lane", "title"),
    [
        *((STREAMS, 7, 7, "stream 7 ", work, 0, STREAM + role) for work, role in ROLES.items()),
        # As an earlier merge has named it, with and without events.
        *((STREAMS, 7, 7, STREAM + role, work, 0, STREAM + role) for work, role in ROLES.items()),
        *((STREAMS, 7, 7, STREAM + role, 0, 0, STREAM + role) for role in ROLES.values()),
        (STREAMS, 7, 5, None, COMPUTE, 0, f"{STREAM} (compute)"),
        (STREAMS, -1, 5, None, COMPUTE, 0, "rank 2 · GPU 3 · device (compute)"),
        (STREAMS, -1, 5, "Device 0", COMPUTE, 0, "rank 2 · GPU 3 · Device 0 (compute)"),
        (STREAMS, "stream 9", 5, None, COMPUTE, 0, "rank 2 · GPU 3 · stream 9 (compute)"),
        # A row of kernels says so, whatever else runs there.
        (STREAMS, 7, 5, "stream 7 (sync)", COMPUTE, 0, f"{STREAM} (compute)"),
        (STREAMS, 0, 5, "thread 0 (python3)", COMPUTE, 0, "rank 2 · GPU 3 · thread 0 (python3) (compute)"),
        (STREAMS, 1_000_007, 1_000_007, "stream 7 (sync)", SYNC, 0, f"{STREAM} (sync)"),
        (HOST, 100, 100, " MainThread ", 0, 0, "MainThread"),
        (HOST, 100, 100, None, 0, 0, None),
        (HOST, 0, 3001, None, 0, 0, None),
        (HOST, -5, LANE, None, 0, 0, "thread -5"),
        (HOST, "loader", LANE, None, 0, 0, "loader"),
        (HOST, 7, 7, "mine (compute)", 0, 0, "mine (compute)"),
        ((DEVICE, "XLA /device:GPU:0"), 0, 5, None, 0, 0, "thread 0"),
        (STREAMS, 7, LANE, "stream 7 ", 0, 1, f"{STREAM} (overlap)"),
        (STREAMS, 7, LANE, f"{STREAM} (compute)", 0, 2, f"{STREAM} (overlap 2)"),
        (HOST, 100, LANE, "thread 100 (python3)", 0, 1, "thread 100 (python3) (overlap)"),
        (HOST, 100, LANE, "mine (compute)", 0, 1, "mine (compute) (overlap)"),
        (HOST, 100, LANE, None, 0, 1, "thread 100 (overlap)"),
    ],
)
def test_a_thread_is_named_by_its_input_with_the_role_of_a_gpu_row_and_the_lane(
    key: tuple[int, int | str], thread: int | str, tid: int, name: str | None, work: int, lane: int, title: str | None
) -> None:
    assert thread_title(process(key), Thread(tid, thread, name, lane=lane, work=work)) == title


def test_processes_stand_by_rank_and_what_profilers_say_after_all_ranks() -> None:
    keys = [(CPU, 100), (GPU, 0), (CHILD, "w 1"), (OVERHEAD, -1), (PROFILER, "")]
    order = [
        (process_sort_index(process(key, place=place), slot), place, key[0])
        for place in (1, 0)
        for slot, key in enumerate(keys)
    ]
    assert [(place, kind) for _, place, kind in sorted(order)] == [
        *[(place, key[0]) for place in range(2) for key in keys[:-1]],
        *[(place, PROFILER) for place in range(2)],
    ]
    assert max(process_sort_index(process(key, place=10**9), 10**9) for key in keys) < 2**31


def test_threads_stand_by_declared_index_or_number_after_the_main_thread_and_own_rows() -> None:
    assert order_of(HOST, 100, 7) == -1
    assert order_of((CHILD, "w 50"), 50, None) == -1
    assert order_of(HOST, 200, 7) == 7
    assert order_of(HOST, 200, None) == 200
    assert order_of(STREAMS, 7, None) == 7
    for thread in ("training loop", -5, 2**30 + 1):
        assert order_of(HOST, thread, None) == 0


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
