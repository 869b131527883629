"""``tracekit diff BEFORE AFTER``: finds what became slower."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tracekit.cli.arguments import (
    add_common,
    add_limits,
    add_option,
    add_top,
    keeps_cache,
    or_zero,
    path_or_url,
    percentage,
    positive,
)
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_lines, print_result
from tracekit.errors import CommandError, ConfigError

if TYPE_CHECKING:
    from tracekit.explain.diff_results import Change, TraceDiff


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "before",
        type=path_or_url,
        metavar="BEFORE",
        nargs="?",
        help="the earlier run: a file, folder, glob or URL; with --baseline, it may be left out",
    )
    parser.add_argument(
        "after", type=path_or_url, metavar="AFTER", nargs="?", help="the later run; without it, two ranks of the first"
    )
    parser.add_argument(
        "--baseline",
        type=path_or_url,
        metavar="RUN",
        nargs="+",
        default=[],
        help="further earlier runs, after the later one: tracekit diff AFTER --baseline A B C; their variation widens the limits",
    )
    add_option(parser, "--rank-a N", "only this rank of the earlier runs", type=or_zero(positive))
    add_option(parser, "--rank-b N", "only this rank of the later run", type=or_zero(positive))
    add_option(
        parser,
        "--fail-above SHARE",
        "exit with 3 if the step became slower by more than this, such as 5%%, and slower at all with 99%% confidence",
        type=percentage,
    )
    add_option(
        parser,
        "--fail-stage NAME:SHARE",
        "the same for the time of a marker, such as forward:5%%; may be repeated",
        type=_stage_gate,
        repeated=True,
    )
    add_option(parser, "--strict", "also exit with 3 if the noise hides a slow-down of --fail-above or --fail-stage")
    add_limits(parser, "change")
    add_top(parser, "markers of each kind", 20)
    add_common(parser)
    parser.epilog = (
        "Exit code: 0 done, 1 failed, or nothing could be compared for --fail-above or --fail-stage, 2 wrong usage, 3 slower "
        "than --fail-above or --fail-stage accepts."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.explain.diff import diff_traces
    from tracekit.explain.diff_results import diff_lines, gate_line

    before: list[str] = [path for path in (args.before, args.after) if path is not None]
    after = before.pop() if len(before) == 2 or (args.baseline and before) else None
    before += args.baseline
    if not before or (args.baseline and after is None):
        raise ConfigError("name the earlier and the later run: BEFORE AFTER, or AFTER --baseline A B C")
    if after is None and (args.rank_a is None or args.rank_b in (None, args.rank_a)):
        raise ConfigError("name the later run, or two ranks of this one: --rank-a N --rank-b M")
    with ProgressBar(enabled=True) as bar:
        diff = diff_traces(
            [before[0]],
            None if after is None else [after],
            baselines=[[path] for path in before[1:]],
            rank_a=args.rank_a,
            rank_b=args.rank_b,
            inside=args.inside,
            at_least=args.at_least,
            sure=args.sure,
            cache=keeps_cache(args),
            progress=bar.update,
        )
    print_result(diff, diff_lines(diff, args.top), as_json=args.json)
    code = OK
    for option, share, change in _gates(diff, args):
        failed = gate_line(option, change, share)
        if failed is not None:
            print_lines(failed, stream=sys.stderr if args.json else None)
            if args.strict or change.is_slower_by(share):
                code = PROBLEMS
    return code


def _gates(diff: TraceDiff, args: argparse.Namespace) -> list[tuple[str, float, Change]]:
    """Return the option, the accepted share and the marker of each gate; a gate without a measurement fails."""
    gates = []
    if args.fail_above is not None:
        if diff.step is None:
            raise CommandError(
                "--fail-above: steps could not be compared, since a run has fewer than five: record more steps, or use "
                "--fail-stage NAME:SHARE"
            )
        gates.append(("--fail-above", args.fail_above, diff.step))
    for name, share in args.fail_stage:
        found = diff.named(name)
        if not found:
            raise CommandError(f"--fail-stage: no marker {name!r} has five values or more in all runs")
        gates += [("--fail-stage", share, change) for change in found]
    return gates


def _stage_gate(text: str) -> tuple[str, float]:
    name, colon, share = text.rpartition(":")
    if not colon or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:SHARE, such as forward:5%")
    return name, percentage(share)
