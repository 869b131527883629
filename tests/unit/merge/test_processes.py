"""F6: the process of each input where pids are ambiguous, also in a merge of a merge."""

from __future__ import annotations

from typing import Any

import pytest

from tests.merge_inputs import BASE_NS, event, meta, rank_trace, threads, timed, titles, torch_trace
from tests.merged_tables import as_before_format_2, inputs, processes
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


@pytest.fixture
def steps(merge: Any) -> Any:
    """Merge some files, then the result with further ones; return that and all of it merged at once."""

    def _steps(first: dict[str, Any], then: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        step, _ = merge(first)
        result, _ = merge({"step.json": step, **then})
        whole, _ = merge({**first, **then})
        assert titles(result) == titles(whole)
        assert threads(result) == threads(whole)
        return result, whole

    return _steps


def places(merged: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the numbers of processes, threads, arrows and correlations of each event."""
    return {
        name: (found["pid"], found["tid"], found.get("id"), found.get("args")) for name, found in timed(merged).items()
    }


@pytest.mark.parametrize("is_first", [True, False], ids=["first attempt first", "second attempt first"])
def test_a_pid_that_was_used_again_is_two_processes_with_numbers_in_the_order_of_time(
    steps: Any, is_first: bool
) -> None:
    gpu = torch_trace(event("kernel", 7, pid=3, tid=7, cat="kernel"), distributedInfo={"rank": 0})
    first = {"a.json": rank_trace(event("a", pid=1), pid=1, attempt=0, start_ticks=5), "gpu.json": gpu}
    then = {"b.json": rank_trace(event("b", 900, pid=1), pid=1, attempt=1, start_ticks=9)}
    result, whole = steps(first, then) if is_first else steps(then, first)
    assert places(result) == places(whole)
    assert {name: found["pid"] for name, found in timed(result).items()} == {"a": 1, "b": 2, "kernel": 3}
    assert processes(result)[-1]["identity"] is None  # a GPU has no pid of the system


def test_a_file_of_a_process_that_is_merged_already_joins_it(steps: Any) -> None:
    companion = meta("tracekit_companion", 100, file="cycle.json")
    first = {"a.json": rank_trace(companion, event("a"), event("text", 5, tid="stream 7"))}
    # Only the rank trace tells whose this is.
    then = {"cycle.json": torch_trace(event("op", 50), event("text 2", 50, tid="stream 7"), event("zero", 50, tid=0))}
    result, whole = steps(first, then)
    assert places(result) == places(whole)
    assert titles(result) == {1: "rank 0 · process 100"}
    assert timed(result)["text"]["tid"] == timed(result)["text 2"]["tid"]


def test_a_thread_of_which_nothing_is_left_keeps_its_number(steps: Any) -> None:
    """The process is 1 in the first merge, and 2 in the end: the number that thread 0 gets when no other one has it."""
    orphan = event("nothing begins it", ph="E", pid=200, tid=2)
    first = {"b.json": rank_trace(orphan, event("zero", 5, pid=200, tid=0), pid=200, attempt=1, start_ticks=9)}
    result, whole = steps(first, {"a.json": rank_trace(event("a"), attempt=0, start_ticks=5)})
    assert places(result) == places(whole)
    assert timed(result)["zero"]["pid"] == 2


def test_slices_that_overlap_across_the_steps_share_the_same_lanes(steps: Any) -> None:
    first = {"a.json": rank_trace(event("a", 0, 10), event("b", 5, 10), event("c", 30, 10))}
    then = {"b.json": rank_trace(event("d", 2, 20), event("e", 35, 10), event("f", 60, 1))}
    result, whole = steps(first, then)
    assert places(result) == places(whole)
    assert not any("(overlap) (overlap)" in name for name in threads(result).values())


def test_ids_hosts_and_what_inputs_say_are_kept(steps: Any) -> None:
    def of_rank(rank: int) -> dict[str, Any]:
        launch = event(f"launch {rank}", args={"correlation": 1025, "External id": 3})
        arrow = event(f"go {rank}", ph="s", id=1025, cat="ac2g")
        return torch_trace(launch, arrow, distributedInfo={"rank": rank}, host_name=f"n{rank}")

    result, whole = steps({f"{rank}.json": of_rank(rank) for rank in (0, 1)}, {"2.json": of_rank(2)})
    assert places(result) == places(whole)
    assert result["tracekit"] == whole["tracekit"]
    assert processes(result) == processes(whole)
    assert [process["host"] for process in processes(result)] == ["n0", "n1", "n2"]
    assert [entry["file"] for entry in inputs(result)] == ["0.json", "1.json", "2.json"]


@pytest.mark.parametrize(
    "other",
    [
        rank_trace(event("b", pid=200), pid=200),
        rank_trace(event("b"), host="other"),
        torch_trace(event("b", pid=200), distributedInfo={"rank": 0}),
    ],
    ids=["pid", "host", "torch"],
)
def test_another_process_that_claims_a_merged_rank_is_refused(merge: Any, other: Any) -> None:
    step, _ = merge({"a.json": rank_trace(event("a"))})
    with pytest.raises(MergeError, match=r"(step|b)\.json and .*(step|b)\.json both claim rank 0"):
        merge({"step.json": step, "b.json": other})


def test_a_merged_trace_from_before_is_merged_by_its_pids(merge: Any) -> None:
    old = as_before_format_2(merge({"a.json": rank_trace(event("a"))})[0])
    for process in old["tracekit"]["processes"]:
        del process["identity"], process["threads"]
    merged, _ = merge({"step.json": old, "b.json": rank_trace(event("b", 50))})
    assert {found["pid"] for found in timed(merged).values()} == {1}


@pytest.mark.parametrize("place", [{"pid": 0}, {"pid": -5}, {"pid": 2**40}, {"tid": "main"}, {"tid": 2**32}], ids=str)
@pytest.mark.parametrize("phase", ["X", "M"])
def test_an_event_of_a_merged_trace_without_a_usable_place_is_refused(
    merge: Any, place: dict[str, Any], phase: str
) -> None:
    document, _ = merge({"a.json": rank_trace(event("a"))})
    next(found for found in document["traceEvents"] if found["ph"] == phase).update(place)
    with pytest.raises(MergeError, match="no process or thread: it was changed"):
        merge({"step.json": document})


@pytest.mark.parametrize("ranks", [[[1, 0]], [[0, 2**32 - 1]], [[-2, 0]], [[0, None]], 5], ids=str)
def test_a_merged_trace_with_impossible_ranks_is_refused(merge: Any, ranks: Any) -> None:
    document, _ = merge({"a.json": rank_trace(event("a"))})
    document["tracekit"]["merge"]["ranks"] = ranks
    with pytest.raises(MergeError, match="table of processes is damaged"):
        merge({"step.json": document})


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    ("damage", "refused"),
    [
        ({"identity": {"pid": "5"}}, False),
        ({"identity": 7}, False),
        ({"threads": [[1]]}, True),
        ({"threads": 5}, True),
        ({"threads": [["x", 1, 0]]}, True),
        ({"threads": [[2**32, 1, 0]]}, True),
        ({"threads": [[5, 1, -1]]}, True),
        ({"key": [9, 1]}, True),
        ({"key": []}, True),
        ({"pid": None}, True),
        ({"rank": "x"}, True),
    ],
    ids=str,
)
def test_a_damaged_table_is_refused_or_passed_over(
    merge: Any, damage: dict[str, Any], refused: bool, is_old: bool
) -> None:
    document, _ = merge({"a.json": rank_trace(event("a"))})
    if is_old:
        document = as_before_format_2(document)
        table = document["tracekit"]["processes"][0]
    else:
        table = next(found["args"] for found in document["traceEvents"] if found["name"] == "tracekit_process")
    table.update(damage)
    # A file of the same rank, so that the table is needed.
    files = {"step.json": document, "b.json": rank_trace(event("b", 50))}
    if refused:
        with pytest.raises(MergeError, match="table of processes is damaged"):
            merge(files)
    else:
        merge(files)
