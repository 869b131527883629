"""The table of the fault matrix names every row, and tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROWS_OF = {"K": 8, "D": 7, "R": 9, "F": 7, "T": 7, "C": 2, "H": 3, "M": 7, "S": 4, "U": 2}
NAMES = [f"{letter}{number}" for letter, count in ROWS_OF.items() for number in range(1, count + 1)]


def rows() -> dict[str, list[str]]:
    """Return the tests of each row of the table."""
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {name: tests.split(", ") for name, _, _, tests in cells[1:]}


def test_every_row_is_in_the_table_once_and_in_order() -> None:
    assert list(rows()) == NAMES
    assert len(NAMES) == 56


@pytest.mark.parametrize("row", NAMES)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    tests = rows()[row]
    if tests == ["none"]:
        assert row == "S2", "a row without a test needs a reason that somebody has agreed to: name it here"
        return
    for test in tests:
        path, _, name = test.partition("::")
        file = FOLDER.parents[1] / path if path.startswith("tests/") else FOLDER / path
        assert file.is_file(), f"{row}: there is no {path}"
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in functions, f"{row}: there is no {test}"
