"""What became slower: from runs with known changes, and from equal ones."""

from __future__ import annotations

import json
import math
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import diff_traces
from tracekit.errors import ConfigError
from tracekit.explain.diff_results import diff_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.real_traces import RealTraces

STAGES = {"dataloader": 1.0, "forward": 4.0, "backward": 8.0, "optimizer": 2.0}


def noisy(random: Random, count: int, typical: float, noise: float) -> list[float]:
    """Return values around a typical one, some of them far off."""
    return [typical * math.exp(random.gauss(0, noise)) * (3 if random.random() < 0.02 else 1) for _ in range(count)]


def write(
    folder: Path, seed: int, slower: dict[str, float] | None = None, ranks: int = 2, steps: int = 100, **more: float
) -> str:
    """Write the rank traces of a run with 3 % noise; ``slower``: a factor for each stage."""
    folder.mkdir()
    random = Random(seed)
    for rank in range(ranks):
        own = {
            name: noisy(random, steps, length * (slower or {}).get(name, 1.0), 0.03)
            for name, length in {**STAGES, **more}.items()
        }
        events: list[dict[str, Any]] = []
        at = 0.0
        for step in range(steps):
            began = at
            for name, lengths in own.items():
                place = {"ph": "X", "pid": 1, "tid": 1, "cat": "", "ts": round(at, 3)}
                events.append({**place, "name": name, "dur": round(1000 * lengths[step], 3)})
                if name == "forward":
                    events.append({**place, "name": "layer", "dur": round(500 * lengths[step], 3)})
                at = round(at + 1000 * lengths[step] + 0.001, 3)
            batch = {"name": "batch", "cat": "training loop", "args": {"batch": step}, "pid": 1, "tid": 2}
            events.append({"ph": "X", "ts": round(began, 3), "dur": round(at - began, 3), **batch})
        (folder / f"rank{rank}.json").write_text(json.dumps(events))
    return str(folder)


def write_slices(path: Path, lengths: Sequence[float]) -> str:
    """Write slices of one name, without steps."""
    place = {"ph": "X", "name": "gemm", "pid": 1, "tid": 1}
    path.write_text(json.dumps([{**place, "ts": 1000 * at, "dur": round(dur, 3)} for at, dur in enumerate(lengths)]))
    return str(path)


def names(changes: Sequence[Any]) -> list[str]:
    return [change.name for change in changes]


@pytest.mark.parametrize("seed", range(3))
def test_stage_that_became_five_percent_slower_is_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    before = write(tmp_path / "a", seed)
    after = write(tmp_path / "b", 100 + seed, {"backward": 1.05})
    diff = diff_traces([before], [after])
    assert names(diff.slower) in (["backward"], ["(step)", "backward"])
    assert diff.faster == diff.new == diff.vanished == []
    change = diff.slower[-1]
    assert change.ratio == pytest.approx(1.05, abs=0.012)
    assert change.before_ns == pytest.approx(8e6, rel=0.02)
    assert diff.slower_by(0.03) == [one for one in diff.slower if one.ratio > 1.03] != []
    back = diff_traces([after], [before])
    assert names(back.faster)[-1] == "backward"
    assert back.slower == []


def test_equal_runs_are_quiet(tmp_path: Path) -> None:
    loud = 0
    for seed in range(6):
        diff = diff_traces([write(tmp_path / f"a{seed}", seed)], [write(tmp_path / f"b{seed}", 500 + seed)])
        loud += bool(diff.slower or diff.faster)
        assert len(diff.unchanged) + len(diff.slower) + len(diff.faster) == 6
    assert loud == 0


def test_new_and_vanished_markers_are_told(tmp_path: Path) -> None:
    before = write(tmp_path / "a", 1, checkpoint=3.0)
    after = write(tmp_path / "b", 2, evaluate=5.0)
    diff = diff_traces([before], [after])
    assert [(one.name, one.count) for one in diff.new] == [("evaluate", 200)]
    assert diff.new[0].each_ns == pytest.approx(5e6, rel=0.1)
    assert names(diff.vanished) == ["checkpoint"]
    text = "\n".join(diff_lines(diff, 5))
    assert "\nnew\n" in text
    assert "\ngone\n" in text


def test_cause_is_told_from_what_only_encloses_it(tmp_path: Path) -> None:
    diff = diff_traces([write(tmp_path / "a", 1)], [write(tmp_path / "b", 2, {"forward": 1.2})])
    by_name = {change.name: change for change in diff.slower}
    assert by_name["layer"].self_change_ns == pytest.approx(0.4e6, rel=0.3)
    assert by_name["forward"].self_change_ns == pytest.approx(0.4e6, rel=0.3)
    assert by_name["forward"].after_ns - by_name["forward"].before_ns == pytest.approx(0.8e6, rel=0.2)


