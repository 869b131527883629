"""``tracekit query TRACES SQL``: queries traces in SQL, with the event table or with Perfetto's trace processor."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracekit.arguments import resolve_path
from tracekit.cli.arguments import add_no_cache, add_option, add_output, add_traces, keeps_cache, positive, seconds
from tracekit.cli.terminal import OK, ProgressBar, complain, print_answer, print_lines, print_table
from tracekit.errors import ConfigError
from tracekit.processors import usable_processors
from tracekit.storage import atomic_write, refuse_existing
from tracekit.table.database import Limits
from tracekit.table.schema import schema_text
from tracekit.view.query import FORMATS, Cell, Rows, query, table_cells


class _SchemaAction(argparse.Action):
    """Prints the tables and columns, and ends the command."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="print the tables and columns")

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the schema."""
        print_answer(schema_text().splitlines(), has_tables=False)
        parser.exit()


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(
        parser,
        "traces: files, folders, globs or URLs; for --engine perfetto, one file of any format that Perfetto knows",
        metavar="TRACE",
    )
    parser.add_argument(
        "sql",
        metavar="SQL",
        help="one SELECT, DESCRIBE or EXPLAIN, such as 'select name, sum(self_ns) from events group by name'; "
        "- reads standard input",
    )
    parser.add_argument("--schema", action=_SchemaAction)
    add_option(
        parser,
        "--engine",
        "table: DuckDB's SQL on the event table; perfetto: Perfetto's SQL (default: table)",
        choices=("table", "perfetto"),
        default="table",
    )
    add_output(parser, "write the rows to this file; .csv, .json and .parquet select the format")
    add_option(parser, "--format", "the format of the rows (default: table)", choices=sorted(FORMATS))
    add_option(parser, "--json", "the same as --format json", action="store_const", const="json", dest="format")
    add_no_cache(parser)
    limits = Limits()
    add_option(parser, "--max-seconds N", "time limit (default: %(default)g)", type=seconds, default=limits.seconds)
    add_option(parser, "--max-rows N", "limit of rows (default: %(default)d)", type=positive, default=limits.rows)
    add_option(
        parser,
        "--max-memory MB",
        "memory limit of the engine (default: %(default)d)",
        type=positive,
        default=limits.memory_bytes // 10**6,
    )
    add_option(
        parser,
        "--trace-processor PATH",
        "for --engine perfetto: the program trace_processor_shell (default: $TRACEKIT_TRACE_PROCESSOR, else the one in the "
        "PATH, else the one that the package perfetto downloads when it is first used)",
        type=resolve_path,
    )
    add_option(parser, "-q --quiet", "show no progress")
    parser.epilog = "Exit code: 0 there are the rows, if any; 1 failed; 2 wrong usage."


def run(args: argparse.Namespace) -> int:
    ending = "" if args.output is None else args.output.rpartition(".")[2]
    form = args.format or (ending if ending in FORMATS else "table")
    if form == "parquet" and args.output is None:
        raise ConfigError("Parquet cannot be printed; name a file with -o")
    if args.output is not None and not args.force:
        refuse_existing(args.output)
    sql = _statement(args.sql)
    found = _perfetto(args, sql) if args.engine == "perfetto" else _table(args, sql, form)
    if form == "table" and args.output is None and isinstance(found, Rows) and print_table(*table_cells(found)):
        return OK
    content = FORMATS[form](found) if isinstance(found, Rows) else found
    if args.output is not None:
        with atomic_write(args.output, overwrite=args.force) as file:
            file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    elif isinstance(content, str):
        if form == "table" or sys.stdout.isatty():
            print_lines(*content.splitlines())
        else:
            sys.stdout.write(content.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
    return OK


def _statement(text: str) -> str:
    """Return the query; read it from standard input for ``-``."""
    if text == "-" and sys.stdin is None:
        raise ConfigError("-: standard input is closed")
    try:
        sql = sys.stdin.read() if text == "-" else text
        sql.encode()
    except UnicodeError:
        raise ConfigError("the query is not UTF-8") from None
    if not sql.strip():
        raise ConfigError("the query is empty")
    return sql


def _table(args: argparse.Namespace, sql: str, form: str) -> Rows | bytes:
    """Return the result of a query of the event table; as a file for Parquet."""
    from tracekit.table.tables import EventTables

    limits = Limits(seconds=args.max_seconds, rows=args.max_rows, memory_bytes=args.max_memory * 10**6)
    with (
        ProgressBar(enabled=not args.quiet) as bar,
        EventTables(args.inputs, cache=keeps_cache(args), progress=bar.update, workers=usable_processors()) as tables,
    ):
        if not args.quiet:
            for note in tables.notes:
                complain(note)
        if form == "parquet":
            with tempfile.TemporaryDirectory(prefix="tracekit-query-") as folder:
                path = Path(folder) / "rows.parquet"
                with tables.connection(sql, limits) as (database, statement):
                    database.write_query(statement, path, Path(folder))
                return path.read_bytes()
        names, rows = tables.query(sql, limits)
    return Rows(names, [tuple(map(_cell, row)) for row in rows])


def _cell(value: Any) -> Cell:
    """Return a value of DuckDB as a cell. Convert times, lists and structs to strings."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (int, str, bytes)):
        return value
    try:
        return float(value)  # also for decimals
    except (TypeError, ValueError):
        return str(value)


def _perfetto(args: argparse.Namespace, sql: str) -> Rows:
    """Return the result of a query in Perfetto's SQL."""
    if len(args.inputs) > 1:
        raise ConfigError("--engine perfetto takes one trace; merge the others into one with tracekit merge")
    with ProgressBar(enabled=not args.quiet) as bar:
        return query(
            args.inputs[0],
            sql,
            trace_processor=args.trace_processor
            or resolve_path(os.environ.get("TRACEKIT_TRACE_PROCESSOR", ""))
            or shutil.which("trace_processor_shell"),
            progress=bar.update,
        )
