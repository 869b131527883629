"""F6: which process each input of a merge is of, where pids alone do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.merge_inputs import BASE_NS, event, meta, rank_trace, titles, torch_trace
from tracekit.errors import MergeError

SECOND_NS = 1_000_000_000


def own(
    seconds: int, name: str, *events: dict[str, Any], pid: int = 1, title: str = "rank 0", **more: Any
) -> list[Any]:
    """Return a rank trace that began at a second, with one slice in its main thread."""
    clock = {"wall_ns": BASE_NS + seconds * SECOND_NS, "monotonic_ns": 0, "error_ns": 0}
    more = {"boot_id": "b", "start_ticks": 100 * seconds, "clock": clock, **more}
    slice_ = event(name, seconds * 1_000_000 + 5, pid=pid, tid=pid)
    return rank_trace(meta("process_name", pid, pid, name=title), slice_, *events, pid=pid, **more)


def child(seconds: int, name: str, worker: int | None, *, pid: int, **more: Any) -> list[Any]:
    title = f"rank 0 · worker {worker}" if worker is not None else f"rank 0 · {name}"
    number = {} if worker is None else {"worker": worker}
    return own(seconds, name, pid=pid, title=title, **{"parent_pid": 1, **number, **more})


def torch_of(seconds: int, name: str, **header: Any) -> dict[str, Any]:
    named = meta("process_name", 1, 0, name="python3")
    return torch_trace(named, event(name, seconds * 1_000_000, pid=1, tid=1), distributedInfo={"rank": 0}, **header)


@pytest.fixture
def merged(merge: Any) -> Any:
    """Write files by name, merge them, and return [process title, names of its slices ...] for each process."""

    def _merged(files: dict[str, Any], *, again: bool = False) -> list[list[str]]:
        found, _ = merge(files)
        if again:
            found, _ = merge({"merged.json": found})
        orders = [event for event in found["traceEvents"] if event["name"] == "process_sort_index"]
        assert len({event["args"]["sort_index"] for event in orders}) == len(orders)
        slices = [(event["pid"], event["name"]) for event in found["traceEvents"] if event["ph"] == "X"]
        return [[title, *(name for on, name in slices if on == pid)] for pid, title in titles(found).items()]

    return _merged


def test_attempts_with_one_pid_are_processes_of_their_own(merged: Any) -> None:
    # A container's first process is 1 every time.
    files = {f"a{attempt}.json": own(10 - attempt, f"try {attempt}", attempt=attempt) for attempt in (0, 1, 2)}
    assert merged(files) == [["rank 0", "try 2"], ["rank 0", "try 1"], ["rank 0", "try 0"]]


def test_hosts_with_one_pid_are_processes_of_their_own(merged: Any) -> None:
    files = {
        "a.json": own(1, "here", host="one", boot_id="c", start_ticks=5),
        "b.json": own(2, "there", host="two", attempt=1, boot_id="d", start_ticks=5),
        "c.json": own(3, "elsewhere", host="three", rank=1, title="rank 1", boot_id="e", start_ticks=5),
    }
    assert merged(files) == [["rank 0", "here"], ["rank 0", "there"], ["rank 1", "elsewhere"]]


def test_several_files_of_one_process_share_its_track(merged: Any) -> None:
    files = {
        "a.json": own(1, "a"),
        "b.json": own(1, "more"),
        "w.json": child(2, "x", 0, pid=2),
        "v.json": child(2, "more", 0, pid=2),
    }
    assert merged(files) == [["rank 0", "a", "more"], ["rank 0 · worker 0", "more", "x"]]


@pytest.mark.parametrize("again", [False, True])
def test_workers_come_behind_the_rank_in_order_of_number_and_time(merged: Any, again: bool) -> None:
    gpu = torch_trace(
        meta("process_labels", 0, 0, labels="GPU 0"),
        event("kernel", 12_000_000, pid=0, tid=7, cat="kernel"),
        meta("process_name", 1, 0, name="python3"),
        event("aten::mm", 12_000_000, pid=1, tid=1),
        tracekit={"rank": 0, "pid": 1, "attempt": 0, "host": "h", "run_id": "r"},
    )
    files = {
        "rank0.json": own(1, "training"),
        "torch0.json": gpu,
        "w0.json": child(9, "0 of epoch 1", 0, pid=5),
        "w1.json": child(3, "0 of epoch 0", 0, pid=99),
        "w2.json": child(3, "10 of epoch 0", 10, pid=98),
        "w3.json": child(3, "2 of epoch 0", 2, pid=97),
        "w4.json": child(2, "decoder", None, pid=3),
        "w5.json": child(20, "0 of epoch 2", 0, pid=99),
    }
    assert merged(files, again=again) == [
        ["rank 0 · python3", "training", "aten::mm"],
        ["rank 0 · GPU 0", "kernel"],
        ["rank 0 · worker 0", "0 of epoch 0"],
        ["rank 0 · worker 0", "0 of epoch 1"],
        ["rank 0 · worker 0", "0 of epoch 2"],
        ["rank 0 · worker 2", "2 of epoch 0"],
        ["rank 0 · worker 10", "10 of epoch 0"],
        ["rank 0 · decoder", "decoder"],
    ]


@pytest.mark.parametrize("how", ["companion", "attempt", "time"])
def test_a_torch_trace_goes_with_the_process_that_it_is_of(merged: Any, how: str) -> None:
    companion = [meta("tracekit_companion", 1, 1, file="t1.json")] if how == "companion" else []
    # By time alone it would be of the last attempt in the first two cases.
    when = 15 if how == "time" else 25
    header = {"tracekit": {"rank": 0, "pid": 1, "attempt": 1, "run_id": "r"}} if how == "attempt" else {}
    title = "rank 0 · attempt 1"
    files = {
        "a0.json": own(0, "try 0", attempt=0),
        "a1.json": own(10, "try 1", *companion, attempt=1, title=title),
        "a2.json": own(20, "try 2", attempt=2),
        "t1.json": torch_of(when, "aten::mm", **header),
    }
    assert merged(files) == [["rank 0", "try 0"], [title, "try 1", "aten::mm"], ["rank 0", "try 2"]]


def test_the_main_thread_of_a_worker_comes_first(merge: Any) -> None:
    found, _ = merge({"w.json": [*child(2, "main", 0, pid=50), event("other", 2_000_009, pid=50, tid=7)]})
    orders = [event for event in found["traceEvents"] if event["name"] == "thread_sort_index"]
    assert min(orders, key=lambda order: order["args"]["sort_index"])["tid"] == 50


FIRST = own(1, "a")
WORKER = child(2, "w", 0, pid=5)


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (FIRST, own(2, "b", start_ticks=7), True),
        (FIRST, own(2, "b", boot_id="other"), True),
        (FIRST, own(1, "b", pid=200), True),
        (FIRST, own(1, "b", host="other"), True),
        (FIRST, own(2, "b", pid=200, attempt=1, run_id="other"), True),
        (FIRST, torch_trace(event("b", pid=200), distributedInfo={"rank": 0}), True),
        (FIRST, child(2, "w", 0, pid=5, run_id="another"), True),
        (WORKER, child(2, "w", 1, pid=6, run_id="another"), True),
        (WORKER, child(2, "w", 1, pid=6), False),
        (WORKER, torch_of(3, "of the parent"), False),
        (child(2, "w", 0, pid=5, parent_pid=4), torch_of(3, "of another"), True),
    ],
)
def test_strangers_that_claim_one_rank_are_refused(merged: Any, first: Any, second: Any, refused: bool) -> None:
    files = {"a.json": first, "b.json": second}
    if refused:
        with pytest.raises(MergeError, match=r"\.json and .*\.json both claim rank 0"):
            merged(files)
    else:
        assert len(merged(files)) == 2
