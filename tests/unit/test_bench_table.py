"""The rows of the benchmark say whether a bound is reached, and by how much it is missed."""

from __future__ import annotations

import pytest

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row


@pytest.mark.parametrize(
    ("median", "bounds", "verdict"),
    [
        (3.8, {"at_most": 3.8}, "met"),
        (4.75, {"at_most": 3.8}, "missed by 25%"),
        (2.5, {"at_least": 2.5}, "met"),
        (2.0, {"at_least": 2.5}, "missed by 20%"),
        (3.0, {"at_most": 0}, "missed by 3 x"),
        (3.0, {}, ""),
    ],
)
def test_a_bound_is_met_or_missed(median: float, bounds: dict[str, float], verdict: str) -> None:
    row = Row("marker", "what", Spread(median, 1.0, 9.0), " x", **bounds)
    assert row.cells()[3] == verdict
    assert row.as_json()["met"] is ({"met": True, "": None}.get(verdict, False))


def test_what_could_not_be_measured_neither_meets_nor_misses_its_bound() -> None:
    row = Row("marker", "what", None, " x", at_most=1.0, remarks="not installed (nvtx)")
    assert row.met is None
    assert row.cells() == ("what", "-", "at most 1 x", "", "not installed (nvtx)")
