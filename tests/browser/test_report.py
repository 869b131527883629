"""``tracekit report`` in a real browser, on a screen and on a phone, by day and by night."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.perfetto.browser import run_program
from tests.report_pages import EVIL, rank_trace
from tracekit.cli import main

if TYPE_CHECKING:
    from tests.perfetto import Browser

SIZES = {"screen": (1280, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a run whose names are awkward, with a slow rank and with losses."""
    folder = tmp_path_factory.mktemp("report")
    evil = f"{EVIL} {'very_long_name' * 30}"
    extra = (
        {"ph": "X", "name": evil, "cat": evil, "ts": 9200, "dur": 300},
        {"ph": "C", "name": evil, "ts": 5, "args": {evil: 1}},
        {"ph": "C", "name": evil, "ts": 900_000, "args": {evil: 2}},
        {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 5000, "dur": 900, "tid": 7},
        {"ph": "M", "name": "tracekit_summary", "args": {"dropped": {evil: 3}, "failures": {}}},
    )
    for rank in range(4):
        rank_trace(folder / "run" / f"rank{rank}.json", rank, slow_ms=1.5 * (rank == 2), steps=60, extra=extra)
    output = folder / "report.html"
    assert main(["report", str(folder / "run"), "-o", str(output), "--title", f"Nightly {EVIL}"]) == 0
    return output


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_report_opens_without_errors_and_fits_the_screen(
    browser: Browser, page: Path, tmp_path: Path, size: str, scheme: str
) -> None:
    width, height = SIZES[size]
    png = tmp_path / "page.png"
    program, shown = Path(__file__).with_name("page.js"), {"width": width, "height": height, "scheme": scheme}
    seen = run_program(program, page, address=page.as_uri(), png=str(png), **shown)

    assert seen["problems"] == []
    assert seen["requests"] == [page.as_uri()]
    assert seen["scripts"] == ['<link rel="icon" href="data:,">']
    assert (seen["wider"], seen["wide"]) == (0, [])
    assert seen["faint"] == []
    assert png.stat().st_size > 10_000

    assert (seen["lang"], seen["title"].startswith("Nightly </script>")) == ("en", True)
    levels = [heading["level"] for heading in seen["headings"]]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert [heading["text"] for heading in seen["headings"] if heading["level"] == 2] == [
        *("Answers", "Step time", "Ranks", "Stages of a step", "Stragglers", "Devices", "Markers and gaps"),
        *("Counters", "Clocks", "What was lost", "What was read"),
    ]
    roles = [landmark["role"] for landmark in seen["landmarks"]]
    assert [roles.count(role) for role in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    assert all(landmark["name"] for landmark in seen["landmarks"] if landmark["role"] in ("nav", "section"))
    assert len(seen["images"]) >= 5
    assert all(image["name"] and image["description"] for image in seen["images"])
    assert all(table["caption"] and set(table["scopes"]) == {"col", "row"} for table in seen["tables"])
    assert "Rank 2 holds the others up in forward" in seen["text"]
    # Figures are the page's own, and names are text.
    assert "</script><script>alert(1)</script>" in seen["text"]
    assert re.search(r"A step takes 10\.\d ms on average", seen["text"])
