"""Rows as a table, CSV, JSON and Parquet: nothing lost, nothing that tears the text."""

from __future__ import annotations

import csv
import io
import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import MissingExtraError
from tracekit.view.query import Rows, as_csv, as_json, as_parquet, as_table

CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(max_size=5)
ROWS = st.integers(1, 4).flatmap(
    lambda width: st.builds(
        Rows, st.lists(st.text(), min_size=width, max_size=width), st.lists(st.tuples(*[CELLS] * width), max_size=5)
    )
)


@given(ROWS)
def test_table_has_one_line_a_row_whatever_is_in_it(rows: Rows) -> None:
    lines = as_table(rows).split("\n")
    assert len(lines) == len(rows.rows) + 3
    assert lines[-1] == ""


@given(ROWS)
def test_csv_and_json_can_be_read_back(rows: Rows) -> None:
    def text(cell: object) -> str:
        return "" if cell is None else cell.hex() if isinstance(cell, bytes) else str(cell)

    # csv itself cannot read a lone NUL or tell a line of one empty cell from an empty line.
    if not any("\0" in text(cell) for row in (rows.columns, *rows.rows) for cell in row) and len(rows.columns) > 1:
        back = list(csv.reader(io.StringIO(as_csv(rows), newline="")))
        assert back == [rows.columns, *([text(cell) for cell in row] for row in rows.rows)]
    document = json.loads(as_json(rows))
    assert document["columns"] == rows.columns
    for row, read in zip(rows.rows, document["rows"], strict=True):
        for cell, value in zip(row, read, strict=True):
            odd = isinstance(cell, bytes) or (isinstance(cell, float) and not math.isfinite(cell))
            assert value == (text(cell) if odd else cell)


def test_numbers_stand_at_the_right_and_null_is_empty() -> None:
    rows = Rows(["name", "n"], [("a", 1), (None, 20), ("long one", None)])
    assert as_table(rows) == "name       n\n--------  --\na          1\n          20\nlong one\n"
    assert as_table(Rows([], [])) == ""


def test_parquet_has_one_kind_a_column() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = Rows(
        ["n", "x", "mixed", "text", "blob", "n"],
        [(1, 1, 1, "a", b"\0", None), (2, 0.5, "b", None, b"", None), (None, None, None, "c", None, None)],
    )
    table = parquet.read_table(io.BytesIO(as_parquet(rows)))
    assert table.column_names == ["n", "x", "mixed", "text", "blob", "n_2"]
    assert [table.column(at).to_pylist() for at in range(6)] == [
        [1, 2, None],
        [1.0, 0.5, None],
        ["1", "b", None],
        ["a", None, "c"],
        [b"\0", b"", None],
        [None, None, None],
    ]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tracekit-ml\[parquet\]'"):
        as_parquet(Rows(["n"], [(1,)]))
