"""F6: what a merged trace keeps so that more can be merged with it: whose is what, also where pids do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.merge_inputs import event, meta, rank_trace, threads, timed, titles, torch_trace
from tests.merged_tables import as_before_format_2, inputs, processes
from tracekit.errors import MergeError


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


def test_a_pid_that_was_used_again_stays_two_processes(steps: Any) -> None:
    first = {"a.json": rank_trace(event("a", pid=1), pid=1, attempt=0, start_ticks=5)}
    then = {"b.json": rank_trace(event("b", 900, pid=1), pid=1, attempt=1, start_ticks=9)}
    result, _ = steps(first, then)
    assert len({found["pid"] for found in timed(result).values()}) == 2


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


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    ("damage", "refused"),
    [
        ({"identity": {"pid": "5"}}, False),
        ({"identity": 7}, False),
        ({"threads": [[1]]}, True),
        ({"threads": 5}, True),
        ({"threads": [["x", 1, 0]]}, True),
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
