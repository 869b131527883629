"""``tracekit summary INPUT...``: shows where the time goes."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_inputs, add_option, add_top, keeps_cache
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_result


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_top(parser, "markers and stages", 20)
    add_option(parser, "--per-rank", "show each rank")
    parser.epilog = (
        "Exit code: 0 done, 1 failed, 2 wrong usage, 3 done, but something in the traces cannot be read or counted."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.explain.summary import summarize_traces
    from tracekit.explain.summary_results import summary_lines

    with ProgressBar(enabled=True) as bar:
        summary = summarize_traces(args.inputs, inside=args.inside, cache=keeps_cache(args), progress=bar.update)
    print_result(summary, summary_lines(summary, args.top, per_rank=args.per_rank), as_json=args.json)
    return PROBLEMS if summary.incomplete else OK
