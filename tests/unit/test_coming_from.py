"""The pages for users of other profilers answer every known weakness of those, and name tests and names that are there."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "coming_from"

# How many weaknesses of each system are known, by the letter that they are numbered with.
WEAKNESSES = {
    "megatron_timers.md": {"T": 15},
    "composer.md": {"S": 10, "P": 25},
    "thunder_time_profiler.md": {"D": 11},
    "jax_profiler.md": {"J": 11},
}


def rows(page: Path) -> list[list[str]]:
    """Return the cells of every row of every table of a page, without the heads."""
    lines = page.read_text(encoding="utf-8").splitlines()
    table = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not following.startswith("|--") and not following.startswith("| --")
    ]
    return [cells for cells in table if not set("".join(cells)) <= set("-: ")]


@cache
def functions_of(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("name", WEAKNESSES)
def test_every_weakness_is_answered_once_and_proved_or_given_a_reason(name: str) -> None:
    numbered = {cells[0]: cells for cells in rows(PAGES / name) if re.fullmatch(r"[A-Z]\d+", cells[0])}
    wanted = [f"{letter}{n}" for letter, count in WEAKNESSES[name].items() for n in range(1, count + 1)]
    assert sorted(numbered) == sorted(wanted)
    for number, (_, weakness, answer, proof) in numbered.items():
        assert weakness, number
        assert answer, number
        assert "`tests/" in proof or proof.startswith("none: "), f"{number}: a test, or 'none: ' and the reason"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    for test in re.findall(r"`(tests/[^`]+)`", page.read_text(encoding="utf-8")):
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), f"there is no {path}"
        assert not name or name.partition("[")[0] in functions_of(ROOT / path), f"there is no {test}"


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
