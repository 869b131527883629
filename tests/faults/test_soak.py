"""U1: a bounded part of the soak; see `tests.faults.soak` for the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.soak import soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


@pytest.mark.parametrize("events", [40_000, pytest.param(120_000, marks=pytest.mark.slow)])
def test_what_was_flushed_is_there_after_kills_and_forks(tmp_path: Path, engine: Engine, events: int) -> None:
    report = soak(tmp_path, engine, events=events, lives=2)
    assert report.losses == []
    assert report.kills == 1


@pytest.mark.slow
def test_memory_stays_flat_and_nothing_that_was_flushed_is_lost(tmp_path: Path, engine: Engine) -> None:
    report = soak(tmp_path, engine, events=1_600_000, lives=4)
    print("\n".join(report.lines()))
    assert report.losses == []
    assert report.emitted > 1_000_000
    assert report.forks > 0
    assert max(report.growth_kb) < 50 * 1024
