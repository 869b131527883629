"""``tracekit stragglers`` and ``tracekit diff`` on runs with known delays, and on equal ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verdict_runs import command, count_alarms, drawn_times, write_run
from tests.verdict_simulation import LAYOUTS, NOISES, STAGES, STEP_NS, WAIT, own_times, with_waiting
from tracekit import find_stragglers
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


def stalled(folder: Path) -> str:
    """Write a run with a stall of 120 ms in three steps of one rank, and two warm-up steps."""
    times = own_times(np.random.default_rng(1), NOISES["AR(1) 0.9 3%"], (8, 124), shared=True)
    times[3, 20:23, 0] += 120e6
    times[:, :2] *= np.array([5, 2])[None, :, None]
    return write_run(folder, with_waiting(times, WAIT), collectives=True)


def test_a_stall_is_reported_with_its_rank_stage_and_cost_and_warm_up_is_named(tmp_path: Path) -> None:
    folder = stalled(tmp_path / "run")
    code, text = command(["stragglers", folder])
    assert code == 0
    assert "steps 20 to 22: rank 3 stalled 120 ms each in dataloader; all ranks waited; 3" in text
    assert "steps 0 to 1 are warm-up (up to 5." in text
    assert "\nNo rank is slower by more than " in text
    document = json.loads(command(["stragglers", "--json", folder])[1])
    assert compile_schema("stragglers")(document) is None
    (outlier,) = document["outliers"]
    assert (outlier["rank"], outlier["stage"], outlier["steps"]) == (3, "dataloader", [20, 21, 22])
    assert outlier["cost_ns"] == pytest.approx(360e6, rel=0.1)
    assert (document["warm_up"], document["stragglers"]) == ([0, 1], [])
    assert document["sensitivity"]["noise"].keys() == {str(rank) for rank in range(8)}


def test_a_rank_that_stalls_again_and_again_is_exit_code_3(tmp_path: Path) -> None:
    times = own_times(np.random.default_rng(2), NOISES["independent 10%"], (4, 150), shared=True)
    times[1, 5::10, FORWARD] += 1.5 * STEP_NS
    code, text = command(["stragglers", write_run(tmp_path / "run", with_waiting(times, WAIT), collectives=True)])
    assert code == 3
    assert "rank 1 stalled 150 ms each in forward; all ranks waited; " in text or "rank 1 stalled 14" in text
    assert "; more often than chance gives to one of equal ranks" in text


def test_a_slow_rank_holds_others_up_only_where_they_wait(tmp_path: Path) -> None:
    times = own_times(np.random.default_rng(3), NOISES["independent 3%"], (4, 100), shared=True)
    times[2, :, FORWARD] += 0.1 * STEP_NS
    waiting = write_run(tmp_path / "waiting", with_waiting(times, WAIT), collectives=True)
    free = write_run(tmp_path / "free", times, collectives=False)
    assert "\nrank 2 holds the others up in forward: " in command(["stragglers", waiting])[1]
    text = command(["stragglers", free])[1]
    assert "\nrank 2 is slower in forward: " in text
    assert "holds" not in text


def test_steps_that_overlap_by_rounding_are_all_compared(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run",
        drawn_times(np.random.default_rng(4), "independent 3%", (2, 100), "markers", 0),
        collectives=False,
    )
    for path in (tmp_path / "run").iterdir():
        events = json.loads(path.read_text())
        for event in events:
            if event["name"] == "batch":
                event["dur"] = round(event["dur"] + 0.001, 3)
        path.write_text(json.dumps(events))
    assert find_stragglers([folder]).steps >= 99


def test_a_run_that_became_slower_fails_the_gate(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", 1), run_of(tmp_path / "b", 2, slower=0.08)
    code, text = command(["diff", before, after, "--fail-above", "5%"])
    assert code == 3
    assert "--fail-above: the step is 7." in text or "--fail-above: the step is 8." in text
    assert "note: one run a side: " in text
    assert command(["diff", before, after, "--fail-above", "10%"])[0] == 0
    assert command(["diff", after, before, "--fail-above", "5%"])[0] == 0


@pytest.mark.parametrize(("ranks", "collectives"), [(4, True), (4, False), (32, True)])
def test_diff_names_the_stage_of_the_late_rank_and_not_that_of_those_who_wait(
    tmp_path: Path, ranks: int, collectives: bool
) -> None:
    runs = []
    for seed, delay in ((1, 0.0), (2, 0.15)):
        times = own_times(np.random.default_rng(seed), NOISES["independent 3%"], (ranks, 100), shared=True)
        times[2, :, DATALOADER] += delay * STEP_NS
        runs.append(write_run(tmp_path / f"run{seed}", with_waiting(times, WAIT), collectives=collectives))
    exchange = "all_reduce" if collectives else "sync"
    for pair, verb, kind, comes in (
        (runs, "longer", "slower", "comes"),
        (runs[::-1], "less", "faster", "came"),
    ):
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


def test_diff_names_a_stage_that_grew_on_all_ranks_and_no_waiting(tmp_path: Path) -> None:
    text = command(["diff", run_of(tmp_path / "a", 1), run_of(tmp_path / "b", 2, slower=0.08)])[1]
    assert "\ncause: forward takes " in text
    assert " on all ranks\n" in text
    assert "waiting for late ranks" not in text


def test_a_stage_gate_fails_for_its_stage_only(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["x", "--fail-stage", "forward"], 2, "is not NAME:SHARE"),
        (["--baseline", "x"], 2, "name the earlier and the later run"),
        ([], 2, "name the earlier and the later run"),
        (["{a}", "{b}", "--fail-stage", "nothing:5%"], 1, "no marker 'nothing' has five values or more in all runs"),
    ],
)
def test_wrong_gates_are_refused(
    tmp_path: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {side: run_of(tmp_path / side, seed) for seed, side in enumerate("ab")}
    assert command(["diff", *(argument.format(**named) for argument in arguments)])[0] == code
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [name for name, noise in NOISES.items() if noise.required])
def test_equal_runs_pass_the_whole_commands(kind: str, layout: str) -> None:
    # One in a hundred may be wrong: two of 10 have a chance of 1 in 230, and then six of 100 one of 1 in 1,800.
    found = count_alarms(kind, layout, 10, (4, 150))
    if max(found.stragglers, found.gates) > 1:
        found = count_alarms(kind, layout, 100, (4, 150))
    assert max(found.stragglers, found.gates) <= 5, found


@pytest.mark.parametrize("package", ["numpy", "duckdb"])
@pytest.mark.parametrize("verb", ["summary", "stragglers", "diff", "report"])
def test_without_the_extra_the_install_command_is_named(tmp_path: Path, verb: str, package: str) -> None:
    folder = run_of(tmp_path / "a", 1)
    code = f"import sys; sys.modules['{package}'] = None; from tracekit.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, verb, folder, *([folder] if verb == "diff" else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(": pip install 'tracekit-ml[explain]'")
