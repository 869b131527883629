"""Real runs of four ranks over gloo in which one rank is slow in one stage: it must be named, whatever the clocks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gloo_runs import Run, drawn_runs, record, skew_clocks, stage_times, write_variation
from tracekit.analysis import find_stragglers

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.analysis.stragglers_report import StragglerReport

LEAST_NAMED = 19


def first_named(report: StragglerReport) -> tuple[int, str] | None:
    return (report.stragglers[0].rank, report.stragglers[0].stage) if report.stragglers else None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording of two runs: one in which all ranks are equal, and one with a slow rank."""
    folder = tmp_path_factory.mktemp("gloo")
    record(folder, [Run("even", 1, -1, ""), Run("slow", 2, rank=2, stage="forward", delay_ms=8.0, nested=True)])
    return folder


def test_the_slow_rank_of_a_real_run_is_named(recorded: Path) -> None:
    report = find_stragglers([str(recorded / "slow")])
    assert first_named(report) == (2, "forward")
    assert 4e6 < report.stragglers[0].mean_ns < 16e6


def test_twenty_drawn_delays_put_into_a_real_run_are_named_with_clocks_apart_by_seconds(
    recorded: Path, tmp_path: Path
) -> None:
    times = stage_times(recorded / "even")
    named = []
    for number, run in enumerate(drawn_runs(20, seed=11)):
        folder = tmp_path / run.name
        write_variation(times, run, folder)
        if number % 2:
            skew_clocks(folder, run.seed)
        named.append(first_named(find_stragglers([str(folder)])) == (run.rank, run.stage))
    assert sum(named) >= LEAST_NAMED


@pytest.mark.slow
def test_of_twenty_drawn_real_runs_nineteen_stragglers_are_named(tmp_path: Path) -> None:
    runs = drawn_runs(20, seed=2)
    record(tmp_path, runs)
    found = {}
    for number, run in enumerate(runs):
        if number % 2:
            skew_clocks(tmp_path / run.name, run.seed)
        found[run] = first_named(find_stragglers([str(tmp_path / run.name)]))
    missed = {run: name for run, name in found.items() if name != (run.rank, run.stage)}
    assert len(runs) - len(missed) >= LEAST_NAMED, missed
