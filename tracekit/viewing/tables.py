"""Rows as a table for people, as CSV, JSON and Parquet: the only module that imports ``pyarrow``."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from typing import TYPE_CHECKING, Final

from tracekit.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.viewing.query import Cell, Rows

__all__ = ["FORMATS", "as_csv", "as_json", "as_parquet", "as_table"]


def as_table(rows: Rows) -> str:
    """Return rows as a table: columns under their names, numbers at the right, an empty cell for NULL."""
    if not rows.columns:
        return ""
    names = [_text(name) for name in rows.columns]
    texts = [[_text(cell) for cell in row] for row in rows.rows]
    numbers = [all(isinstance(row[at], int | float | None) for row in rows.rows) for at in range(len(rows.columns))]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, numbers, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "".join(f"{text}\n" for text in (line(names), rule, *map(line, texts)))


def as_csv(rows: Rows) -> str:
    """Return rows as CSV (RFC 4180): the names of the columns first, an empty cell for NULL."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows.columns)
    writer.writerows([_raw_text(cell) for cell in row] for row in rows.rows)
    return text.getvalue()


def as_json(rows: Rows) -> str:
    """Return ``{"columns": [...], "rows": [[...], ...]}``; what JSON has no number for, and bytes in hexadecimal, as texts."""
    document = {"columns": rows.columns, "rows": [[_json_cell(cell) for cell in row] for row in rows.rows]}
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def as_parquet(rows: Rows) -> bytes:
    """Return rows as a Parquet file.

    Of a column that holds texts among numbers, all are texts; of columns of one name, which readers refuse, the second becomes
    ``NAME_2``.

    Raises:
        MissingExtraError: pyarrow is not installed.
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
            # SQLite takes any value in any column, Parquet one kind.
            cells = [_as_one_kind(cell, numbers=kinds == {int, float}) for cell in cells]
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
"""What rows can be written as."""


def _unique(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number = 1
        unique = name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _as_one_kind(cell: Cell, *, numbers: bool) -> Cell:
    if cell is None:
        return None
    return float(cell) if numbers else _raw_text(cell)


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
