"""``tracekit convert INPUT OUTPUT``: writes a trace in another format."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_args_option, add_option, add_printing, path_or_url
from tracekit.cli.terminal import ProgressBar, print_merge
from tracekit.errors import ConfigError
from tracekit.merge import merge_traces
from tracekit.merge.engine import ARCHIVES


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        type=path_or_url,
        metavar="INPUT",
        help="a trace: JSON, JSON lines, Perfetto's own format, a flight-recorder dump of torch; plain or packed (gzip, zstd, "
        "a zip of one trace); - for standard input",
    )
    parser.add_argument(
        "output",
        type=path_or_url,
        metavar="OUTPUT",
        help="the file or URL to write: .json or .pftrace, with .gz after it packed",
    )
    add_option(parser, "-f --force", "replace the output if it exists")
    add_args_option(parser)
    add_printing(parser, "print the report as JSON", "print problems only")
    parser.epilog = (
        "Processes have the numbers that a merge gives them, and what is broken is repaired as in a merge. Exit code: 0 done, "
        "1 failed and nothing written, 2 wrong usage, 3 written, but events were lost."
    )


def run(args: argparse.Namespace) -> int:
    if args.output.endswith(ARCHIVES):
        raise ConfigError(f"{args.output}: an archive is made of several traces, by tracekit merge")
    with ProgressBar(enabled=not (args.json or args.quiet)) as bar:
        report = merge_traces(
            args.output, [args.input], overwrite=args.force, args=args.event_args, progress=bar.update
        )
    return print_merge(report, as_json=args.json, quiet=args.quiet, action="converted")
