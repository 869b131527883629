"""Changes between runs, through the function and the command: runs with known changes, and equal ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.verdict_runs import command, write_run
from tests.verdict_simulation import NOISES, STAGES, STEP_NS, WAIT, own_times, with_waiting
from tracekit import diff_traces, summarize_traces
from tracekit.check.schemas import compile_schema
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real_traces import RealTraces
    from tests.verdict_simulation import Floats

DATALOADER, FORWARD, BACKWARD, _, OPTIMIZER = range(len(STAGES))


def times_of(seed: int, ranks: int = 2, steps: int = 120, noise: str = "independent 3%") -> Floats:
    return own_times(np.random.default_rng(seed), NOISES[noise], (ranks, steps), shared=True)


def run_of(folder: Path, seed: int, slower: float = 0.0, stage: int = FORWARD, **options: Any) -> str:
    """Write a run of ranks that wait for each other; a stage of all takes longer by a share of the step."""
    times = times_of(seed, **options)
    times[:, :, stage] += slower * STEP_NS
    return write_run(folder, with_waiting(times, WAIT))


def free_run(folder: Path, seed: int, stage: int = FORWARD, factor: float = 1.0, **options: Any) -> str:
    """Write a run of ranks that do not wait; a stage takes longer by a factor, and half of each forward is a layer."""
    times = times_of(seed, **options)
    times[:, :, stage] *= factor
    written = write_run(folder, times, collectives=False)
    for path in folder.iterdir():
        events = json.loads(path.read_text())
        layers = [{**one, "name": "layer", "dur": one["dur"] / 2} for one in events if one["name"] == "forward"]
        path.write_text(json.dumps([*events, *layers]))
    return written


def add_slices(folder: str, name: str, length_ns: float, rank: int = 0) -> str:
    """Add a slice to each step of a rank, on its own thread."""
    path = Path(folder, f"rank{rank}.json")
    events = json.loads(path.read_text())
    slice_ = {"ph": "X", "pid": 10 + rank, "tid": 3, "name": name, "dur": length_ns / 1000}
    path.write_text(json.dumps([*events, *({**slice_, "ts": one["ts"]} for one in events if one["name"] == "batch")]))
    return folder


def write_slices(path: Path, lengths: Sequence[float], name: str = "gemm") -> str:
    """Write slices of one name, without steps."""
    place = {"ph": "X", "name": name, "pid": 1, "tid": 1}
    path.write_text(json.dumps([{**place, "ts": 1000 * at, "dur": round(dur, 3)} for at, dur in enumerate(lengths)]))
    return str(path)


def names(changes: Sequence[Any]) -> list[str]:
    return [change.name for change in changes]


@pytest.mark.parametrize("seed", range(3))
def test_stage_that_became_slower_is_found_with_its_change_and_nothing_else(tmp_path: Path, seed: int) -> None:
    before, after = free_run(tmp_path / "a", seed), free_run(tmp_path / "b", 100 + seed, BACKWARD, 1.1)
    diff = diff_traces([before], [after])
    assert names(diff.slower) in (["backward"], ["(step)", "backward"])
    assert diff.faster == diff.new == diff.vanished == []
    assert len(diff.slower) + len(diff.unchanged) == 7
    change = diff.slower[-1]
    assert change.ratio == pytest.approx(1.1, abs=0.02)
    assert change.before_ns == pytest.approx(40e6, rel=0.02)
    assert diff.slower_by(0.03) == [one for one in diff.slower if one.ratio > 1.03] != []
    back = diff_traces([after], [before])
    assert names(back.faster)[-1] == "backward"
    assert back.slower == []


def test_cause_is_told_from_what_only_encloses_it(tmp_path: Path) -> None:
    diff = diff_traces([free_run(tmp_path / "a", 1)], [free_run(tmp_path / "b", 2, FORWARD, 1.2)])
    by_name = {change.name: change for change in diff.slower}
    assert by_name["layer"].self_change_ns == pytest.approx(3e6, rel=0.2)
    assert by_name["forward"].self_change_ns == pytest.approx(3e6, rel=0.2)
    assert by_name["forward"].after_ns - by_name["forward"].before_ns == pytest.approx(6e6, rel=0.2)


def test_runs_of_different_numbers_of_ranks_are_compared_by_rank(tmp_path: Path) -> None:
    two, four = free_run(tmp_path / "two", 1), free_run(tmp_path / "four", 2, ranks=4)
    for diff in (diff_traces([two], [four]), diff_traces([four], [two])):
        assert diff.step is not None
        assert diff.step.ratio == pytest.approx(1, abs=0.03)
        assert diff.slower_by(0.05) == [change for change in diff.faster if change.ratio < 0.95] == []
    slow = write_run(tmp_path / "slow", 1.5 * times_of(3), collectives=False)
    diff = diff_traces([four], [slow])
    assert diff.step is not None
    assert diff.step.ratio == pytest.approx(1.5, abs=0.05)
    assert {"dataloader", "forward", "backward", "optimizer", "(step)"} <= set(names(diff.slower_by(0.4)))
    assert diff.faster == []


def test_marker_of_one_rank_does_not_depend_on_how_many_others_there_are(tmp_path: Path) -> None:
    first, second = (
        add_slices(free_run(tmp_path / str(ranks), ranks, ranks=ranks), "checkpoint", length)
        for ranks, length in ((2, 3e6), (4, 3.3e6))
    )
    diff = diff_traces([first], [second], at_least=0, sure=0)
    change = next(one for one in diff.slower if one.name == "checkpoint")
    assert change.ratio == pytest.approx(1.1, abs=0.04)
    assert change.count_before == change.count_after == 1
    assert change.before_ns == pytest.approx(3e6, rel=0.05)


def test_two_ranks_of_one_run_are_compared(tmp_path: Path) -> None:
    times = times_of(1)
    times[1, :, DATALOADER] *= 1.5
    folder = write_run(tmp_path / "a", times)
    diff = diff_traces([folder], rank_a=0, rank_b=1)
    assert "dataloader" in names(diff.slower)
    assert (diff.before.ranks, diff.after.ranks) == ([0], [1])
    for ranks in ({}, {"rank_a": 0}, {"rank_a": 1, "rank_b": 1}):
        with pytest.raises(ConfigError, match="name two different ones"):
            diff_traces([folder], **ranks)
    with pytest.raises(ConfigError, match="rank 7 is not in the traces; there are: 0, 1"):
        diff_traces([folder], rank_a=0, rank_b=7)


def test_times_before_and_after_agree_with_the_change(tmp_path: Path) -> None:
    # The median says that it became slower, most blocks of neighbours that it became faster.
    before = write_slices(tmp_path / "a.json", [100.0] * 50 + [200.0] * 30)
    after = write_slices(tmp_path / "b.json", [110.0] * 60 + [112.0] * 20)
    (change,) = diff_traces([before], [after], sure=0).faster
    assert change.ratio < 0.9
    assert change.after_ns / change.before_ns == pytest.approx(change.ratio)


def test_single_slices_are_compared_where_a_run_has_no_steps(tmp_path: Path) -> None:
    random = Random(1)
    before, after = (
        write_slices(tmp_path / f"{length}.json", [length * random.lognormvariate(0, 0.05) for _ in range(10_000)])
        for length in (100.0, 120.0)
    )
    diff = diff_traces([before], [after])
    assert (diff.before.steps, diff.after.steps) == (0, 0)
    assert diff.slower[0].ratio == pytest.approx(1.2, abs=0.02)
    steps = run_of(tmp_path / "steps", 3)
    assert diff_traces([steps], [before]).before.steps == 0
    assert diff_traces([before], [steps]).after.steps == 0


def test_steps_that_overlap_others_of_their_rank_are_not_compared(tmp_path: Path) -> None:
    for name, first, start, length in (("a", 0, 0, 100), ("b", 100, 1050, 1000)):
        step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": length}
        events = [{**step, "name": f"ProfilerStep#{first + at}", "ts": start + length * at} for at in range(20)]
        (tmp_path / f"{name}_rank0.json").write_text(json.dumps(events))
    diff = diff_traces([str(tmp_path)], [str(tmp_path / "a_rank0.json")])
    assert diff.step is not None
    # The first step of each of two windows does not count, nor the step of b that begins in one of a.
    assert (diff.before.steps, summarize_traces([str(tmp_path)]).ranks[0].steps.count) == (37, 37)


def test_same_real_traces_do_not_differ(traces: RealTraces) -> None:
    folder = str(traces / "dlrm_8gpu")
    diff = diff_traces([folder], [folder])
    assert diff.slower == diff.faster == diff.new == diff.vanished == []
    assert len(diff.unchanged) > 100
    other = diff_traces([str(traces / "torch_2.13_gloo" / "plain*")], [str(traces / "torch_2.13_gloo" / "full*")])
    assert other.vanished or other.new


# The command, as a person and as a gate of continuous integration.


def test_new_and_gone_markers_are_listed_and_do_not_speak_to_the_terminal(tmp_path: Path) -> None:
    before = add_slices(run_of(tmp_path / "a", 1), "checkpoint", 3e6)
    after = add_slices(add_slices(run_of(tmp_path / "b", 2), "evil \x1b[31m", 5e6), "evil \x1b[31m", 5e6, rank=1)
    diff = diff_traces([before], [after])
    assert [(one.name, one.count) for one in diff.new] == [("evil \x1b[31m", 240)]
    assert diff.new[0].each_ns == pytest.approx(5e6, rel=0.1)
    assert names(diff.vanished) == ["checkpoint"]
    text = command(["diff", before, after])[1]
    assert "\nnew\n" in text
    assert "\ngone\n" in text
    assert "evil" in text
    assert "\x1b" not in text


def test_stage_that_grew_on_all_ranks_is_the_cause_and_fails_the_gate(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", 1), run_of(tmp_path / "b", 2, slower=0.08)
    code, text = command(["diff", before, after, "--fail-above", "5%"])
    assert code == 3
    assert "--fail-above: the step is 7." in text or "--fail-above: the step is 8." in text
    assert "note: one run a side: " in text
    assert "\ncause: forward takes " in text
    assert " on all ranks\n" in text
    assert "waiting for late ranks" not in text
    assert command(["diff", before, after, "--fail-above=0.05"])[0] == 3
    assert command(["diff", before, after])[0] == 0
    assert command(["diff", before, after, "--fail-above", "10%"])[0] == 0
    assert command(["diff", after, before, "--fail-above", "5%"])[0] == 0


@pytest.mark.parametrize(("ranks", "collectives"), [(4, True), (4, False), (16, True)])
def test_stage_of_late_rank_is_the_cause_and_not_that_of_those_who_wait(
    tmp_path: Path, ranks: int, collectives: bool
) -> None:
    runs = []
    for seed, delay in ((1, 0.0), (2, 0.15)):
        times = times_of(seed, ranks, 100)
        times[2, :, DATALOADER] += delay * STEP_NS
        runs.append(write_run(tmp_path / f"run{seed}", with_waiting(times, WAIT), collectives=collectives))
    exchange = "all_reduce" if collectives else "sync"
    for pair, verb, kind, comes in ((runs, "longer", "slower", "comes"), (runs[::-1], "less", "faster", "came")):
        text = command(["diff", *pair])[1]
        (line,) = [line for line in text.splitlines() if line.startswith("cause: ")]
        assert line.startswith("cause: dataloader takes 1")
        assert line.endswith(f" on rank 2, which {comes} late; the others wait {verb} in {exchange}")
        assert text.index(line) < text.index(f"\n{kind} (a step)\n") < text.index(f"\n{kind}, waiting for late ranks")
        document = json.loads(command(["diff", "--json", *pair])[1])
        assert compile_schema("diff")(document) is None
        (cause,) = document["causes"]
        assert (cause["stage"], cause["ranks"], cause["of_ranks"]) == ("dataloader", [2], ranks)
        assert abs(cause["change_ns"]) == pytest.approx(0.15 * STEP_NS, rel=0.3)
        assert [one["name"] for one in document[kind] if one["waiting"]] == [exchange]
        assert document[kind][-1]["name"] == exchange


def test_stage_gate_fails_for_its_stage_only(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", 1), run_of(tmp_path / "b", 2, slower=0.03, stage=OPTIMIZER)
    assert command(["diff", before, after, "--fail-above", "5%"])[0] == 0
    code, text = command(["diff", before, after, "--fail-stage", "optimizer:10%", "--fail-stage", "forward:10%"])
    assert code == 3
    assert "--fail-stage: optimizer is " in text
    assert "--fail-stage: forward" not in text


def test_noise_above_the_gate_is_said_and_fails_only_if_strict(tmp_path: Path) -> None:
    pair = [run_of(tmp_path / name, seed, noise="AR(1) 0.9 10%") for name, seed in (("a", 1), ("b", 2))]
    code, text = command(["diff", *pair, "--fail-above", "1%"])
    assert code == 0
    assert "--fail-above: the step cannot be judged: the noise hides " in text
    assert command(["diff", *pair, "--fail-above", "1%", "--strict"])[0] == 3


def test_several_baselines_widen_the_limits(tmp_path: Path) -> None:
    baselines = [run_of(tmp_path / f"run{seed}", seed, slower=share) for seed, share in enumerate((0.0, 0.05, 0.1))]
    after = run_of(tmp_path / "after", 9, slower=0.11)
    assert command(["diff", baselines[0], after, "--fail-above", "5%"])[0] == 3
    code, text = command(["diff", after, "--fail-above", "5%", "--baseline", *baselines])
    assert code == 0
    assert "before: 3 runs, 6 files, 2 ranks" in text
    assert "cannot be judged" in text
    assert command(["diff", baselines[0], after, "--fail-above", "5%", "--baseline", *baselines[1:]]) == (code, text)
    document = json.loads(command(["diff", after, "--json", "--baseline", *baselines])[1])
    assert compile_schema("diff")(document) is None
    assert document["baselines"] == 3


def test_what_cannot_be_compared_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_slices(tmp_path / "a.json", [5.0] * 20)
    # Four values do not tell how much they vary; other names are not there to be compared.
    for after in (write_slices(tmp_path / "b.json", [5.0] * 4), write_slices(tmp_path / "c.json", [5.0] * 20, "other")):
        code, text = command(["diff", before, after])
        assert code == 0
        assert "nothing could be compared" in text
        assert "no marker became" not in text
        assert "compared without" not in text
        assert command(["diff", before, after, "--fail-above", "5%"])[0] == 1
        assert "steps could not be compared, since a run has fewer than five" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name the earlier and the later run"),
        (["--baseline", "x"], 2, "name the earlier and the later run"),
        (["{a}"], 2, "name the later run, or two ranks of this one: --rank-a N --rank-b M"),
        (["{a}", "{b}", "--rank-b", "5"], 2, "rank 5 is not in the traces"),
        (["{a}", "{b}", "--fail-above", "much"], 2, "much"),
        (["x", "--fail-stage", "forward"], 2, "is not NAME:SHARE"),
        (["{a}", "{b}", "--fail-stage", "nothing:5%"], 1, "no marker 'nothing' has five values or more in all runs"),
        (["{a}", "missing.json"], 1, "missing.json"),
    ],
)
def test_wrong_usage_is_refused(
    tmp_path: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {side: run_of(tmp_path / side, seed) for seed, side in enumerate("ab")}
    assert command(["diff", *(argument.format(**named) for argument in arguments)])[0] == code
    assert words in capsys.readouterr().err
