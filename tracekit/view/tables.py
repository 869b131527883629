"""Rows as a table, CSV, JSON and Parquet: the only module that imports ``pyarrow``."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tracekit.errors import MissingExtraError

if TYPE_CHECKING:
    from tracekit.view.query import Cell, Rows


def as_table(rows: Rows) -> str:
    """Return rows as a table: columns under their names, numbers at the right, an empty cell for NULL."""
    if not rows.columns:
        return ""
    names, texts, numbers = table_cells(rows)
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, numbers, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "".join(f"{text}\n" for text in (line(names), rule, *map(line, texts)))


def table_cells(rows: Rows) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return the names of the columns, the cells as text, and True for each column of numbers."""
    names = [_text(name) for name in rows.columns]
    texts = [[_text(cell) for cell in row] for row in rows.rows]
    numbers = [all(isinstance(row[at], int | float | None) for row in rows.rows) for at in range(len(rows.columns))]
    return names, texts, numbers


def as_csv(rows: Rows) -> str:
    """Return rows as CSV (RFC 4180): the names of the columns first, an empty cell for NULL."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows.columns)
    writer.writerows([_raw_text(cell) for cell in row] for row in rows.rows)
    return text.getvalue()


def as_json(rows: Rows) -> str:
    """Return ``{"columns": [...], "rows": [[...], ...]}``; NaN, infinities, and bytes in hexadecimal, are strings."""
    document = {"columns": rows.columns, "rows": [[_json_cell(cell) for cell in row] for row in rows.rows]}
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def as_parquet(rows: Rows) -> bytes:
    """Return rows as a Parquet file; raise MissingExtraError without pyarrow.

    A column of numbers and strings becomes strings. The second column of a name becomes ``NAME_2``: readers refuse equal names.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "Parquet") from error
    columns = []
    for at in range(len(rows.columns)):
        cells = [row[at] for row in rows.rows]
        kinds = {type(cell) for cell in cells if cell is not None}
        if len(kinds) > 1:
            # SQLite accepts any value in any column, Parquet only one type.
            convert = float if kinds == {int, float} else _raw_text
            cells = [None if cell is None else convert(cell) for cell in cells]
        columns.append(arrow.array(cells))
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_arrays(columns, names=_unique(rows.columns)), sink)
    return bytes(sink.getvalue())


FORMATS: Final[dict[str, Callable[[Rows], str | bytes]]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
}


def _unique(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        found.append(next(one for one in (name, *itertools.islice(others, len(names))) if one not in found))
    return found


def _raw_text(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell.hex() if isinstance(cell, bytes) else str(cell)


def _text(cell: Cell) -> str:
    # A line break within a cell would tear the table.
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in _raw_text(cell))


def _json_cell(cell: Cell) -> Cell:
    if isinstance(cell, bytes) or (isinstance(cell, float) and not math.isfinite(cell)):
        return _raw_text(cell)
    return cell