def test_runs_of_different_numbers_of_ranks_are_compared_by_rank(tmp_path: Path) -> None:
    two, four = write(tmp_path / "two", 1, ranks=2), write(tmp_path / "four", 2, ranks=4)
    for diff in (diff_traces([two], [four]), diff_traces([four], [two])):
        assert diff.step is not None
        assert diff.step.ratio == pytest.approx(1, abs=0.03)
        assert diff.slower_by(0.05) == [change for change in diff.faster if change.ratio < 0.95] == []
    slow = write(tmp_path / "slow", 3, dict.fromkeys(STAGES, 1.5), ranks=2)
    diff = diff_traces([four], [slow])
    assert diff.step is not None
    assert diff.step.ratio == pytest.approx(1.5, abs=0.05)
    assert {*STAGES, "(step)"} <= set(names(diff.slower_by(0.4)))
    assert diff.faster == []


def test_marker_of_one_rank_does_not_depend_on_how_many_others_there_are(tmp_path: Path) -> None:
    folders = []
    for ranks, checkpoint in ((2, 3.0), (4, 3.3)):
        folders.append(write(tmp_path / f"of{ranks}", ranks, ranks=ranks))
        write(tmp_path / f"alone{ranks}", ranks, ranks=1, checkpoint=checkpoint)
        (tmp_path / f"alone{ranks}" / "rank0.json").replace(tmp_path / f"of{ranks}" / "rank0.json")
    diff = diff_traces([folders[0]], [folders[1]], at_least=0, sure=0)
    change = next(one for one in diff.slower if one.name == "checkpoint")
    assert change.ratio == pytest.approx(1.1, abs=0.04)
    assert change.count_before == change.count_after == 1
    assert change.before_ns == pytest.approx(3e6, rel=0.05)


def test_two_ranks_of_one_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 1, ranks=1)
    (tmp_path / "a" / "rank1.json").write_bytes(
        (tmp_path / (write(tmp_path / "b", 2, {"dataloader": 1.5}, ranks=1)) / "rank0.json").read_bytes()
    )
    diff = diff_traces([folder], rank_a=0, rank_b=1)
    assert "dataloader" in names(diff.slower)
    assert (diff.before.ranks, diff.after.ranks) == ([0], [1])
    for ranks in ({}, {"rank_a": 0}, {"rank_a": 1, "rank_b": 1}):
        with pytest.raises(ConfigError, match="name two different ones"):
            diff_traces([folder], **ranks)
    with pytest.raises(ConfigError, match="rank 7 is not in the traces; there are: 0, 1"):
        diff_traces([folder], rank_a=0, rank_b=7)


def test_what_is_shown_before_and_after_agrees_with_the_change(tmp_path: Path) -> None:
    # The median says that it became slower, most blocks of neighbours that it became faster.
    before = write_slices(tmp_path / "a.json", [100.0] * 50 + [200.0] * 30)
    after = write_slices(tmp_path / "b.json", [110.0] * 60 + [112.0] * 20)
    (change,) = diff_traces([before], [after], sure=0).faster
    assert change.ratio < 0.9
    assert change.after_ns / change.before_ns == pytest.approx(change.ratio)


def test_without_steps_single_slices_are_compared(tmp_path: Path) -> None:
    random = Random(1)
    before = write_slices(tmp_path / "a.json", noisy(random, 10_000, 100.0, 0.05))
    after = write_slices(tmp_path / "b.json", noisy(random, 10_000, 120.0, 0.05))
    diff = diff_traces([before], [after])
    assert (diff.before.steps, diff.after.steps) == (0, 0)
    assert diff.slower[0].ratio == pytest.approx(1.2, abs=0.02)
    # One side has steps, the other has none: slices are compared again.
    steps = write(tmp_path / "steps", 3)
    assert diff_traces([steps], [before]).before.steps == 0
    assert diff_traces([before], [steps]).after.steps == 0


def test_same_real_traces_do_not_differ(traces: RealTraces) -> None:
    folder = str(traces / "dlrm_8gpu")
    diff = diff_traces([folder], [folder])
    assert diff.slower == diff.faster == diff.new == diff.vanished == []
    assert len(diff.unchanged) > 100
    other = diff_traces([str(traces / "torch_2.13_gloo" / "plain*")], [str(traces / "torch_2.13_gloo" / "full*")])
    assert other.vanished or other.new
