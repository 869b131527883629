"""``tracekit gpu INPUT...``: shows where the time of the GPUs goes."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_no_cache, add_option, add_top, add_traces, keeps_cache
from tracekit.cli.terminal import OK, ProgressBar, print_result


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(parser, "traces of torch.profiler or tracekit, merged or of single ranks: files, folders, globs or URLs")
    add_top(parser, "kernels and collectives", 10)
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
    print_result(report, gpu_lines(report, args.top, per_rank=args.per_rank), as_json=args.json)
    return OK
