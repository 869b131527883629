"""``tracekit merge [-o OUT] INPUT...``: merges the traces of all ranks into one for Perfetto."""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tracekit.arguments import check_service
from tracekit.cli.arguments import (
    add_args_option,
    add_log_to,
    add_option,
    add_output,
    add_selection,
    add_traces,
    microseconds,
    path_or_url,
    positive,
    seconds,
    selection_of,
    workers,
)
from tracekit.cli.named_runs import find_run
from tracekit.cli.terminal import PROBLEMS, ProgressBar, complain, print_merge
from tracekit.errors import CommandError, ConfigError, TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.align.placement import ALIGN
from tracekit.merge.execute.executor import fitting_pool
from tracekit.merge.plan.titles import GROUP_BY
from tracekit.storage import refuse_existing, without_secrets
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tracekit.traces.rank_ends import RankEnds

_DEFAULT_TIMEOUT_S: Final = 60.0
_OFFSET: Final = re.compile(r"(\d{1,9})=([+-]?\d{1,18})", re.ASCII)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(
        parser,
        "rank traces of tracekit, and traces of torch.profiler or other tools: files, folders, globs or URLs, in JSON, "
        "JSON lines or Perfetto's own format, plain or packed (gzip, zstd, a zip of one trace); - for standard input",
        nargs="*",
    )
    add_output(
        parser,
        "the file or URL to write: .json (any viewer) or .pftrace (Perfetto's own), with .gz packed; or .tar or .zip for an "
        "archive of the inputs with a perfetto_manifest.json that places them, for Perfetto v58 and later (default: %(default)s)",
        default="merged.json.gz",
    )
    add_option(parser, "--strict", "write nothing when an event would be lost, an input left out, or a clock assumed")
    add_option(
        parser,
        "--rank FILE=N",
        "rank of an input that does not state its rank (repeat for several)",
        repeated=True,
    )
    add_option(
        parser,
        "--workers N",
        "number of processes (default: one for each processor, at most 8; 1 for small inputs)",
        type=workers,
    )
    add_option(
        parser,
        "--dask ADDRESS",
        "merge on a Dask cluster, for example tcp://host:8786; its workers must reach the inputs and the "
        "output by the same names, best on S3",
    )
    add_selection(parser, names=False)
    add_args_option(parser)
    clocks = parser.add_argument_group("clocks")
    add_option(
        clocks,
        "--align",
        "how the clocks of different hosts are compared: the exchanges of ClockSync, the ends of collectives in torch's "
        "traces, wall clocks that are trusted, or not at all (default: %(default)s: the best there is for each rank; of "
        "large traces it reads samples, collectives reads all)",
        choices=ALIGN,
        default="auto",
    )
    add_option(
        clocks,
        "--offset RANK=NS",
        "add this many nanoseconds to the times of a rank instead (repeat for several)",
        repeated=True,
    )
    add_option(
        clocks,
        "--collective-flows",
        "add arrows between the members of each collective, from the first to come to the last, and how far apart they came",
    )
    add_option(
        clocks,
        "--snap-overlaps US",
        "if two slices of a GPU stream overlap by at most US microseconds, shorten the earlier one instead of moving one to "
        "another track; 2.5 removes the clock noise of CUPTI (default: 0, times stay exact)",
        type=microseconds,
        default=0,
    )
    add_option(
        parser,
        "--group-by",
        "sort ranks by their place in tensor, data, pipeline or expert parallelism, or by node (default: by rank)",
        choices=GROUP_BY,
    )
    waiting = parser.add_argument_group("waiting for the end of a run")
    add_option(
        waiting,
        "--wait-for-ranks N",
        "wait until the rank traces of ranks 0 to N-1 have an end record and the torch traces that they name exist; "
        "INPUT must name rank traces, and the torch traces are merged with them",
        type=positive,
    )
    add_option(
        waiting,
        "--timeout S",
        f"wait for S seconds at most, then merge the existing traces; 0 looks once (default: {_DEFAULT_TIMEOUT_S:g})",
        type=seconds,
    )
    add_option(waiting, "--run ID", "use only rank traces of this run; without INPUT, merge it")
    add_option(
        waiting, "--window", "wait until the rank traces of one recording window are closed, instead of for end records"
    )
    add_log_to(parser, "the merged trace and a report on it")
    add_option(
        parser,
        "--log-folder FOLDER",
        "folder in which the library of --log-to works (default: the current folder)",
        type=path_or_url,
    )
    add_option(parser, "--json", "print the report as JSON")
    add_option(
        parser,
        "-v --verbose",
        "also print which ranks were written twice, since slices overlap in an output that cannot be patched",
    )
    add_option(parser, "-q --quiet", "print problems only")
    parser.epilog = (
        "Exit code: 0 everything is merged, 1 failed and nothing written, 2 wrong usage, "
        "3 merged, but events were lost, inputs left out, ranks not aligned by --align sync or collectives, or ranks missing "
        "that were waited for, or the artifacts not logged."
    )


