"""The table of the fault matrix names every row, and tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROWS_OF = {"K": 8, "D": 7, "R": 9, "F": 7, "T": 7, "C": 2, "H": 3, "M": 7, "S": 4, "U": 2}


def rows() -> dict[str, list[str]]:
    """Return the tests of each row of the table."""
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {name: tests.split(", ") for name, _, _, tests in cells[1:]}


def test_every_row_is_in_the_table_once_and_in_order_with_tests_that_are_there() -> None:
    assert list(rows()) == [f"{letter}{number}" for letter, count in ROWS_OF.items() for number in range(1, count + 1)]
    missing = []
    for row, tests in rows().items():
        if tests == ["none"]:
            assert row == "S2", "a row without a test needs a reason that somebody has agreed to: name it here"
            continue
        for test in tests:
            path, _, name = test.partition("::")
            file = FOLDER.parents[1] / path if path.startswith("tests/") else FOLDER / path
            tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if not file.is_file() or (name and name not in functions):
                missing.append((row, test))
    assert missing == []
