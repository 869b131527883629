"""``tracekit diff`` on runs with known delays, and on equal ones, as a person and as a gate of continuous integration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verdict_runs import command, write_run
from tests.verdict_simulation import NOISES, STAGES, STEP_NS, WAIT, own_times, with_waiting
from tracekit.check.schemas import compile_schema

if TYPE_CHECKING:
    from pathlib import Path

DATALOADER = STAGES.index("dataloader")
FORWARD = STAGES.index("forward")
OPTIMIZER = STAGES.index("optimizer")


def run_of(folder: Path, seed: int, slower: float = 0.0, stage: int = FORWARD, noise: str = "independent 3%") -> str:
    """Write a run of two ranks and 120 steps; a stage of both takes longer by a share of the step."""
    times = own_times(np.random.default_rng(seed), NOISES[noise], (2, 120), shared=True)
    times[:, :, stage] += slower * STEP_NS
    return write_run(folder, with_waiting(times, WAIT), collectives=True)


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
        times = own_times(np.random.default_rng(seed), NOISES["independent 3%"], (ranks, 100), shared=True)
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


def test_new_name_does_not_speak_to_the_terminal(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", 1), run_of(tmp_path / "b", 2)
    for path in (tmp_path / "b").iterdir():
        path.write_text(path.read_text().replace("forward", "evil \\u001b[31m"))
    assert [one["name"] for one in json.loads(command(["diff", "--json", before, after])[1])["new"]] == [
        "evil \x1b[31m"
    ]
    text = command(["diff", before, after])[1]
    assert "evil" in text
    assert "\x1b" not in text


def test_what_cannot_be_compared_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    slices = [{"ph": "X", "pid": 1, "tid": 1, "name": "forward", "ts": 10 * at, "dur": 5} for at in range(20)]
    # Four values do not tell how much they vary; other names are not there to be compared.
    for other in (slices[:4], [{**one, "name": "other"} for one in slices]):
        before.write_text(json.dumps(slices))
        after.write_text(json.dumps(other))
        code, text = command(["diff", str(before), str(after)])
        assert code == 0
        assert "nothing could be compared" in text
        assert "no marker became" not in text
        assert "compared without" not in text
        assert command(["diff", str(before), str(after), "--fail-above", "5%"])[0] == 1
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
