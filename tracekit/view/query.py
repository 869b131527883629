"""Query a trace in SQL with Perfetto's trace processor, and write rows as a table, CSV, JSON and Parquet.

The only module that imports ``perfetto`` and ``pyarrow``.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tracekit.errors import MissingExtraError, QueryError, TraceFormatError, TracekitError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.flight_dump import is_flight_dump
from tracekit.formats.pftrace import WireError, fields
from tracekit.storage import basename, open_read, size_bytes, without_secrets
from tracekit.structs import Struct

Cell = None | int | float | str | bytes
_PIECE_BYTES: Final = 16 << 20
_ERROR_OF_THE_END: Final = 1  # FinalizeDataResult.error
_HOW_TO_GET_IT: Final = (
    "give a trace_processor_shell with --trace-processor PATH or $TRACEKIT_TRACE_PROCESSOR (see "
    "https://perfetto.dev/docs/analysis/trace-processor)"
)


class Rows(Struct, frozen=True):
    """The result of a query: names of columns, which may repeat, and rows of values."""

    columns: list[str]
    rows: list[tuple[Cell, ...]]


def query(
    path: str,  # a file or URL of any format that Perfetto knows
    sql: str,  # PerfettoSQL
    *,
    trace_processor: str | None = None,  # ``trace_processor_shell``; by default the package downloads it (10 MB)
    progress: Callable[[float, str], None] | None = None,
) -> Rows:
    """Load a trace into a new trace processor and return the result of a query, or of its last statement.

    Raises MissingExtraError without the package; QueryError if the trace processor cannot be downloaded or started, has died, or
    the query is wrong; StorageError if the trace cannot be read; TraceFormatError if the trace processor does not take it.
    """
    tell = progress or (lambda share, what: None)
    shown = without_secrets(path)
    is_dump = False
    with contextlib.suppress(TraceFormatError, MissingExtraError), ByteStream(path) as stream:  # not archives
        is_dump = is_flight_dump(stream.peek())
    if is_dump:
        raise TraceFormatError(
            shown,
            "this is a dump of torch's flight recorder, which the trace processor does not know; tracekit convert "
            f"{shown} OUTPUT.json makes a trace of it",
        )
    with open_read(path) as file:  # before a program is downloaded
        tell(0.0, "starting the trace processor")
        processor = _start(trace_processor)
        try:
            _load(processor.http, file, path, tell)
            tell(1.0, "running the query")
            answer = processor.http.execute_query(sql)
        except TracekitError:
            raise
        except OSError as error:
            raise QueryError(f"{shown}: the trace processor has ended: {error}") from error
        except Exception as error:  # protobuf's errors, where the answer is cut off or missing
            raise QueryError(
                f"{shown}: what the trace processor answers cannot be read, as when it has run out of memory "
                f"({type(error).__name__}: {error})"
            ) from error
        finally:
            processor.close()
    if answer.error:
        raise QueryError(f"the query cannot be run: {answer.error.strip()}")
    return Rows(list(answer.column_names), _rows(answer))


def _start(program: str | None) -> Any:
    """Return perfetto's ``TraceProcessor``, without a trace."""
    try:
        from perfetto.trace_processor import (
            TraceProcessor,
            TraceProcessorConfig,
        )
    except ImportError as error:
        raise MissingExtraError("the package perfetto", "perfetto", "tracekit query") from error
    if program is not None and not os.access(program, os.X_OK):
        what = "cannot be run as a program" if Path(program).exists() else "is not there"
        raise QueryError(f"the trace processor {program} {what}; {_HOW_TO_GET_IT}")
    try:
        # The package prints a message about the download to stdout, where the rows go.
        with contextlib.redirect_stdout(sys.stderr):
            return TraceProcessor(config=TraceProcessorConfig(bin_path=program))
    except subprocess.CalledProcessError as error:
        raise QueryError(
            f"the trace processor cannot be downloaded ({error.cmd[0]} ended with {error.returncode}); {_HOW_TO_GET_IT}"
        ) from error
    except Exception as error:
        # The package raises many types of errors.
        raise QueryError(f"the trace processor cannot be started: {error}; {_HOW_TO_GET_IT}") from error


def _load(processor: Any, file: Any, path: str, tell: Callable[[float, str], None]) -> None:
    total = size_bytes(path) or 1
    done = 0
    while piece := file.read(_PIECE_BYTES):
        result = processor.parse(piece)
        if result.error:
            raise TraceFormatError(without_secrets(path), f"the trace processor does not take it: {result.error}")
        done += len(piece)
        tell(min(1.0, done / total), f"loading {basename(path)}")
    # A file that ends too early is only detected here, and the package does not check for that.
    problem = _error_at_the_end(processor.notify_eof())
    if problem:
        raise TraceFormatError(without_secrets(path), f"the trace processor does not take it: {problem}")


def _error_at_the_end(answer: bytes) -> str:
    try:
        texts = [value for number, value in fields(answer or b"") if number == _ERROR_OF_THE_END]
    except WireError:
        return ""
    return "".join(text.decode("utf-8", "replace") for text in texts if isinstance(text, bytes))


def _rows(answer: Any) -> list[tuple[Cell, ...]]:
    """Return the rows of a ``QueryResult``, which has the values by batch and type."""
    width = len(answer.column_names)
    cells: list[Cell] = []
    for batch in answer.batch:
        kinds = type(batch)
        # Strings of a batch are in one text, each ended by a NUL.
        strings = batch.string_cells
        if isinstance(strings, bytes):
            strings = strings.decode("utf-8", "replace")
        sources: dict[int, Any] = {
            kinds.CELL_VARINT: iter(batch.varint_cells),
            kinds.CELL_FLOAT64: iter(batch.float64_cells),
            kinds.CELL_STRING: iter(strings.split("\0")),
            kinds.CELL_BLOB: iter(batch.blob_cells),
        }
        cells += [None if kind == kinds.CELL_NULL else next(sources[kind]) for kind in batch.cells]
    return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)] if width else []


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
