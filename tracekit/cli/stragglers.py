"""``tracekit stragglers INPUT...``: finds the ranks that are slower, and long steps."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_inputs, add_limits, keeps_cache
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_result


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_limits(parser, "delay")
    parser.epilog = (
        "Exit code: 0 no rank is slower than the others, 1 failed, 2 wrong usage, 3 a rank is slower, always or again and "
        "again."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.explain.stragglers import find_stragglers
    from tracekit.explain.stragglers_results import straggler_lines

    with ProgressBar(enabled=True) as bar:
        report = find_stragglers(
            args.inputs,
            inside=args.inside,
            at_least=args.at_least,
            sure=args.sure,
            cache=keeps_cache(args),
            progress=bar.update,
        )
    print_result(report, straggler_lines(report), as_json=args.json)
    return PROBLEMS if report.blames else OK
