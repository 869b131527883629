"""Tests of the report on the GPUs: where their time goes, on events made by hand and beside a plain count of moments."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.event_table import EventTable
from tracekit.explain import gpu as gpu_module
from tracekit.explain.gpu import explain_gpu, free_times_in, gpu_times_and_gaps
from tracekit.explain.gpu_results import Copies, gpu_lines

TRACES = Path(__file__).parents[4] / "shared" / "traces"
CATEGORIES = {"compute": "kernel", "communication": "kernel", "memory": "gpu_memcpy"}
NAMES = {"compute": "gemm", "communication": "ncclKernel_AllReduce", "memory": "Memcpy HtoD (Pinned -> Device)"}


def _activity(table: EventTable, kind: str, start_ns: int, end_ns: int, **values: Any) -> None:
    table.add(
        **{
            "category": CATEGORIES[kind],
            "name": NAMES[kind],
            "start_ns": start_ns,
            "duration_ns": end_ns - start_ns,
            "device": 0,
            "stream": 7,
            **values,
        }
    )


def _call(table: EventTable, start_ns: int, end_ns: int, correlation: int, **values: Any) -> None:
    table.add(
        category="cuda_runtime",
        name="cudaLaunchKernel",
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        correlation=correlation,
        **values,
    )


@pytest.mark.parametrize(
    ("launch", "other_stream", "expected"),
    [((250, 290), None, (100, 0, 0)), ((10, 20), (180, 270), (0, 70, 30)), (None, None, (0, 0, 100))],
    ids=["launched too late", "while another stream is busy", "without a known launch"],
)
def test_gap_between_two_kernels_has_a_cause(
    launch: tuple[int, int] | None, other_stream: tuple[int, int] | None, expected: tuple[int, int, int]
) -> None:
    table = EventTable()
    _activity(table, "compute", 100, 200)
    _activity(table, "compute", 300, 400, correlation=5)
    if launch is not None:
        _call(table, *launch, 5)
    if other_stream is not None:
        _activity(table, "compute", *other_stream, stream=20)
    report = explain_gpu(table)
    stream = report.streams[0]
    assert (stream.host_bound_ns, stream.dependency_ns, stream.other_ns) == expected
    assert report.gpus[0].host_bound_ns == expected[0]


def test_launches_tell_latency_queue_and_kernels_shorter_than_their_call() -> None:
    table = EventTable()
    for number, (call_ns, start_ns, end_ns) in enumerate([(0, 100, 105), (20, 105, 205), (40, 205, 305)]):
        _call(table, call_ns, call_ns + 10, number)
        _activity(table, "compute", start_ns, end_ns, correlation=number)
    report = explain_gpu(table)
    (launches,) = report.launches
    assert (launches.count, launches.calls_ns, launches.short) == (3, 30, 1)
    assert (launches.median_latency_ns, launches.max_latency_ns) == (90, 155)
    assert report.streams[0].max_queued == 3


def test_call_that_launches_a_graph_counts_once_and_one_of_another_file_not_at_all() -> None:
    table = EventTable()
    _call(table, 0, 40, 9)
    _call(table, 0, 40, 8, file=1, rank=1)
    for start_ns, correlation in ((100, 9), (200, 9), (300, 9), (400, 8)):
        _activity(table, "compute", start_ns, start_ns + 50, correlation=correlation)
    (launches,) = explain_gpu(table).launches
    assert (launches.rank, launches.count, launches.calls_ns) == (0, 3, 40)


def test_kernel_of_an_attempt_has_its_launch_where_the_next_attempt_uses_its_number_again() -> None:
    table = EventTable()
    for start_ns in (0, 100_000):
        for correlation in (1, 2):
            _call(table, start_ns + 10 * correlation, start_ns + 10 * correlation + 5, correlation)
            begin = start_ns + 100 * correlation
            _activity(table, "compute", begin, begin + 90, correlation=correlation)
    report = explain_gpu(table)
    assert report.gpus[0].host_bound_ns == 99_810  # that between the attempts
    assert report.launches[0].max_latency_ns == 175


MALFORMED = [
    {"Total Allocated": "x", "Device Type": 1, "Device Id": 0},
    {"Total Allocated": 2**70, "Device Type": "cuda", "Device Id": 2**40, "Bytes": [1]},
    {"Total Allocated": 5, "Device Type": 1, "Device Id": 0, "note": "\ud800"},
    {"Collective name": "allreduce", "Group size": "x", "In msg nelems": float("nan"), "Seq": 2**70},
    {"Collective name": "allreduce", "Group size": 2, "In msg nelems": 2**62, "dtype": "Double", "Seq": 1},
]


@pytest.mark.parametrize("args", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_arguments_are_left_out(args: dict[str, Any]) -> None:
    table = EventTable()
    table.add(phase="i", name="[memory]", start_ns=5, args=json.dumps(args))
    _activity(table, "communication", 0, 10, args=json.dumps(args))
    report = explain_gpu(table)
    assert report.memory == report.collectives == []
    assert len(report.gpus) == 1


@pytest.mark.parametrize(
    ("lengths", "total_ns", "shortest_ns", "longest_ns", "slowest"),
    [({0: 50, 1: 80, 2: 60}, 190, 50, 80, 1), ({3: 50, 1: 50, 2: 50}, 150, 50, 50, 1)],
    ids=["slowest", "first of equal ones"],
)
def test_kernels_are_added_up_over_ranks_and_name_the_slowest(
    lengths: dict[int, int], total_ns: int, shortest_ns: int, longest_ns: int, slowest: int
) -> None:
    table = EventTable()
    for rank, length_ns in lengths.items():
        _activity(table, "compute", 100, 100 + length_ns, rank=rank, file=rank, device=rank)
    (kernel,) = explain_gpu(table).kernels
    assert (kernel.ranks, kernel.count, kernel.total_ns, kernel.longest_ns) == (3, 3, total_ns, longest_ns)
    assert (kernel.min_rank_ns, kernel.max_rank_ns, kernel.max_rank) == (shortest_ns, longest_ns, slowest)


def test_copies_are_added_up_by_direction() -> None:
    table = EventTable()
    _activity(table, "memory", 0, 10, bytes=1000)
    _activity(table, "memory", 20, 50, bytes=3000)
    _activity(table, "memory", 60, 65, name="Memset (Device)", category="gpu_memset", bytes=64)
    assert explain_gpu(table).copies == [
        Copies(rank=0, device=0, direction="HtoD", count=2, size_bytes=4000, total_ns=40),
        Copies(rank=0, device=0, direction="fill", count=1, size_bytes=64, total_ns=5),
    ]


def test_pauses_of_the_profiler_are_no_idle_time() -> None:
    table = EventTable()
    for start_ns in (0, 100_000):
        table.add(category="Trace", name="PyTorch Profiler (0)", start_ns=start_ns, duration_ns=1000)
        for number in range(2):
            begin = start_ns + 100 + 300 * number
            _call(table, begin - 20, begin - 10, begin)
            _activity(table, "compute", begin, begin + 100, correlation=begin)
    (gpu,), gaps = gpu_times_and_gaps(table, 10)
    assert (gpu.span_ns, gpu.busy_ns, gpu.idle_ns, gpu.host_bound_ns) == (800, 400, 400, 400)
    assert [length for _, _, _, length, _, _ in gaps] == [200, 200]
    (stream,) = explain_gpu(table).streams
    assert (stream.host_bound_ns, stream.dependency_ns, stream.other_ns) == (400, 0, 0)


Ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=6)


@given(Ranges, Ranges, Ranges, st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=8))
def test_idle_time_by_what_the_cpu_does_equals_a_count_of_moments(
    exchanges: list[tuple[int, int]],
    operators: list[tuple[int, int]],
    stages: list[tuple[int, int]],
    kernels: list[tuple[int, int]],
) -> None:
    table = EventTable()

    def moments(category: str, name: str, ranges: list[tuple[int, int]]) -> set[int]:
        for start_ns, length_ns in ranges:
            table.add(category=category, name=name, start_ns=start_ns, duration_ns=length_ns)
        return {moment for start, length in ranges for moment in range(start, start + length)}

    exchanging = moments("user_annotation", "gloo:all_reduce", exchanges)
    working = moments("cpu_op", "aten::mm", operators) | exchanging
    in_stages = moments("", "forward", stages)
    busy = set[int]()
    for number, (start_ns, length_ns) in enumerate(kernels):
        _call(table, start_ns, start_ns, number)
        _activity(table, "compute", start_ns, start_ns + length_ns, correlation=number)
        busy.update(range(start_ns, start_ns + length_ns))
    (gpu,), _ = gpu_times_and_gaps(table, 0)
    idle = set(range(min(busy), max(busy))) - busy
    assert gpu.host_bound_ns == len(idle)
    assert gpu.host_communication_ns == len(idle & exchanging)
    free = idle & set(range(max(working, default=0))) - working
    assert gpu.host_free_ns == (len(free) if operators else None)
    if operators:
        forward = "SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM events WHERE name = 'forward'"
        assert free_times_in(table, {"forward": forward})["forward"] == len(free & in_stages)


def test_memory_comes_from_the_events_of_the_allocator() -> None:
    table = EventTable()
    for time_ns, change, total in ((10, 500, 500), (20, 700, 1200), (30, -500, 700)):
        args = {"Bytes": change, "Total Allocated": total, "Total Reserved": 2048, "Device Type": 1, "Device Id": 3}
        table.add(phase="i", name="[memory]", start_ns=time_ns, args=json.dumps(args))
    (memory,) = explain_gpu(table).memory
    assert (memory.device, memory.allocations, memory.allocated_bytes) == (3, 2, 1200)
    assert (memory.max_allocated_bytes, memory.max_reserved_bytes, memory.max_at_ns) == (1200, 2048, 20)


def test_bandwidth_of_a_collective_is_that_of_the_rank_that_came_last() -> None:
    table = EventTable()
    args = {
        "Collective name": "allreduce",
        "Group size": 4,
        "dtype": "Float",
        "In msg nelems": 250,
        "Out msg nelems": 250,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Seq": 1,
    }
    _activity(table, "communication", 0, 1000, args=json.dumps(args))
    _activity(table, "communication", 900, 1000, rank=1, file=1, device=1, args=json.dumps(args))
    (found,) = explain_gpu(table).collectives
    assert (found.group, found.group_size, found.name, found.size_bytes, found.count) == (
        *("0 (default_pg)", 4, "allreduce", 1000, 2),
    )
    assert (found.algbw_bytes_per_s, found.busbw_bytes_per_s) == (1e10, 1.5e10)


Spans = st.lists(
    st.tuples(st.sampled_from(sorted(CATEGORIES)), st.integers(0, 60), st.integers(0, 15), st.sampled_from([7, 20])),
    min_size=1,
    max_size=12,
)


@given(Spans, st.sampled_from([1, 3, 500_000]))
def test_times_of_a_gpu_equal_a_count_of_its_moments(spans: list[tuple[str, int, int, int]], piece: int) -> None:
    table = EventTable()
    moments: dict[str, set[int]] = {kind: set() for kind in CATEGORIES}
    for kind, start_ns, length_ns, stream in spans:
        _activity(table, kind, start_ns, start_ns + length_ns, stream=stream)
        moments[kind].update(range(start_ns, start_ns + length_ns))
    with mock.patch.object(gpu_module, "_PIECE", piece):
        report = explain_gpu(table)
    (gpu,) = report.gpus
    first, last = min(start for _, start, _, _ in spans), max(start + length for _, start, length, _ in spans)
    busy = set().union(*moments.values())
    assert (gpu.span_ns, gpu.busy_ns, gpu.idle_ns) == (last - first, len(busy), last - first - len(busy))
    assert gpu.compute_ns == len(moments["compute"])
    assert gpu.communication_ns == len(moments["communication"])
    assert gpu.hidden_ns == len(moments["compute"] & moments["communication"])
    assert gpu.memory_ns == len(moments["memory"])
    for stream in report.streams:
        own = [(start, start + length) for _, start, length, number in spans if number == stream.stream]
        inside = set(range(min(start for start, _ in own), max(end for _, end in own)))
        gaps = inside - {moment for start, end in own for moment in range(start, end)}
        assert stream.dependency_ns == len(gaps & busy)
        assert stream.dependency_ns + stream.other_ns == len(gaps)


@given(Spans, st.sampled_from([1, 3]), st.integers(1, 4))
def test_longest_gaps_are_those_between_the_busy_moments(
    spans: list[tuple[str, int, int, int]], piece: int, most: int
) -> None:
    table, busy = EventTable(), set[int]()
    for kind, start_ns, length_ns, _ in spans:
        _activity(table, kind, start_ns, start_ns + length_ns + 1)
        busy.update(range(start_ns, start_ns + length_ns + 1))
    with mock.patch.object(gpu_module, "_PIECE", piece):
        found = [length for _, _, _, length, _, _ in gpu_times_and_gaps(table, most)[1]]
    ordered = sorted(busy)
    gaps = [after - before - 1 for before, after in pairwise(ordered) if after - before > 1]
    assert sorted(found) == sorted(sorted(gaps, reverse=True)[:most])


def _read(*paths: Path) -> EventTable:
    table = EventTable()
    for number, path in enumerate(paths):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            args = event.get("args", {})
            if event["ph"] == "X" and isinstance(event["pid"], int):
                table.add(
                    **{key: args.get(key) for key in ("correlation", "stream", "device", "bytes")},
                    file=number,
                    rank=number,
                    pid=event["pid"],
                    tid=event["tid"],
                    category=event.get("cat"),
                    name=event["name"],
                    start_ns=round(event["ts"] * 1000),
                    duration_ns=round(event["dur"] * 1000),
                )
    return table


# HolisticTraceAnalysis 0.5.0 on the same files, in microseconds: get_temporal_breakdown (idle, compute, other than compute, span)
# and get_comm_comp_overlap (percent).
HTA = {
    0: (6419, 1034, 5556, 13009, 4.5),
    1: (6428, 1246, 11075, 18749, 2.47),
    2: (7046, 1068, 3236, 11350, 7.88),
    3: (8145, 1240, 9468, 18853, 3.31),
}
# get_idle_time_breakdown by rank and stream: host wait; kernel wait and other together.
HTA_STREAMS = {
    0: {7: (11448, 123), 22: (145, 0), 24: (5906, 18), 84: (4740, 3)},
    1: {7: (17449, 115), 22: (154, 0), 24: (11382, 12), 84: (4688, 3)},
    2: {7: (9777, 105), 22: (142, 0), 24: (4270, 23), 84: (5423, 1)},
    3: {7: (17548, 109), 22: (187, 0), 24: (10146, 5), 84: (4746, 3)},
}
# Kernels without a launch in the file, such as those that were launched before the recording, have the index 0 there as that of
# their launch. HTA joins it with the first event of the file, and counts their gaps as host wait if that event is late enough.
HTA_WITHOUT_LAUNCH = {1: 93, 3: 83}
# get_cuda_kernel_launch_stats: number, sum of cpu_duration, median and maximum of launch_delay.
HTA_LAUNCHES = {0: (261, 2359, 2, 1482), 1: (262, 2334, 2, 6972), 2: (262, 1853, 2, 478), 3: (273, 2487, 2, 5300)}
# get_gpu_kernel_breakdown of all ranks: communication alone, compute alone, both, memory alone, communication with memory.
HTA_TYPES = (29250, 3448, 1140, 75, 10)


@pytest.mark.skipif(not (TRACES / "dlrm_8gpu").exists(), reason="the real traces are not on this machine")
def test_figures_of_a_real_run_equal_those_of_holistic_trace_analysis() -> None:
    report = explain_gpu(_read(*sorted((TRACES / "dlrm_8gpu").glob("*.json.gz"))))
    for gpu in report.gpus:
        idle, compute, others, span, hidden = HTA[gpu.rank or 0]
        assert (gpu.idle_ns, gpu.compute_ns, gpu.span_ns) == (idle * 1000, compute * 1000, span * 1000)
        assert gpu.busy_ns - gpu.compute_ns == others * 1000
        assert round(100 * gpu.hidden_ns / gpu.communication_ns, 2) == hidden
    for rank, streams in HTA_STREAMS.items():
        unknown = HTA_WITHOUT_LAUNCH.get(rank, 0)
        assert {
            one.stream: (one.host_bound_ns // 1000, (one.dependency_ns + one.other_ns) // 1000)
            for one in report.streams
            if one.rank == rank
        } == {**streams, 7: (streams[7][0] - unknown, streams[7][1] + unknown)}
    assert {
        one.rank: (one.count, one.calls_ns / 1000, one.median_latency_ns / 1000, one.max_latency_ns / 1000)
        for one in report.launches
    } == HTA_LAUNCHES
    communication, compute, both, memory, copied = HTA_TYPES
    assert sum(gpu.communication_ns - gpu.hidden_ns for gpu in report.gpus) == (communication + copied) * 1000
    assert sum(gpu.compute_ns - gpu.hidden_ns for gpu in report.gpus) == compute * 1000
    assert sum(gpu.hidden_ns for gpu in report.gpus) == both * 1000
    assert sum(gpu.memory_ns for gpu in report.gpus) == (memory + copied) * 1000


def test_kernel_before_a_launch_of_its_file_has_no_launch() -> None:
    table = EventTable()
    _activity(table, "compute", 100, 200, correlation=1)
    _activity(table, "compute", 210, 250, correlation=2)
    _call(table, 300, 310, 3)
    _activity(table, "compute", 320, 330, correlation=3)
    (stream,) = explain_gpu(table).streams
    # HTA: a host wait of 80, since it takes the call at 300 for the launch of the second kernel.
    assert (stream.host_bound_ns, stream.dependency_ns, stream.other_ns) == (70, 0, 10)


# The same with times in nanoseconds, which HTA cuts to whole microseconds unless HTA_DISABLE_NS_ROUNDING=1: idle, compute, other
# than compute, span.
HTA_SINGLE = {
    "h100_bert_small": (3598_388, 307_197, 2_240, 3907_825),
    "rocm_mi250_minitoy": (8762_845, 110_881, 38_161, 8911_887),
}


@pytest.mark.parametrize("name", HTA_SINGLE)
@pytest.mark.skipif(not (TRACES / "single_gpu").exists(), reason="the real traces are not on this machine")
def test_figures_of_one_gpu_equal_those_of_holistic_trace_analysis(name: str) -> None:
    (gpu,) = explain_gpu(_read(TRACES / "single_gpu" / f"{name}.json.gz")).gpus
    found = (gpu.idle_ns, gpu.compute_ns, gpu.busy_ns - gpu.compute_ns, gpu.span_ns)
    assert found == pytest.approx(HTA_SINGLE[name], abs=1)


def test_text_fits_80_columns() -> None:
    table = EventTable()
    for rank in range(120, 130):
        _call(table, 100, 12_000_000_000, rank, file=rank, rank=rank)
        values: dict[str, Any] = {"rank": rank, "file": rank, "device": rank, "correlation": rank, "bytes": 123_456_789}
        _activity(table, "compute", 13_000_000_000, 99_000_000_000, name="void at::native::" + "kernel" * 40, **values)
        _activity(table, "memory", 99_100_000_000, 199_000_000_000, **values)
    report = explain_gpu(table)
    for per_rank in (False, True):
        assert max(map(len, gpu_lines(report, per_rank=per_rank))) <= 80


def test_text_of_traces_without_a_gpu_says_so() -> None:
    assert list(gpu_lines(explain_gpu(EventTable()))) == ["no kernel, copy or fill of a GPU is in these traces"]
