"""``tracekit gpu INPUT...``: shows where the time of the GPUs goes."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_no_cache, add_option, add_traces, keeps_cache, positive
from tracekit.cli.terminal import OK, ProgressBar, print_answer, print_json


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(parser, "traces of torch.profiler or tracekit, merged or of single ranks: files, folders, globs or URLs")
    add_option(
        parser, "--top N", "number of kernels and collectives to show (default: %(default)s)", type=positive, default=10
    )
    add_option(parser, "--per-rank", "show each GPU and stream")
    add_no_cache(parser)
    add_option(parser, "--json", "print one JSON document")
    parser.epilog = "Exit code: 0 done, 1 failed, 2 wrong usage."


def run(args: argparse.Namespace) -> int:
    from tracekit.explain.gpu import explain_gpu
    from tracekit.explain.gpu_results import gpu_lines
    from tracekit.table.tables import EventTables

    with (
        ProgressBar(enabled=True) as bar,
        EventTables(args.inputs, cache=keeps_cache(args), progress=bar.update) as tables,
        tables.database() as database,
    ):
        report = explain_gpu(database)
    if args.json:
        print_json(report.as_dict())
    else:
        print_answer(gpu_lines(report, args.top, per_rank=args.per_rank))
    return OK
