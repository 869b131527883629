"""The benchmark runs from end to end, with counts so small that no figure means anything: none is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.grown_traces import DLRM, real_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a minute and more on a quiet machine

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"

HALVES = ("recording", "merge")


def bounded_rows(half: str) -> set[str]:
    """Return the rows of the published table that have a bound, without the numbers, which follow from the counts."""
    recording, _, merge = (BENCHMARKS / "README.md").read_text().partition("# What merging costs")
    recording = recording.partition("## Below `tracekit run`")[0]
    found = re.findall(
        r"^\| (.+?) \| .+? \| at (?:least|most) ", recording if half == "recording" else merge, re.MULTILINE
    )
    real = ("DLRM", "torch 2.13", "gzip in, gzip out, nothing") if not real_ranks(DLRM) else ()  # need real traces
    return {without_numbers(what) for what in found if not what.startswith(real)}


def without_numbers(what: str) -> str:
    return re.sub(r"\d[\d.,]*", "N", what)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("half", HALVES)
def test_every_promise_has_a_row_with_its_bound_that_is_measured_or_says_what_is_missing(
    tmp_path: Path, half: str
) -> None:
    pytest.importorskip("matplotlib")
    traces = tmp_path / "traces"
    traces.mkdir()
    (tmp_path / "README.md").write_bytes((BENCHMARKS / "README.md").read_bytes())
    written = ["--write", str(tmp_path), "--folder", str(traces)] if half == "merge" else []
    done = bench(half, "--json", str(tmp_path / "rows.json"), "--markdown", *written)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    bounded = {without_numbers(row["what"]) for row in rows if (row["at_most"], row["at_least"]) != (None, None)}
    assert len(bounded) > 10
    assert bounded_rows(half) <= bounded
    for row in rows:
        assert f"| {row['what']} |" in done.stdout
        if row["measured"] is None:
            assert row["remarks"].startswith(("not built", "not installed (")), row
        else:
            assert row["measured"]["low"] <= row["measured"]["median"] <= row["measured"]["high"], row
    assert list(traces.iterdir()) == []
    if half == "merge":
        before, after = (folder.joinpath("README.md").read_text() for folder in (BENCHMARKS, tmp_path))
        begin, end = "<!-- merge table: begin -->", "<!-- merge table: end -->"
        assert before.partition(begin)[0] == after.partition(begin)[0]
        assert before.partition(end)[2] == after.partition(end)[2]
        table = after.partition(begin)[2].partition(end)[0]
        assert all(f"| {row['what']} |" in table for row in rows)
        assert "](merge_growth.svg)" in table
        assert "ranks, small files" in (tmp_path / "merge_growth.svg").read_text()


def test_arguments_that_cannot_be_followed_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--only", "speed"], "training-loop"),
        (["merge", "--only", "merge-growth", "--write"], "--write wants the whole table"),
        (["merge", "--write", str(tmp_path)], "README.md"),
    ):
        done = bench(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
