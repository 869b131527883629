"""``tracekit stragglers`` on runs with known delays, and on equal ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verdict_runs import command, count_alarms, drawn_times, write_run
from tests.verdict_simulation import LAYOUTS, NOISES, STAGES, STEP_NS, WAIT, own_times, with_waiting
from tracekit import find_stragglers
from tracekit.check.schemas import compile_schema

if TYPE_CHECKING:
    from pathlib import Path

    from tests.verdict_simulation import Floats

DATALOADER = STAGES.index("dataloader")
FORWARD = STAGES.index("forward")


def equal_ranks(seed: int, ranks: int, steps: int, noise: str = "independent 3%") -> Floats:
    return own_times(np.random.default_rng(seed), NOISES[noise], (ranks, steps), shared=True)


def test_stall_is_reported_with_its_rank_stage_and_cost_and_warm_up_is_named(tmp_path: Path) -> None:
    times = equal_ranks(1, 8, 124, "AR(1) 0.9 3%")
    times[3, 20:23, DATALOADER] += 120e6
    times[:, :2] *= np.array([5, 2])[None, :, None]
    folder = write_run(tmp_path / "run", with_waiting(times, WAIT), collectives=True)
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


def test_rank_that_stalls_again_and_again_is_exit_code_3(tmp_path: Path) -> None:
    times = equal_ranks(2, 4, 150, "independent 10%")
    times[1, 5::10, FORWARD] += 1.5 * STEP_NS
    code, text = command(["stragglers", write_run(tmp_path / "run", with_waiting(times, WAIT), collectives=True)])
    assert code == 3
    assert "rank 1 stalled 150 ms each in forward; all ranks waited; " in text or "rank 1 stalled 14" in text
    assert "; more often than chance gives to one of equal ranks" in text


def test_slow_rank_is_exit_code_3_and_holds_others_up_only_where_they_wait(tmp_path: Path) -> None:
    times = equal_ranks(3, 4, 100)
    times[2, :, FORWARD] += 0.1 * STEP_NS
    waiting = write_run(tmp_path / "waiting", with_waiting(times, WAIT), collectives=True)
    code, text = command(["stragglers", waiting])
    assert code == 3
    assert "the ranks are together at the end of all_reduce" in text
    assert "\nrank 2 holds the others up in forward: " in text
    assert command(["stragglers", "--at-least", "40%", waiting])[0] == 0
    code, text = command(["stragglers", write_run(tmp_path / "free", times, collectives=False)])
    assert code == 3
    assert "\nrank 2 is slower in forward: " in text
    assert "holds" not in text


def test_steps_that_overlap_by_rounding_are_all_compared(tmp_path: Path) -> None:
    times = drawn_times(np.random.default_rng(4), "independent 3%", (2, 100), "markers", 0)
    folder = write_run(tmp_path / "run", times, collectives=False)
    for path in (tmp_path / "run").iterdir():
        events = json.loads(path.read_text())
        for event in events:
            if event["name"] == "batch":
                event["dur"] = round(event["dur"] + 0.001, 3)
        path.write_text(json.dumps(events))
    assert find_stragglers([folder]).steps >= 99


def test_names_do_not_speak_to_the_terminal(tmp_path: Path) -> None:
    times = equal_ranks(5, 2, 20)
    times[1, :, FORWARD] += STEP_NS
    folder = write_run(tmp_path / "run", times, collectives=False)
    for path in (tmp_path / "run").iterdir():
        path.write_text(path.read_text().replace("forward", "\\u001b[31mevil"))
    text = command(["stragglers", folder])[1]
    assert "evil" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("share", ["x", "-1%", "100%", "nan", "1e999"])
def test_wrong_share_is_exit_code_2(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["stragglers", f"--sure={share}", "x.json"])[0] == 2
    assert "is no share from 0 to below 100%" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [name for name, noise in NOISES.items() if noise.required])
def test_equal_runs_pass_stragglers_and_diff(kind: str, layout: str) -> None:
    # One in a hundred may be wrong: two of 10 have a chance of 1 in 230, and then six of 100 one of 1 in 1,800.
    found = count_alarms(kind, layout, 10, (4, 150))
    if max(found.stragglers, found.gates) > 1:
        found = count_alarms(kind, layout, 100, (4, 150))
    assert max(found.stragglers, found.gates) <= 5, found
