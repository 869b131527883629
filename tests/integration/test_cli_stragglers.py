"""``tracekit stragglers`` as a person and as a script meets it."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.gloo_runs import RANKS, STAGES_MS, STEPS, Run, write_variation
from tracekit.check.schemas import compile_schema
from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def even() -> list[list[dict[str, int]]]:
    """The stage times of ranks that are all alike."""
    random = Random(4)
    names = [*STAGES_MS, "all_reduce"]
    return [
        [{name: random.randrange(900_000, 1_100_000) for name in names} for _ in range(STEPS)] for _ in range(RANKS)
    ]


def test_a_straggler_is_named_and_is_exit_code_3(
    tmp_path: Path, even: list[list[dict[str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_variation(even, Run("a", 1, 3, "backward", delay_ms=0.5), tmp_path / "a")
    assert main(["stragglers", str(tmp_path / "a")]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert "the ranks are together at the end of all_reduce" in out
    assert "rank 3 holds the others up in backward: " in out
    assert main(["stragglers", "--json", str(tmp_path / "a" / "rank*.json")]) == 3
    document = json.loads(capsys.readouterr().out)
    assert compile_schema("stragglers")(document) is None
    assert (document["stragglers"][0]["rank"], document["stragglers"][0]["stage"]) == (3, "backward")
    assert main(["stragglers", "--at-least", "40%", str(tmp_path / "a")]) == 0


def test_equal_ranks_are_exit_code_0(
    tmp_path: Path, even: list[list[dict[str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_variation(even, Run("a", 1, -1, ""), tmp_path / "a")
    assert main(["stragglers", str(tmp_path / "a")]) == 0
    assert re.search(
        r"\nNo rank is slower by more than [\d.]+% of a step \(39 steps of independent noise", capsys.readouterr().out
    )


def test_names_from_a_trace_are_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        events = []
        for step in range(8):
            place = {"ph": "X", "pid": 1, "ts": step * 10}
            events.append(
                {**place, "tid": 9, "dur": 10, "name": "batch", "cat": "training loop", "args": {"batch": step}}
            )
            events.append({**place, "tid": 1, "dur": 2 + 5 * rank, "name": "\x1b[31mevil"})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(events))
    assert main(["stragglers", str(tmp_path)]) in (0, 3)
    out = capsys.readouterr().out
    assert "evil" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("share", ["x", "-1%", "100%", "nan", "1e999"])
def test_wrong_shares_are_exit_code_2(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stragglers", f"--sure={share}", "x.json"]) == 2
    assert "is no share from 0 to below 100%" in capsys.readouterr().err
