"""``tracekit stragglers INPUT...``: says which rank holds the others up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.stragglers import find_stragglers
from tracekit.analysis.stragglers_text import straggler_lines
from tracekit.cli.arguments import add_inputs, percentage
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import print_json, printable

if TYPE_CHECKING:
    import argparse

__all__ = ["prepare_parser", "run"]

_FOUND: Final = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit stragglers``."""
    add_inputs(parser)
    parser.add_argument(
        "--at-least",
        type=percentage,
        default=0.01,
        metavar="SHARE",
        help="smallest delay to report, as a share of a step, such as 2%% (default: 1%%)",
    )
    parser.add_argument(
        "--sure",
        type=percentage,
        default=0.99,
        metavar="SHARE",
        help="confidence required to report a delay (default: 99%%)",
    )
    parser.epilog = "Exit code: 0 no straggler found, 1 failed, 2 wrong usage, 3 stragglers found."


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit stragglers``; return its exit code."""
    del parser
    with ProgressBar(enabled=True) as bar:
        report = find_stragglers(
            args.inputs, inside=args.inside, at_least=args.at_least, sure=args.sure, progress=bar.update
        )
    if args.json:
        print_json(report.as_dict())
    else:
        for line in straggler_lines(report):
            print(printable(line))
    return _FOUND if report.stragglers else 0
