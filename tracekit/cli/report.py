"""``tracekit report INPUT... -o report.html``: writes one HTML file with the full analysis of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tracekit.arguments import check_service, resolve_path
from tracekit.cli.arguments import add_inputs, add_log_to, keeps_cache
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import print_json, printable
from tracekit.errors import CommandError, StorageError
from tracekit.storage import atomic_write, refuse_existing, same_file, without_secrets
from tracekit.traces.inputs import find_traces
from tracekit.wording import size_words

if TYPE_CHECKING:
    import argparse

_USAGE: Final = 2
_INCOMPLETE: Final = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit report``."""
    add_inputs(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=resolve_path,
        default="report.html",
        help="the file or URL to write (default: %(default)s)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--title", help="heading of the page (default: the name of the run)")
    add_log_to(parser, "the report, and the trace if it is a single file,")
    parser.epilog = (
        "The page runs no script and loads nothing. Exit code: 0 written, 1 failed and nothing written, 2 wrong usage, "
        "3 written, but something in the traces cannot be read or counted, or the artifacts not logged."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit report``; return its exit code."""
    del parser
    from tracekit.explain.run_report import WrittenReport, report_run
    from tracekit.view.report.page import report_page

    if args.log_to is not None:
        check_service(args.log_to, "--log-to ")
    shown = without_secrets(args.output)
    if not args.force:
        refuse_existing(args.output)
    traces = [path for path, _ in find_traces(args.inputs)]
    if any(same_file(path, args.output) for path in traces):
        raise CommandError(f"{shown} is one of the traces; choose another name for the report", _USAGE)
    with ProgressBar(enabled=True) as bar:
        report = report_run(args.inputs, inside=args.inside, cache=keeps_cache(args), progress=bar.update)
    page = report_page(report, args.title).encode()
    with atomic_write(args.output, overwrite=args.force) as file:
        file.write(page)
    if args.json:
        print_json(WrittenReport.of(report, shown, len(page)).as_dict())
    else:
        print(printable(f"wrote {shown} ({size_words(len(page))}); open it in any browser, or send it as it is"))
    if args.log_to is not None:
        from tracekit.view.experiments import log_files

        files = [args.output, *(traces if len(traces) == 1 else ())]
        try:
            sentence = log_files(args.log_to, next(iter(report.runs), "report"), files)
        except StorageError as error:
            raise CommandError(f"{error}. The report is in {shown}.", _INCOMPLETE) from None
        print(printable(f"tracekit: {sentence}", sys.stderr), file=sys.stderr)
    return _INCOMPLETE if report.summary.incomplete else 0