def run(args: argparse.Namespace) -> int:
    if not args.inputs:
        if args.run is None:
            raise ConfigError("name the traces to merge, such as traces/RUN/, or a run: --run NAME")
        args.inputs, args.run = [find_run(args.run)], args.run if args.wait_for_ranks else None
    if args.dask is not None and args.workers is not None:
        raise ConfigError("--workers and --dask exclude each other: the cluster has its workers")
    ranks = dict(_rank(text) for text in args.rank)
    if args.log_to is not None:
        check_service(args.log_to, "--log-to ")
    select = selection_of(args)
    offsets_ns = dict(_offset(text) for text in args.offset)
    ends = _wait(args)
    if ends is not None:
        args.inputs = ends.traces
    with ExitStack() as stack:
        executor: Executor | None = None
        if args.dask is not None:
            from tracekit.merge.execute.dask_cluster import DaskExecutor

            executor = stack.enter_context(DaskExecutor(args.dask))
        elif args.workers is None:
            executor = stack.enter_context(fitting_pool(args.output, args.inputs))
        elif args.workers > 1:
            from tracekit.worker_processes import process_pool

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
            group_by=args.group_by,
            args=args.event_args,
            snap_overlaps_ns=args.snap_overlaps,
            progress=bar.update,
            executor=executor,
        )
    missing = [] if ends is None else ends.missing()
    if args.json:
        report.warnings.extend(missing)
    code = print_merge(report, as_json=args.json, quiet=args.quiet, verbose=args.verbose)
    if args.log_to is not None and not _log(args):
        code = PROBLEMS
    if missing:
        complain(f"{'; '.join(missing)}; {report.output} holds what is there", "merge")
        return PROBLEMS
    unaligned = [rank.rank for rank in report.ranks if not rank.aligned]
    if args.align in ("sync", "collectives") and unaligned and len(report.ranks) > 1:
        are = "is" if len(unaligned) == 1 else "are"
        complain(f"--align {args.align}: {rank_spans(unaligned)} {are} not aligned", "merge")
        return PROBLEMS
    return code


def _log(args: argparse.Namespace) -> bool:
    """Log the merged trace; return False if the service does not take it."""
    from tracekit.view.experiments import log_trace

    try:
        sentences = log_trace(args.log_to, args.output, run=args.run, folder=args.log_folder)
    except (TracekitError, OSError) as error:
        complain(f"{error}. The merged trace is in {without_secrets(args.output)}.", "merge")
        return False
    if not args.quiet:
        for sentence in sentences:
            complain(sentence, "merge")
    return True


def _wait(args: argparse.Namespace) -> RankEnds | None:
    """Wait for the end of the run, and return its traces. Return None without ``--wait-for-ranks``."""
    if args.wait_for_ranks is None:
        for option, value in (("--timeout", args.timeout), ("--run", args.run), ("--window", args.window or None)):
            if value is not None:
                raise ConfigError(f"{option} needs --wait-for-ranks")
        return None

    if not args.force:
        refuse_existing(args.output)

    from tracekit.traces.rank_ends import wait_for_ranks  # imports twice as many modules as a merge needs

    timeout_s = _DEFAULT_TIMEOUT_S if args.timeout is None else args.timeout

    def report(ends: RankEnds) -> None:
        if not args.quiet:
            complain(f"waiting up to {timeout_s:g} s: {'; '.join(ends.missing())}", "merge")

    ends = wait_for_ranks(
        args.inputs, args.wait_for_ranks, timeout_s, run_id=args.run, window=args.window, report=report
    )
    if not ends.traces or (args.strict and not ends.complete):
        raise CommandError(f"nothing is merged: {'; '.join(ends.missing())}")
    return ends


def _rank(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal():
        raise ConfigError(f"--rank {text}: give it as FILE=N, for example --rank trace.json=3")
    return name, int(number)


def _offset(text: str) -> tuple[int, int]:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--offset {text}: give it as RANK=NS in whole nanoseconds, for example --offset 3=-137000000"
        )
    return int(match[1]), int(match[2])
