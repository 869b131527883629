"""F6: what a merged trace keeps so that more can be merged with it: whose is what, also where pids do not tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.merged_tables import as_before_format_2, inputs, processes
from tests.unit.merge.test_inputs import event, meta, rank_trace, threads, timed, titles, torch_trace
from tracekit.errors import MergeError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def steps(tmp_path: Path) -> Any:
    """Merge some files, then the result with further ones; return that and all of it merged at once."""

    def _steps(first: dict[str, Any], then: dict[str, Any], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        for name, value in {**first, **then}.items():
            (tmp_path / name).write_text(json.dumps(value))
        step, result, whole = (str(tmp_path / f"{name}.merged") + ".json" for name in ("step", "result", "whole"))
        merge_traces(step, [str(tmp_path / name) for name in first])
        merge_traces(result, [step, *(str(tmp_path / name) for name in then)], **options)
        merge_traces(whole, [str(tmp_path / name) for name in {**first, **then}], **options)
        return tuple(json.loads((tmp_path / f"{name}.merged.json").read_text()) for name in ("result", "whole"))  # type: ignore[return-value]

    return _steps


def test_a_pid_that_was_used_again_stays_two_processes(steps: Any) -> None:
    first = {"a.json": rank_trace(event("a", pid=1), pid=1, attempt=0, start_ticks=5)}
    then = {"b.json": rank_trace(event("b", 900, pid=1), pid=1, attempt=1, start_ticks=9)}
    result, whole = steps(first, then)
    assert len({found["pid"] for found in timed(result).values()}) == 2
    assert titles(result) == titles(whole)


def test_a_file_of_a_process_that_is_merged_already_joins_it(steps: Any) -> None:
    first = {
        "a.json": rank_trace(
            meta("tracekit_companion", 100, file="cycle.json"), event("a"), event("text", 5, tid="stream 7")
        )
    }
    # Only the rank trace tells whose this is.
    then = {"cycle.json": torch_trace(event("op", 50), event("text 2", 50, tid="stream 7"), event("zero", 50, tid=0))}
    result, whole = steps(first, then)
    assert titles(result) == titles(whole) == {1: "rank 0 · process 100"}
    assert threads(result) == threads(whole)
    places = {name: (found["pid"], found["tid"]) for name, found in timed(result).items()}
    assert places == {name: (found["pid"], found["tid"]) for name, found in timed(whole).items()}
    assert places["text"] == places["text 2"]


def test_a_thread_of_which_nothing_is_left_keeps_its_number(steps: Any) -> None:
    """The process is 1 in the first merge, and 2 in the end: the number that thread 0 gets when no other one has it."""
    orphan = event("nothing begins it", ph="E", pid=200, tid=2)
    first = {"b.json": rank_trace(orphan, event("zero", 5, pid=200, tid=0), pid=200, attempt=1, start_ticks=9)}
    then = {"a.json": rank_trace(event("a"), attempt=0, start_ticks=5)}
    result, whole = steps(first, then)
    assert timed(result)["zero"]["pid"] == 2
    assert timed(result)["zero"]["tid"] == timed(whole)["zero"]["tid"]
    assert threads(result) == threads(whole)


def test_slices_that_overlap_across_the_steps_share_the_same_lanes(steps: Any) -> None:
    first = {"a.json": rank_trace(event("a", 0, 10), event("b", 5, 10), event("c", 30, 10))}
    then = {"b.json": rank_trace(event("d", 2, 20), event("e", 35, 10), event("f", 60, 1))}
    result, whole = steps(first, then)
    assert {name: found["tid"] for name, found in timed(result).items()} == {
        name: found["tid"] for name, found in timed(whole).items()
    }
    assert threads(result) == threads(whole)
    assert not any("(overlap) (overlap)" in name for name in threads(result).values())


@pytest.mark.parametrize(
    "other",
    [
        rank_trace(event("b", pid=200), pid=200),
        rank_trace(event("b"), host="other"),
        torch_trace(event("b", pid=200), distributedInfo={"rank": 0}),
    ],
    ids=["pid", "host", "torch"],
)
def test_another_process_that_claims_a_merged_rank_is_refused(tmp_path: Path, other: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps(rank_trace(event("a"))))
    (tmp_path / "b.json").write_text(json.dumps(other))
    merge_traces(str(tmp_path / "step.json"), [str(tmp_path / "a.json")])
    with pytest.raises(
        MergeError, match=r"step\.json and .*b\.json both claim rank 0|b\.json and .*step\.json both claim"
    ):
        merge_traces(str(tmp_path / "m.json"), [str(tmp_path / "step.json"), str(tmp_path / "b.json")])


def test_hosts_and_what_inputs_say_are_kept(steps: Any) -> None:
    first = {"a.json": rank_trace(event("a"), host="n1"), "b.json": rank_trace(event("b"), rank=1, host="n2")}
    then = {"c.json": rank_trace(event("c"), rank=2, host="n3")}
    result, whole = steps(first, then)
    assert result["tracekit"] == whole["tracekit"]
    assert processes(result) == processes(whole)
    assert [process["host"] for process in processes(result)] == ["n1", "n2", "n3"]
    assert [entry["file"] for entry in inputs(result)] == ["a.json", "b.json", "c.json"]


def test_a_merged_trace_from_before_is_merged_by_its_pids(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(rank_trace(event("a"))))
    (tmp_path / "b.json").write_text(json.dumps(rank_trace(event("b", 50))))
    merge_traces(str(tmp_path / "step.json"), [str(tmp_path / "a.json")])
    old = as_before_format_2(json.loads((tmp_path / "step.json").read_text()))
    for process in old["tracekit"]["processes"]:
        del process["identity"], process["threads"]
    (tmp_path / "step.json").write_text(json.dumps(old))
    merge_traces(str(tmp_path / "m.json"), [str(tmp_path / "step.json"), str(tmp_path / "b.json")])
    assert {found["pid"] for found in timed(json.loads((tmp_path / "m.json").read_text())).values()} == {1}


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        {"identity": {"pid": "5"}},
        {"identity": 7},
        {"threads": [[1]]},
        {"threads": 5},
        {"threads": [["x", 1, 0]]},
        {"key": [9, 1]},
        {"key": []},
        {"pid": None},
        {"rank": "x"},
    ],
)
def test_a_damaged_table_is_refused_or_passed_over(tmp_path: Path, damage: dict[str, Any], is_old: bool) -> None:
    (tmp_path / "a.json").write_text(json.dumps(rank_trace(event("a"))))
    merge_traces(str(tmp_path / "step.json"), [str(tmp_path / "a.json")])
    document = json.loads((tmp_path / "step.json").read_text())
    if is_old:
        document = as_before_format_2(document)
        document["tracekit"]["processes"][0].update(damage)
    else:
        table = next(found for found in document["traceEvents"] if found["name"] == "tracekit_process")
        table["args"].update(damage)
    (tmp_path / "step.json").write_text(json.dumps(document))
    # A file of the same rank, so that the table is needed.
    (tmp_path / "b.json").write_text(json.dumps(rank_trace(event("b", 50))))
    inputs = [str(tmp_path / "step.json"), str(tmp_path / "b.json")]
    if "identity" in damage:
        merge_traces(str(tmp_path / "m.json"), inputs)
    else:
        with pytest.raises(MergeError, match="table of processes is damaged"):
            merge_traces(str(tmp_path / "m.json"), inputs)
