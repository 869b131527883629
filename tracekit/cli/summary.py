"""``tracekit summary INPUT...``: says where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.summary import summarize_traces
from tracekit.analysis.summary_text import summary_lines
from tracekit.cli.arguments import add_inputs, positive
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import print_json, printable

if TYPE_CHECKING:
    import argparse

__all__ = ["prepare_parser", "run"]

_INCOMPLETE: Final = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit summary``."""
    add_inputs(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=20,
        metavar="N",
        help="number of markers and stages to show (default: %(default)s)",
    )
    parser.epilog = (
        "Exit code: 0 done, 1 failed, 2 wrong usage, 3 done, but something in the traces cannot be read or counted."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit summary``; return its exit code."""
    del parser
    with ProgressBar(enabled=True) as bar:
        summary = summarize_traces(args.inputs, inside=args.inside, progress=bar.update)
    if args.json:
        print_json(summary.as_dict())
    else:
        for line in summary_lines(summary, args.top):
            print(printable(line))
    return _INCOMPLETE if summary.incomplete else 0
