"""The table of the fault matrix names every row, and tests that exist."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROWS_OF = {"K": 8, "D": 7, "R": 9, "F": 7, "T": 7, "C": 2, "H": 3, "M": 8, "S": 4, "U": 2}


def test_every_row_is_in_the_table_once_and_in_order_with_tests_that_exist() -> None:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    numbers = [f"{letter}{number}" for letter, count in ROWS_OF.items() for number in range(1, count + 1)]
    assert [name for name, *_ in rows] == numbers
    for row, _, _, tests in rows:
        for test in tests.split(", "):
            path, _, name = test.partition("::")
            file = FOLDER.parents[1] / path if path.startswith("tests/") else FOLDER / path
            assert not name or f"def {name}(" in file.read_text(encoding="utf-8"), (row, test)
            assert file.is_file(), (row, test)
