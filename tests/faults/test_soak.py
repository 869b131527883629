"""U1: a bounded part of the soak; see `tests.faults.soak` for the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import GOOD, bites, in_the_long_run
from tests.faults.soak import main, soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


@pytest.mark.parametrize(
    ("writer", "events"),
    [(GOOD, 40_000), *(in_the_long_run(writer, 120_000) for writer in (GOOD, "loses silently", "object at close"))],
)
def test_what_was_flushed_is_there_after_kills_and_forks(
    tmp_path: Path, engine: Engine, writer: str, events: int
) -> None:
    with bites(writer):
        report = soak(tmp_path, engine, events=events, lives=2, writer=writer)
        assert report.losses == []
        assert report.kills == 1


@pytest.mark.slow
def test_memory_stays_flat_and_nothing_that_was_flushed_is_lost(tmp_path: Path, engine: Engine) -> None:
    report = soak(tmp_path, engine, events=1_600_000, lives=4, writer=GOOD)
    print("\n".join(report.lines()))
    assert report.losses == []
    assert report.emitted > 1_000_000
    assert report.forks > 0
    assert max(report.growth_kb) < 50 * 1024


@pytest.mark.slow
def test_the_command_of_the_whole_soak_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--events", "20e3", "--lives", "1", "--threads", "2"]) == 0
    assert "by 1 processes" in capsys.readouterr().out
