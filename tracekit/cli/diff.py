"""``tracekit diff BEFORE AFTER``: says what became slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.diff import diff_traces
from tracekit.analysis.diff_text import diff_lines
from tracekit.arguments import resolve_path
from tracekit.cli.arguments import add_common, percentage, positive
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import print_json, printable
from tracekit.errors import CommandError

if TYPE_CHECKING:
    import argparse

__all__ = ["prepare_parser", "run"]

_SLOWER: Final = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit diff``."""
    parser.add_argument(
        "before", type=resolve_path, metavar="BEFORE", help="the run to compare with: a file, folder, glob or URL"
    )
    parser.add_argument(
        "after", type=resolve_path, metavar="AFTER", nargs="?", help="the other run; without it, two ranks of the first"
    )
    parser.add_argument("--rank-a", type=_rank, metavar="N", help="only this rank of the first run")
    parser.add_argument("--rank-b", type=_rank, metavar="N", help="only this rank of the second run")
    parser.add_argument(
        "--fail-above",
        type=percentage,
        metavar="SHARE",
        help="exit with 3 if anything became slower by more than this, such as 5%%",
    )
    parser.add_argument(
        "--at-least",
        type=percentage,
        default=0.02,
        metavar="SHARE",
        help="smallest change to report (default: 2%%, or less if --fail-above is less)",
    )
    parser.add_argument(
        "--sure",
        type=percentage,
        default=0.99,
        metavar="SHARE",
        help="confidence required to report a change (default: 99%%)",
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=20,
        metavar="N",
        help="number of markers of each kind to show (default: %(default)s)",
    )
    add_common(parser)
    parser.epilog = (
        "Exit code: 0 done, 1 failed, or nothing could be compared for --fail-above, 2 wrong usage, 3 something became slower "
        "by more than --fail-above."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit diff``; return its exit code."""
    del parser
    with ProgressBar(enabled=True) as bar:
        diff = diff_traces(
            [args.before],
            None if args.after is None else [args.after],
            rank_a=args.rank_a,
            rank_b=args.rank_b,
            inside=args.inside,
            at_least=args.at_least if args.fail_above is None else min(args.at_least, args.fail_above),
            sure=args.sure,
            progress=bar.update,
        )
    if args.json:
        print_json(diff.as_dict())
    else:
        for line in diff_lines(diff, args.top):
            print(printable(line))
    if args.fail_above is not None and not diff.compared:
        # A gate that has measured nothing must not be passed.
        raise CommandError(
            "--fail-above: nothing could be compared, since no marker has five values or more on both sides: record more "
            "steps, and compare runs that have the same markers"
        )
    return _SLOWER if args.fail_above is not None and diff.slower_by(args.fail_above) else 0


def _rank(text: str) -> int:
    return 0 if text == "0" else positive(text)
