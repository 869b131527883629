"""Titles and order of processes and threads: pure functions, stable when a merge is merged."""

from __future__ import annotations

from typing import Any

import pytest

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


def process(key: tuple[int, int | str] = (CPU, 100), **more: Any) -> Process:
    return Process(more.pop("rank", 2), key, **more)


def title_of(
    key: tuple[int, int | str], thread: int | str, tid: int, name: str | None, work: int = 0, lane: int = 0
) -> str | None:
    return thread_title(process(key), Thread(tid, thread, name, lane=lane, work=work))


def order_of(key: tuple[int, int | str], thread: int | str, declared: int | None) -> int:
    return thread_sort_index(process(key), Thread(5, thread, sort_index=declared))


STREAMS = (GPU, 3)
HOST = (CPU, 100)
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


@pytest.mark.parametrize(
    ("work", "role"),
    [
        (0, ""),
        (COMPUTE | COPY_IN | MEMSET | SYNC, "compute"),
        (COMPUTE | NCCL, "compute, nccl"),
        (COPY_IN | COPY_OUT | SYNC, "memcpy h2d, d2h"),
        (MEMSET | SYNC, "memset, sync"),
    ],
)
def test_kernels_give_the_role_before_copies(work: int, role: str) -> None:
    title = f"rank 2 · GPU 3 · stream 7 ({role})" if role else "rank 2 · GPU 3 · stream 7"
    assert title_of(STREAMS, 7, 7, "stream 7 ", work) == title
    # As an earlier merge has named it, with and without events.
    assert title_of(STREAMS, 7, 7, title, work) == title
    assert title_of(STREAMS, 7, 7, title, 0) == title


@pytest.mark.parametrize(
    ("thread", "name", "title"),
    [
        (7, None, "stream 7 (compute)"),
        (-1, None, "device (compute)"),
        (-1, "Device 0", "Device 0 (compute)"),
        ("stream 9", None, "stream 9 (compute)"),
        # A row of kernels says so, whatever else runs there.
        (7, "stream 7 (sync)", "stream 7 (compute)"),
        (0, "thread 0 (python3)", "thread 0 (python3) (compute)"),
    ],
)
def test_a_row_of_a_gpu_without_a_name_gets_one(thread: int | str, name: str | None, title: str) -> None:
    assert title_of(STREAMS, thread, 5, name, COMPUTE) == f"rank 2 · GPU 3 · {title}"


def test_a_row_of_synchronisations_keeps_the_name_that_kineto_gives() -> None:
    title = "rank 2 · GPU 3 · stream 7 (sync)"
    assert title_of(STREAMS, 1_000_007, 1_000_007, "stream 7 (sync)", SYNC) == title


@pytest.mark.parametrize(
    ("key", "thread", "tid", "name", "title"),
    [
        (HOST, 100, 100, " MainThread ", "MainThread"),
        (HOST, 100, 100, None, None),
        (HOST, 0, 3001, None, None),
        (HOST, -5, 3 * 2**30, None, "thread -5"),
        (HOST, "loader", 3 * 2**30, None, "loader"),
        (HOST, 7, 7, "mine (compute)", "mine (compute)"),
        ((DEVICE, "XLA /device:GPU:0"), 0, 5, None, "thread 0"),
    ],
)
def test_other_threads_keep_their_names(
    key: tuple[int, int | str], thread: int | str, tid: int, name: str | None, title: str | None
) -> None:
    assert title_of(key, thread, tid, name) == title


@pytest.mark.parametrize(
    ("key", "thread", "name", "lane", "title"),
    [
        (STREAMS, 7, "stream 7 ", 1, "rank 2 · GPU 3 · stream 7 (overlap)"),
        (STREAMS, 7, "rank 2 · GPU 3 · stream 7 (compute)", 2, "rank 2 · GPU 3 · stream 7 (overlap 2)"),
        (HOST, 100, "thread 100 (python3)", 1, "thread 100 (python3) (overlap)"),
        (HOST, 100, "mine (compute)", 1, "mine (compute) (overlap)"),
        (HOST, 100, None, 1, "thread 100 (overlap)"),
    ],
)
def test_a_lane_is_named_after_its_thread(
    key: tuple[int, int | str], thread: int | str, name: str | None, lane: int, title: str
) -> None:
    assert title_of(key, thread, 3 * 2**30, name, lane=lane) == title


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
