"""``tracekit stragglers INPUT...``: finds the ranks that are slower, and long steps."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_inputs, add_option, keeps_cache, percentage
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_answer, print_json
from tracekit.explain import CONFIDENCE, MIN_SHARE


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_option(
        parser,
        "--at-least SHARE",
        "smallest delay to report, as a share of a step, such as 5%% (default: 2%%)",
        type=percentage,
        default=MIN_SHARE,
    )
    add_option(
        parser,
        "--sure SHARE",
        "confidence required to report a delay (default: 99%%)",
        type=percentage,
        default=CONFIDENCE,
    )
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
    if args.json:
        print_json(report.as_dict())
    else:
        print_answer(straggler_lines(report))
    return PROBLEMS if report.blames else OK
