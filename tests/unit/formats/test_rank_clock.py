"""The clock of a rank as a merged trace states it: whatever stands there is a clock that can be, or none."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.formats.merged_head import RankClock, stated_clock

GOOD = {"rank": 1, "source": "sync", "aligned": True, "offset_ns": 5, "drift_ppm": 1, "error_ns": 7, "words": "w"}


def test_a_clock_is_read_as_it_was_written() -> None:
    clock = RankClock(rank=1, source="sync", aligned=True, offset_ns=5, drift_ppm=1.0, error_ns=7, words="w")
    assert stated_clock(clock.to_json()) == clock == stated_clock(GOOD)


@pytest.mark.parametrize(
    "odd",
    [
        {"drift_ppm": 10**400},
        {"drift_ppm": "nan"},
        {"drift_ppm": float("inf")},
        {"error_ns": -1},
        {"error_ns": 2**62},
        {"offset_ns": True},
        {"aligned": 1},
        {"more": 1},
    ],
)
def test_what_no_clock_can_be_is_none(odd: dict[str, Any]) -> None:
    assert stated_clock({**GOOD, **odd}) is None
