"""The rows of the benchmark say whether a bound is reached, and by how much it is missed."""

from __future__ import annotations

import pytest

from tests.benchmarks.measure import Spread
from tests.benchmarks.table import Row, between_markers

MARKERS = ("<!-- begin -->", "<!-- end -->")


@pytest.mark.parametrize(
    ("median", "bounds", "verdict", "met"),
    [
        (3.8, {"at_most": 3.8}, "met", True),
        (4.75, {"at_most": 3.8}, "missed by 25%", False),
        (2.5, {"at_least": 2.5}, "met", True),
        (2.0, {"at_least": 2.5}, "missed by 20%", False),
        (3.0, {"at_most": 0}, "missed by 3 x", False),
        (3.0, {}, "", None),
        (None, {"at_most": 1.0}, "", None),
    ],
)
def test_a_bound_is_met_or_missed(
    median: float | None, bounds: dict[str, float], verdict: str, met: bool | None
) -> None:
    row = Row("marker", "what", None if median is None else Spread(median, 1.0, 9.0), " x", **bounds)
    assert (row.cells()[3], row.met) == (verdict, met)


def test_a_table_replaces_the_one_before_and_nothing_else() -> None:
    document = "# Title\n\n<!-- begin -->\nold\nlines\n<!-- end -->\n\nafter\n"
    written = between_markers(document, MARKERS, "| new |")
    assert written == "# Title\n\n<!-- begin -->\n| new |\n<!-- end -->\n\nafter\n"
    assert between_markers(written, MARKERS, "old\nlines") == document


@pytest.mark.parametrize("document", ["", "<!-- end -->\nwrong order\n<!-- begin -->\n"])
def test_a_document_without_a_place_for_the_table_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="must hold the lines <!-- begin --> and <!-- end -->"):
        between_markers(document, MARKERS, "table")
