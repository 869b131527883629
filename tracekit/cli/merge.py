"""``tracekit merge [-o OUT] INPUT...``: the traces of all ranks into one for Perfetto."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tracekit.arguments import resolve_path
from tracekit.cli.arguments import positive
from tracekit.cli.progress import ProgressBar
from tracekit.cli.report_of_merge import INCOMPLETE, show
from tracekit.cli.selecting import add_selection, selection_of
from tracekit.errors import CommandError
from tracekit.merge import merge_traces
from tracekit.merge.clocks.placement import ALIGN
from tracekit.merge.dask_cluster import DaskExecutor
from tracekit.merge.workers import fitting_pool, process_pool
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    import argparse
    from concurrent.futures import Executor

__all__ = ["prepare_parser", "run"]

_OFFSET: Final = re.compile(r"(\d{1,9})=([+-]?\d{1,18})", re.ASCII)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit merge``."""
    parser.add_argument(
        "inputs",
        type=resolve_path,
        nargs="+",
        metavar="INPUT",
        help="rank traces of tracekit, and traces of torch.profiler or other tools: files, folders, globs or URLs, in JSON "
        "or Perfetto's own format, plain or gzip",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=resolve_path,
        default="merged.json.gz",
        help="the file or URL to write: .json (any viewer) or .pftrace (Perfetto's own), with .gz packed; or .tar or .zip for an "
        "archive of the inputs with a perfetto_manifest.json that places them, for Perfetto v58 and later (default: %(default)s)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="write nothing when an event would be lost, an input left out, or a clock assumed",
    )
    parser.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="FILE=N",
        help="rank of an input that does not state its rank (repeat for several)",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="number of processes (default: one for each processor, at most 8; 1 for small inputs)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="merge on a Dask cluster, for example tcp://host:8786; its workers must reach the inputs and the "
        "output by the same names, best on S3",
    )
    add_selection(parser, names=False)
    clocks = parser.add_argument_group("clocks")
    clocks.add_argument(
        "--align",
        choices=ALIGN,
        default="auto",
        help="how the clocks of different hosts are compared: the exchanges of ClockSync, the ends of collectives in torch's "
        "traces, wall clocks that are trusted, or not at all (default: %(default)s: the best there is for each rank)",
    )
    clocks.add_argument(
        "--offset",
        action="append",
        default=[],
        metavar="RANK=NS",
        help="add this many nanoseconds to the times of a rank instead (repeat for several)",
    )
    clocks.add_argument(
        "--collective-flows",
        action="store_true",
        help="add arrows between the members of each collective, from the first to come to the last, and how far apart they came",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print problems only")
    parser.epilog = (
        "Exit code: 0 everything is merged, 1 failed and nothing written, 2 wrong usage, "
        "3 merged, but events were lost, inputs left out, or ranks not aligned by --align sync or collectives."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit merge``; return its exit code."""
    del parser
    if args.dask is not None and args.workers is not None:
        raise CommandError("--workers and --dask exclude each other: a cluster has workers of its own", exit_code=2)
    ranks = dict(_rank(text) for text in args.rank)
    select = selection_of(args)
    offsets_ns = dict(_offset(text) for text in args.offset)
    with ExitStack() as stack:
        executor: Executor | None = None
        if args.dask is not None:
            executor = stack.enter_context(DaskExecutor(args.dask))
        elif args.workers is None:
            executor = stack.enter_context(fitting_pool(args.output, args.inputs))
        elif args.workers > 1:
            executor = stack.enter_context(process_pool(args.workers))
        bar = stack.enter_context(ProgressBar(enabled=not (args.json or args.quiet)))
        report = merge_traces(
            args.output,
            args.inputs,
            overwrite=args.force,
            strict=args.strict,
            ranks=ranks,
            select=select,
            align=args.align,
            offsets_ns=offsets_ns,
            collective_flows=args.collective_flows,
            progress=bar.update,
            executor=executor,
        )
    code = show(report, as_json=args.json, quiet=args.quiet)
    unaligned = [rank.rank for rank in report.ranks if not rank.aligned]
    if args.align in ("sync", "collectives") and unaligned and len(report.ranks) > 1:
        what = f"--align {args.align}: {rank_spans(unaligned)} {'is' if len(unaligned) == 1 else 'are'} not aligned"
        print(f"tracekit merge: {what}", file=sys.stderr)
        return INCOMPLETE
    return code


def _rank(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal():
        raise CommandError(f"--rank {text}: give it as FILE=N, for example --rank trace.json=3", exit_code=2)
    return name, int(number)


def _offset(text: str) -> tuple[int, int]:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise CommandError(
            f"--offset {text}: give it as RANK=NS in whole nanoseconds, for example --offset 3=-137000000", exit_code=2
        )
    return int(match[1]), int(match[2])
