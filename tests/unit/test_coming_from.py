"""The names of tracekit on the pages for users of other profilers exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "coming_from"


def rows(page: Path) -> list[list[str]]:
    """Return the cells of every row of every table of a page, without the heads."""
    lines = page.read_text(encoding="utf-8").splitlines()
    table = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not following.startswith("|--") and not following.startswith("| --")
    ]
    return [cells for cells in table if not set("".join(cells)) <= set("-: ")]


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_names_of_tracekit_on_a_page_can_be_imported(page: Path) -> None:
    ours = " ".join(cells[1] for cells in rows(page) if len(cells) == 3)
    for name in re.findall(r"`(tracekit(?:\.\w+)+)", ours):
        found: object = importlib.import_module("tracekit")
        path = "tracekit"
        for part in name.split(".")[1:]:
            path += "." + part
            if not hasattr(found, part):
                importlib.import_module(path)
            found = getattr(found, part)
