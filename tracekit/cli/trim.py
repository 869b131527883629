"""``tracekit trim [-o OUT] INPUT...``: writes a part of a trace as a separate trace."""

from __future__ import annotations

import argparse
import sys

from tracekit.cli.arguments import add_args_option, add_option, add_output, add_selection, add_traces, selection_of
from tracekit.cli.terminal import PROBLEMS, ProgressBar, print_merge
from tracekit.errors import ConfigError
from tracekit.merge import Selection, merge_traces
from tracekit.merge.execute.executor import fitting_pool
from tracekit.merge.report import happened


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(parser, "a trace; or several, which are merged; - for standard input")
    add_output(
        parser,
        "the file or URL to write: .json or .pftrace, with .gz packed (default: %(default)s)",
        default="trimmed.json.gz",
    )
    add_selection(parser, names=True)
    add_args_option(parser)
    add_option(parser, "--json", "print the report as JSON")
    add_option(parser, "-q --quiet", "print problems only")
    parser.epilog = (
        "Processes have the numbers that a merge gives them. Exit code: 0 done, 1 failed and nothing written, 2 wrong usage, "
        "3 written, but nothing that happened is in it, or events were lost beyond what was to be left out."
    )


def run(args: argparse.Namespace) -> int:
    select = selection_of(args)
    if select == Selection() and args.event_args == "all":
        raise ConfigError("say what to take: --steps, --time-window, --ranks, --categories, --name or --args")
    with fitting_pool(args.output, args.inputs) as executor, ProgressBar(enabled=not (args.json or args.quiet)) as bar:
        report = merge_traces(
            args.output,
            args.inputs,
            overwrite=args.force,
            select=select,
            args=args.event_args,
            progress=bar.update,
            executor=executor,
        )
    code = print_merge(report, as_json=args.json, quiet=args.quiet, action="trimmed")
    if happened(report.events_out):
        return code
    if args.quiet and report.complete:
        print("nothing that happened is selected: the trace holds names only", file=sys.stderr)
    return PROBLEMS
