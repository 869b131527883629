"""``tracekit query FILE SQL``: asks a trace a question in Perfetto's SQL."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from tracekit.arguments import resolve_path
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import printable
from tracekit.errors import CommandError
from tracekit.storage import atomic_write, refuse_existing
from tracekit.viewing.query import query
from tracekit.viewing.tables import FORMATS

if TYPE_CHECKING:
    import argparse

__all__ = ["prepare_parser", "run"]

OK: Final = 0
_USAGE: Final = 2


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit query``."""
    parser.add_argument(
        "file", type=resolve_path, metavar="FILE", help="a trace: a file or URL of any format that Perfetto knows"
    )
    parser.add_argument(
        "sql", metavar="SQL", help="such as 'select name, sum(dur) from slice group by name'; - reads standard input"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=resolve_path,
        metavar="FILE",
        help="write the rows here; .csv, .json and .parquet say the format as well",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--format", choices=sorted(FORMATS), help="how to write the rows (default: table)")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument(
        "--trace-processor",
        type=resolve_path,
        metavar="PATH",
        help="the program trace_processor_shell (default: $TRACEKIT_TRACE_PROCESSOR, else the one in the PATH, else the one that "
        "the package perfetto downloads when it is first used)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    parser.epilog = "Exit code: 0 there are the rows, if any; 1 failed; 2 wrong usage."


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit query``; return its exit code."""
    del parser
    ending = "" if args.output is None else args.output.rpartition(".")[2]
    form = args.format or (ending if ending in FORMATS else "table")
    if form == "parquet" and args.output is None:
        raise CommandError("Parquet is no text: name a file for it with -o", _USAGE)
    if args.output is not None and not args.force:
        refuse_existing(args.output)
    sql = sys.stdin.read() if args.sql == "-" else args.sql
    if not sql.strip():
        raise CommandError("the query is empty", _USAGE)
    with ProgressBar(enabled=not args.quiet) as bar:
        rows = query(
            args.file,
            sql,
            trace_processor=args.trace_processor
            or resolve_path(os.environ.get("TRACEKIT_TRACE_PROCESSOR", ""))
            or shutil.which("trace_processor_shell"),
            progress=bar.update,
        )
    content = FORMATS[form](rows)
    if args.output is not None:
        with atomic_write(args.output, overwrite=args.force) as file:
            file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    elif isinstance(content, str):
        if form == "table" or sys.stdout.isatty():
            for line in content.splitlines():
                print(printable(line))
        else:
            sys.stdout.write(content.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
    return OK
