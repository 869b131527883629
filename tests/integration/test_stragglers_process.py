"""Real runs of four ranks over gloo in which one rank is slow in one stage: it must be named, whatever the clocks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gloo_runs import RANKS, Run, clocks_apart, drawn_runs, record, skew_clocks, stage_times, write_variation
from tracekit import find_stragglers, merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.explain.stragglers_results import StragglerReport

MOST_MISSED = 1
APART = Run("apart", 3, rank=1, stage="backward", delay_ms=8.0, apart=clocks_apart(5))


def first_named(report: StragglerReport) -> tuple[int, str] | None:
    return (report.stragglers[0].rank, report.stragglers[0].stage) if report.stragglers else None


def is_missed(report: StragglerReport, run: Run) -> bool:
    """Return True unless the rank and stage are named, or the report states that the noise hides a delay of this size."""
    if report.stragglers or report.sensitivity is None:
        return first_named(report) != (run.rank, run.stage)
    return run.delay_ms * run.often * 1e6 > report.sensitivity.limit_share * report.step_ns


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording of runs: one in which all ranks are equal, one with a slow rank, one with clocks apart besides."""
    folder = tmp_path_factory.mktemp("gloo")
    slow = Run("slow", 2, rank=2, stage="forward", delay_ms=8.0, nested=True)
    record(folder, [Run("even", 1, -1, ""), slow, APART])
    return folder


def test_the_slow_rank_of_a_real_run_is_named(recorded: Path) -> None:
    report = find_stragglers([str(recorded / "slow")])
    assert first_named(report) == (2, "forward")
    assert 4e6 < report.stragglers[0].median_ns < 16e6  # the mean is moved by one pause of one rank


def test_the_slow_rank_is_named_where_clocks_were_apart_while_it_ran(recorded: Path) -> None:
    report = find_stragglers([str(recorded / "apart")])
    assert first_named(report) == (1, "backward")
    assert 4e6 < report.stragglers[0].median_ns < 16e6  # the mean is moved by one pause of one rank


def test_clocks_that_were_apart_are_brought_together(recorded: Path, tmp_path: Path) -> None:
    """By the exchanges of the run itself; how far the clocks were apart is known here, and to nobody else."""
    merged = tmp_path / "merged.json"
    report = merge_traces(str(merged), [str(recorded / "apart")])
    assert [(rank.source, rank.aligned) for rank in report.ranks] == [("reference", True)] + [("sync", True)] * (
        RANKS - 1
    )
    for rank in report.ranks[1:]:
        assert rank.error_ns is not None
        ahead_ns = APART.apart[rank.rank][0] - APART.apart[0][0]
        # Beside the exchange, the anchors of both ranks can be off, and the wall clock is slewed.
        assert abs(rank.offset_ns + ahead_ns) < rank.error_ns + 1_000_000
        assert rank.error_ns < 50_000_000
    assert first_named(find_stragglers([str(merged)])) == (1, "backward")


@pytest.mark.slow
def test_twenty_drawn_delays_put_into_a_real_run_are_named_with_clocks_apart_by_seconds(
    recorded: Path, tmp_path: Path
) -> None:
    times = stage_times(recorded / "even")
    missed = []
    for number, run in enumerate(drawn_runs(20, seed=11)):
        folder = tmp_path / run.name
        write_variation(times, run, folder)
        if number % 2:
            skew_clocks(folder, run.seed)
        if is_missed(find_stragglers([str(folder)]), run):
            missed.append(run)
    assert len(missed) <= MOST_MISSED, missed


@pytest.mark.slow
def test_of_twenty_drawn_real_runs_nineteen_stragglers_are_named(tmp_path: Path) -> None:
    """Of half of them the clocks are seconds apart while they run."""
    runs = drawn_runs(20, seed=2, apart=True)
    record(tmp_path, runs)
    missed = [run for run in runs if is_missed(find_stragglers([str(tmp_path / run.name)]), run)]
    assert len(missed) <= MOST_MISSED, missed
