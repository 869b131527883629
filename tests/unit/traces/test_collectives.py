"""Collectives: read from torch's traces of several years, and matched between two ranks, or refused without proof."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.traces.collectives.collector import Collective, Label, kind_of, read_collectives, thinned
from tracekit.traces.collectives.matching import match, match_near

if TYPE_CHECKING:
    from pathlib import Path


MS = 1_000_000


def done(
    end: int, kind: str = "all_reduce", size: str = "", step: int | None = None, sequence: int | None = None
) -> Collective:
    return Collective(Label(kind, ("0", "[0, 1]"), size), sequence, step, end - 1000, end, 0, 7)


def ends(pairs: list[tuple[Collective, Collective]] | str) -> list[tuple[int, int]]:
    assert not isinstance(pairs, str), pairs
    return [(first.end_ns, second.end_ns) for first, second in pairs]


def irregular(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return sorted(chance.sample(range(0, count * 5 * MS, 1000), count))


def numbered(*numbers: int | None, period: int = MS, shift: int = 0) -> list[Collective]:
    return [done(at * period + shift, sequence=number) for at, number in enumerate(numbers)]


def test_numbers_decide_whatever_the_times_say() -> None:
    found = match(numbered(*range(10)), numbered(*range(4, 14), period=5 * MS, shift=3))
    assert ends(found) == [((4 + at) * MS, 5 * at * MS + 3) for at in range(6)]


def test_a_number_that_comes_twice_is_nobodys() -> None:
    assert len(ends(match(numbered(*range(8), 0, 1), numbered(*range(8))))) == 6


def test_parts_of_a_run_are_matched_where_they_overlap() -> None:
    times = irregular(40)
    ours = [done(time) for time in times[:30]]
    theirs = [done(time + 5_000_000_123) for time in times[6:]]
    assert ends(match(ours, theirs)) == [(time, time + 5_000_000_123) for time in times[6:30]]


@pytest.mark.parametrize("count", [12, 17])
def test_steps_and_sizes_tell_apart_what_repeats(count: int) -> None:
    def repeated(shift: int) -> list[Collective]:
        # Two alike in each step: the offset by a whole period has half the votes of the true one at most.
        own = [{"step": number // 2} if count == 12 else {"size": str(number)} for number in range(count)]
        return [done(number * 10 * MS + shift, **each) for number, each in enumerate(own)]  # type: ignore[arg-type]

    times = [number * 10 * MS for number in range(count)]
    assert ends(match(repeated(0), repeated(5 * MS))) == [(time, time + 5 * MS) for time in times]


THREE = [done(time) for time in (1 * MS, 5 * MS, 6 * MS)]
PERIODIC = [done(number * 10 * MS) for number in range(50)]


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (numbered(0, 1, 2), numbered(1, 2, 3), "only 2"),
        (PERIODIC, [done(number * 10 * MS + 2 * MS) for number in range(50)], "fit at more than one offset"),
        (THREE, THREE, ""),
        (THREE, [], "no collectives of a process group of both"),
    ],
    ids=["two numbers in common", "a period of its own", "three alike", "none"],
)
def test_collectives_that_prove_nothing_are_refused(
    ours: list[Collective], theirs: list[Collective], reason: str
) -> None:
    found = match(ours, theirs)
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize("ppm", [-100, 40, 100])
@pytest.mark.parametrize("count", [20, 300])
def test_match_follows_a_drift_over_ten_minutes_however_far_apart_collectives_are(count: int, ppm: int) -> None:
    chance = random.Random(count)
    times = sorted(chance.sample(range(0, 600_000 * MS, 1000), count))
    theirs = {time: done(time + 17 + time * ppm // 1_000_000 + chance.randint(0, 20_000)) for time in times}
    ours = [done(time) for time in times if chance.random() < 0.9]
    found = ends(match(ours, [one for one in theirs.values() if chance.random() < 0.9]))
    assert len(found) > 0.7 * count
    assert all(second == theirs[first].end_ns for first, second in found)


def test_numbers_of_a_part_are_enough() -> None:
    ours = numbered(*(number if number % 2 else None for number in range(10)))
    theirs = numbered(*(number if number > 4 else None for number in range(10)), shift=7)
    assert ends(match(ours, theirs)) == [(number * MS, number * MS + 7) for number in (5, 7, 9)]


def test_on_one_clock_the_nearest_is_taken_once() -> None:
    ours = [done(time) for time in (0, MS, 2 * MS)]
    theirs = [done(time) for time in (50_000, MS - 20_000, MS + 30_000, 9 * MS)]
    assert ends(match_near(ours, theirs, 0)) == [(0, 50_000), (MS, MS - 20_000)]
    assert match_near([], theirs, 0) == []


KINDS = {
    "all_reduce": ("allreduce", "nccl:all_reduce", "allreduce_coalesced"),
    "all_gather": ("_allgather_base", "all_gather_into_tensor_coalesced"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter"),
    "all_to_all": ("all_to_allv", "alltoall_base"),
    **{name: (name,) for name in ("barrier", "broadcast", "gather", "scatter", "send", "recv")},
    "reduce": ("Reduce",),
    "": ("SendRecv", "Generic", "wait"),
}


def test_names_of_torch_nccl_and_gloo_have_a_kind() -> None:
    assert {kind: tuple(name for name in names if kind_of(name) == kind) for kind, names in KINDS.items()} == KINDS


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
