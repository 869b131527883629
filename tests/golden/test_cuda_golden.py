"""A recording of two ranks on one GPU: several streams, a CUDA graph, copies, counters; every figure counted a second time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
SLICES = """
select process.name, thread.name, slice.category, count(), sum(slice.dur)
from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.category in ('kernel', 'gpu_memcpy', 'gpu_memset') group by 1, 2, 3
"""


@pytest.fixture(scope="module")
def events(own_traces: Path) -> dict[int, list[dict[str, Any]]]:
    """The events of torch.profiler, by rank."""
    return {
        rank: json.loads(gzip.decompress((own_traces / f"cuda_h200/torch-rank{rank}-10.json.gz").read_bytes()))[
            "traceEvents"
        ]
        for rank in (0, 1)
    }


@pytest.fixture(scope="module")
def merged(own_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The merged trace of both ranks; test_pftrace_golden.py compares the .pftrace of it."""
    path: Path = tmp_path_factory.mktemp("cuda") / "merged.json.gz"
    report = merge_traces(str(path), [str(own_traces / "cuda_h200")])
    assert report.complete
    return path


def test_each_stream_of_each_rank_has_all_its_work(
    engine: Engine, merged: Path, events: dict[int, list[dict[str, Any]]]
) -> None:
    expected = Counter(
        (rank, event["tid"], event["cat"]) for rank in events for event in events[rank] if event.get("cat") in DEVICE
    )
    assert len({stream for _, stream, _ in expected}) > 20  # gloo copies on many streams
    with engine.load(merged) as trace:
        assert trace.errors() == []
        rows = trace.rows(SLICES)
    found = Counter[tuple[int, int, str]]()
    for _, thread, category, count, _ in rows:
        # "rank 1 · GPU 0 · stream 7 (compute)", and its lane "(overlap)" if slices overlap
        rank, device, stream = str(thread).split(" · ")
        assert device == "GPU 0"
        found[int(rank.removeprefix("rank ")), int(stream.split()[1]), str(category)] += int(str(count))
    assert found == expected


def test_launches_point_at_the_kernels_of_their_rank(
    engine: Engine, merged: Path, events: dict[int, list[dict[str, Any]]]
) -> None:
    kernels = sum(event.get("cat") == "kernel" for rank in events for event in events[rank])
    with engine.load(merged) as trace:
        arrows = trace.rows("""
            select out_thread.upid, out_.category, substr(in_thread.name, 1, 6), count(distinct in_.id)
            from flow join slice out_ on out_.id = slice_out join slice in_ on in_.id = slice_in
            join thread_track out_track on out_track.id = out_.track_id join thread out_thread using (utid)
            join thread_track in_track on in_track.id = in_.track_id join thread in_thread on in_thread.utid = in_track.utid
            where in_.category = 'kernel' group by 1, 2, 3
        """)
    ranks = {process: gpu for process, _, gpu, _ in arrows}
    assert len(ranks) == len(set(ranks.values())) == 2
    # All kernels of a graph's replay have one launch.
    assert sum(int(str(count)) for *_, count in arrows) == kernels
