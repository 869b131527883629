"""``tracekit summary INPUT...``: shows where the time goes."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_inputs, add_option, keeps_cache, positive
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_answer, print_json


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_option(
        parser, "--top N", "number of markers and stages to show (default: %(default)s)", type=positive, default=20
    )
    add_option(parser, "--per-rank", "show each rank")
    parser.epilog = (
        "Exit code: 0 done, 1 failed, 2 wrong usage, 3 done, but something in the traces cannot be read or counted."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.explain.summary import summarize_traces
    from tracekit.explain.summary_results import summary_lines

    with ProgressBar(enabled=True) as bar:
        summary = summarize_traces(args.inputs, inside=args.inside, cache=keeps_cache(args), progress=bar.update)
    if args.json:
        print_json(summary.as_dict())
    else:
        print_answer(summary_lines(summary, args.top, per_rank=args.per_rank))
    return PROBLEMS if summary.incomplete else OK
