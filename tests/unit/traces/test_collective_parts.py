"""Reading collectives from the events of torch's traces of several years."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.traces.collectives.collector import Collective, read_collectives, thinned

if TYPE_CHECKING:
    from pathlib import Path


def x(name: str, start: int, length: int, cat: str, pid: Any = 100, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}


def kernel(kind: str, start: int, length: int = 10, **args: Any) -> dict[str, Any]:
    return x(f"ncclDevKernel_{kind}(x)", start, length, "kernel", 0, 20, **args)


def call(kind: str, start: int, **args: Any) -> dict[str, Any]:
    return x(f"nccl:{kind}", start, 3, "user_annotation", **args)


def read(tmp_path: Path, *events: Any, ranks: dict[Any, int] | None = None) -> dict[int | None, list[Collective]]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    found = read_collectives(str(path), ranks)
    assert found is not None
    return found


COMMS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 8,
    "Out msg nelems": 16,
    "dtype": "Float",
    "Process Group Name": "3",
    "Process Group Ranks": "[0, 2]",
    "External id": 7,
}


def test_a_kernel_of_today_tells_all_by_itself(tmp_path: Path) -> None:
    (one,) = read(tmp_path, kernel("AllGather", 50, **COMMS, Seq=12))[None]
    assert one.label == ("all_gather", ("3", "[0, 2]"), "Float 8 16", None)
    assert (one.sequence, one.step, one.start_ns, one.end_ns, one.file_ns) == (12, None, 50_000, 60_000, 50_000)
    assert (one.pid, one.tid, one.category, one.synchronises) == (0, 20, b'"kernel"', True)


def test_before_2026_the_call_of_the_same_external_id_tells_number_and_step(tmp_path: Path) -> None:
    own = {key: value for key, value in COMMS.items() if not key.startswith("Process")}
    (one,) = read(
        tmp_path,
        kernel("AllGather", 50, **own),
        x("record_param_comms", 20, 5, "cpu_op", **COMMS, Seq=12),
        x("ProfilerStep#4", 10, 30, "user_annotation"),
        x("ProfilerStep#5", 40, 30, "user_annotation"),
    )[None]
    assert (one.sequence, one.step, one.label.group) == (12, 4, ("3", "[0, 2]"))


def test_before_2023_the_annotations_tell_in_their_order(tmp_path: Path) -> None:
    """The first kernel was launched before the trace began; the last call's kernel came after its end."""
    found = read(
        tmp_path,
        kernel("AllReduce", 5),
        kernel("SendRecv", 50),
        kernel("AllReduce", 70),
        call("all_to_all", 20, **{"Input Dims": [[8]]}),
        call("all_reduce", 30, **{"Input Dims": [[4]]}),
        call("all_reduce", 80),
    )[None]
    assert [one.label.kind for one in found] == ["all_reduce", "all_to_all", "all_reduce"]
    # Members may send different numbers of elements to each other.
    assert [one.label.sizes for one in found] == ["", "", "[[4]]"]


def test_kernels_whose_calls_cannot_be_told_have_their_own_kind(tmp_path: Path) -> None:
    found = read(tmp_path, kernel("SendRecv", 50), kernel("AllReduce", 70), call("all_reduce", 20), call("send", 30))
    assert [one.label.kind for one in found[None]] == ["", "all_reduce"]


def test_a_barrier_is_an_all_reduce_to_the_gpu(tmp_path: Path) -> None:
    found = read(
        tmp_path, kernel("AllReduce", 50), kernel("AllReduce", 70), call("barrier", 20), call("all_reduce", 30)
    )
    assert [one.label.kind for one in found[None]] == ["all_reduce", "all_reduce"]


def test_gloo_is_only_looked_at_where_no_gpu_is(tmp_path: Path) -> None:
    gloo = x("gloo:all_reduce", 10, 5, "user_annotation", **{"Input Dims": [[4]]})
    step = x("ProfilerStep#1", 0, 100, "user_annotation")
    (one,) = read(tmp_path, gloo, step)[None]
    assert (one.label.kind, one.label.sizes, one.step, one.category) == ("all_reduce", "[[4]]", 1, b'"user_annotation"')
    (one,) = read(tmp_path, gloo, step, kernel("AllReduce", 50))[None]
    assert one.tid == 20


def test_sends_tell_their_peers(tmp_path: Path) -> None:
    args = {**COMMS, "Collective name": "send", "Src Rank": 0, "Dst Rank": 2, "Seq": 4}
    (one,) = read(tmp_path, kernel("SendRecv", 50, **args))[None]
    assert (one.label.kind, one.label.peers, one.label.sizes, one.synchronises) == ("send", (0, 2), "", False)


@pytest.mark.parametrize(
    "event",
    [
        kernel("AllReduce", 5, -1),
        {**kernel("AllReduce", 5), "ts": None},
        {**kernel("AllReduce", 5), "ph": "i"},
        {**kernel("AllReduce", 5), "name": "my ncclDevKernel_AllReduce"},
        {**call("all_reduce", 5), "cat": "gpu_user_annotation", "name": "gloo:all_reduce"},
        {"ph": "X", "pid": 1, "ts": 1, "dur": 1},
    ],
)
def test_what_is_none_is_none(tmp_path: Path, event: dict[str, Any]) -> None:
    assert read(tmp_path, event) == {}


def test_odd_arguments_do_no_harm(tmp_path: Path) -> None:
    odd = {**COMMS, "Seq": -1, "External id": "x", "Collective name": None}
    found = read(tmp_path, kernel("AllReduce", 5, **odd), {**kernel("AllReduce", 20), "args": [1]})[None]
    assert [(one.label.kind, one.sequence) for one in found] == [("", None), ("all_reduce", None)]


def test_the_ranks_of_an_earlier_merge_are_told_apart(tmp_path: Path) -> None:
    other = {**kernel("AllReduce", 9), "pid": 1000}
    found = read(tmp_path, kernel("AllReduce", 5), other, {**other, "pid": 5}, ranks={0: 0, 1000: 1})
    assert {rank: [one.start_ns for one in ones] for rank, ones in found.items()} == {0: [5000], 1: [9000]}


def test_members_keep_the_same_of_many(tmp_path: Path) -> None:
    events = [kernel("AllGather", 20 * count, **COMMS, Seq=count) for count in range(1, 2000)]
    (found,) = read(tmp_path, *events).values()
    first, later = ({one.sequence or 0 for one in thinned(part, 300)} for part in (found, found[700:]))
    assert 150 < len(first) <= 300
    assert later >= {number for number in first if number > 700}
    unnumbered = [one._replace(sequence=None) for one in found]
    assert thinned(unnumbered, 300) == unnumbered[:150] + unnumbered[-150:]
