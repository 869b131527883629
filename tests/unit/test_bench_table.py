"""The rows of the benchmark say whether a bound is reached, and by how much it is missed."""

from __future__ import annotations

import pytest

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row, between_markers


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


MARKERS = ("<!-- begin -->", "<!-- end -->")


def test_a_table_replaces_the_one_before_and_nothing_else() -> None:
    document = "# Title\n\n<!-- begin -->\nold\nlines\n<!-- end -->\n\nafter\n"
    written = between_markers(document, MARKERS, "| new |")
    assert written == "# Title\n\n<!-- begin -->\n| new |\n<!-- end -->\n\nafter\n"
    assert between_markers(written, MARKERS, "old\nlines") == document


@pytest.mark.parametrize(
    "document",
    [
        "",
        "<!-- begin -->\nno end\n",
        "<!-- end -->\nwrong order\n<!-- begin -->\n",
        "<!-- begin -->\na\n<!-- end -->\n<!-- begin -->\nb\n<!-- end -->\n",
    ],
)
def test_a_document_without_a_place_for_the_table_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="must hold the lines <!-- begin --> and <!-- end -->"):
        between_markers(document, MARKERS, "table")
