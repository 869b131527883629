"""``tracekit report INPUT... -o report.html``: writes one HTML file with the full analysis of a run."""

from __future__ import annotations

import argparse

from tracekit.arguments import check_service
from tracekit.cli.arguments import add_inputs, add_log_to, add_output, keeps_cache
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, complain, print_json, print_lines
from tracekit.errors import CommandError, ConfigError, StorageError
from tracekit.imports import require_extra
from tracekit.storage import atomic_write, refuse_existing, same_file, without_secrets
from tracekit.traces.inputs import find_traces
from tracekit.wording import size_words


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_output(parser, "the file or URL to write (default: %(default)s)", default="report.html")
    parser.add_argument("--title", help="heading of the page (default: the name of the run)")
    add_log_to(parser, "the report, and the trace if it is a single file,")
    parser.epilog = (
        "The page runs no script and loads nothing. Exit code: 0 written, 1 failed and nothing written, 2 wrong usage, "
        "3 written, but something in the traces cannot be read or counted, or the artifacts not logged."
    )


def run(args: argparse.Namespace) -> int:
    require_extra("report", "duckdb", "jinja2", "numpy")
    from tracekit.explain.run_report import WrittenReport, report_run
    from tracekit.view.report.page import report_page

    if args.log_to is not None:
        check_service(args.log_to, "--log-to ")
    shown = without_secrets(args.output)
    if not args.force:
        refuse_existing(args.output)
    traces = [path for path, _ in find_traces(args.inputs)]
    if any(same_file(path, args.output) for path in traces):
        raise ConfigError(f"{shown} is one of the traces; choose another name for the report")
    with ProgressBar(enabled=True) as bar:
        report = report_run(args.inputs, inside=args.inside, cache=keeps_cache(args), progress=bar.update)
    page = report_page(report, args.title).encode()
    with atomic_write(args.output, overwrite=args.force) as file:
        file.write(page)
    if args.json:
        print_json(WrittenReport.of(report, shown, len(page)).as_dict())
    else:
        print_lines(f"wrote {shown} ({size_words(len(page))}); open it in any browser, or send it as it is")
    if args.log_to is not None:
        from tracekit.view.experiments import log_files

        files = [args.output, *(traces if len(traces) == 1 else ())]
        try:
            complain(log_files(args.log_to, next(iter(report.runs), "report"), files))
        except (StorageError, OSError) as error:
            raise CommandError(f"{error}. The report is in {shown}.", PROBLEMS) from None
    return PROBLEMS if report.summary.incomplete else OK
