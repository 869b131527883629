"""The merge itself: probe every input, align, plan, and rewrite every input into one output, in one pass over each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.arguments import check_path, check_paths
from tracekit.errors import ConfigError, MergeError
from tracekit.formats.gzip_codec import packed
from tracekit.formats.merged_head import merge_decisions
from tracekit.merge.align.clock_descriptions import unstated_clocks
from tracekit.merge.align.placement import place
from tracekit.merge.execute.executor import MergeProgress, merge_executor
from tracekit.merge.inputs import find_inputs, gather
from tracekit.merge.plan.layout import NAMESPACE, lay_out, namespace_of_collectives
from tracekit.merge.plan.unit import MergePlan
from tracekit.merge.rank_order import order_ranks
from tracekit.merge.write.event_counts import EventCounts, losses_as_json
from tracekit.merge.write.json_output import JsonOutput
from tracekit.storage import atomic_write, refuse_existing, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from tracekit.arguments import Paths, StrPath
    from tracekit.merge.align.collective_sets import AddedEvent, Member
    from tracekit.merge.align.placement import Placement
    from tracekit.merge.execute.executor import MergeExecutor
    from tracekit.merge.input import Input
    from tracekit.merge.plan.unit import UnitJob
    from tracekit.merge.rank_order import RankOrder
    from tracekit.merge.report import Causality, MergeReport
    from tracekit.merge.selection.event_filter import EventFilter
    from tracekit.merge.selection.selection import Selection
    from tracekit.merge.write.pftrace_output import PftraceOutput

__all__ = ["ARCHIVES", "ARGS", "merge_traces"]

ARGS: Final = ("all", "ids", "none")
"""The choices of ``args``; their places are the modes of the rewriter."""

ARCHIVES: Final = (".tar", ".zip")
"""The suffixes of archives."""

_FORMATS: Final = (".json", ".pftrace")


def merge_traces(
    output: StrPath,
    inputs: Paths,
    *,
    overwrite: bool = False,
    strict: bool = False,
    ranks: Mapping[str, int] | Mapping[StrPath, int] | None = None,
    select: Selection | None = None,
    align: str = "auto",
    offsets_ns: Mapping[int, int] | None = None,
    collective_flows: bool = False,
    group_by: str | None = None,
    args: str = "all",
    snap_overlaps_ns: int = 0,
    progress: Callable[[float, str], None] | None = None,
    executor: Executor | None = None,
) -> MergeReport:
    """Merge rank traces of tracekit and traces of torch.profiler into one trace for Perfetto.

    Processes, threads and the ids of flows, async events and correlations become unique for each rank; times are put on
    one clock in integer nanoseconds; slices that overlap get tracks on which nothing is lost; stack frames (``stackFrames``) of
    all inputs are joined, each once, and in ``.pftrace`` written out as an argument. What is broken is repaired or left out,
    and the report says so. The result does not depend on the order of the inputs, which are only read. The output appears
    whole or not at all. What a merge that was killed has left beside a local output, the next merge to that output removes;
    see `tracekit.merge.execute.scratch` for when, and `tracekit.merge.execute.part_store` for remote storages.

    Args:
        output: The file or URL to write: ``.json``, or ``.pftrace`` for a native trace of Perfetto, with ``.gz`` after it to
            pack it; ``.tar`` or ``.zip`` for an archive of the inputs with a ``perfetto_manifest.json`` that places them, for
            Perfetto v58 and later.
        inputs: Files, folders, globs and URLs of Chrome JSON traces, plain or gzip.
        overwrite: Whether an output that is there already may be replaced.
        strict: Whether to write nothing when an event would be lost, an input left out, or a clock assumed.
        ranks: Ranks of inputs that do not tell theirs (or tell it wrongly), by path or file name.
        select: Which part of the run to take; everything by default.
        align: What may say how the clocks of the ranks stand to each other, beyond that ranks of one host and boot share one.
            "auto": clock exchanges of `ClockSync`, else the ends of matched collectives in torch's traces (of large ones, in
            samples), else the wall clock; "sync" or "collectives": only that, and all collectives; "wall": the wall clocks are
            trusted; "none": every file keeps its times.
        offsets_ns: What to add to all times of a rank, in ns, by hand; its clock is not aligned otherwise.
        collective_flows: Whether to add arrows between the members of each collective that is found in torch's traces, from who
            came first to who came last, and a counter of how far apart they came. Not in archives.
        group_by: Show the ranks in the order of their place in a dimension of parallelism ("tp", "dp", "pp" or "ep"), or of their
            hosts ("node"). Places come from the names of known projects' files and from Kineto's process groups.
        args: Which arguments of events to keep: "all", "ids" (those that tie events together) or "none".
        snap_overlaps_ns: The maximum overlap of two slices of a GPU stream that is removed by shortening the earlier one, as the
            noise of CUPTI's clock causes it; larger ones move to a track of their own, as all do by default.
        progress: Called now and then with the share that is done, 0 to 1, and with what is being done.
        executor: Who reads and rewrites the inputs, those of a rank as one piece of work, for example
            `tracekit.worker_processes.process_pool` or `tracekit.merge.execute.dask_cluster.DaskExecutor`, beside this
            thread; it must reach the inputs and the folder of the output. The output is the same to the byte.

    Returns:
        What was merged, repaired and left out.

    Raises:
        ConfigError: The output is one of the inputs, or no input was named, or an argument is not a path.
        MergeError: The inputs do not fit together; or, under ``strict``, the merge would not be complete; or a worker died.
        TraceFormatError: None of the inputs is a trace.
        StorageError: An input cannot be read, or the output cannot be written or is there already.
    """
    output = check_path("output", output)
    is_archive = output.endswith(ARCHIVES)
    is_json = output.removesuffix(".gz").endswith(".json")
    _check_options(output, select, args, collective_flows=collective_flows, snaps=snap_overlaps_ns > 0)
    files = find_inputs(output, check_paths("inputs", inputs))
    if not overwrite:
        refuse_existing(output)  # before the inputs are read, which may take long; atomic_write looks again
    edits = group_by is not None or args != "all" or snap_overlaps_ns > 0
    told = MergeProgress(progress, [path for path, _ in files])
    with merge_executor(output, executor) as workers:
        items, omissions = gather(
            files,
            {check_path("ranks", path): rank for path, rank in (ranks or {}).items()},
            told.read,
            workers.prober,
            select,
            store=workers.store,
            may_pass=is_json and not edits,
        )
        order = order_ranks(items, group_by)
        placed = place(items, align=align, offsets_ns=offsets_ns, read_all=collective_flows)
        causality, sets = _check_collectives(placed, align, collective_flows=collective_flows)
        plan = _plan(items, placed, order, select, sets, ARGS.index(args), snap_overlaps_ns)
        if is_archive:
            plan.clocks.clear()
        counts = EventCounts(items)
        counts.collective_events_added = sum(map(len, plan.added))
        told.begin_writing(items)
        archive = None
        if is_archive:
            from tracekit.merge.write.archive import Archive

            archive = Archive(output, plan)
        with atomic_write(output, overwrite=overwrite, folder=workers.folder) as file:
            if archive is not None:
                archive.write(file, counts, told.at)
            else:
                _write(output, file, plan, workers, told, counts)
            report = counts.report(output, placed, omissions, causality)
            if archive is not None:
                report = replace(report, rewritten=archive.rewritten)
            if report.left_out and not any(report.events_out[phase] for phase in report.events_out if phase != "M"):
                report.warnings.append("nothing that happened is selected: the merged trace holds names only")
            if strict:
                _refuse(report)
    if progress is not None:
        progress(1.0, "done")
    return replace(report, output_bytes=size_bytes(output) or 0)


def _check_options(output: str, select: Selection | None, args: str, *, collective_flows: bool, snaps: bool) -> None:
    """Refuse options that do not fit together."""
    if not output.removesuffix(".gz").endswith(_FORMATS) and not output.endswith(ARCHIVES):
        endings = " or ".join(f"{ending} or {ending}.gz" for ending in _FORMATS)
        raise ConfigError(
            f"{without_secrets(output)}: the output must end with {endings}, or with .tar or .zip for an archive"
        )
    if args not in ARGS:
        raise ConfigError(f"args {args!r}: give one of {', '.join(ARGS)}")
    if collective_flows and output.endswith(ARCHIVES):
        raise ConfigError(f"{without_secrets(output)}: an archive has no place for arrows between its traces")
    if snaps and output.endswith(ARCHIVES):
        raise ConfigError(
            f"{without_secrets(output)}: an archive holds its inputs as they are; write .json or .pftrace instead"
        )
    if collective_flows and select is not None and select.names is not None:
        raise ConfigError(
            "arrows between collectives cannot be added to a selection by name; merge first, and trim that"
        )


def _check_collectives(
    placed: Placement, align: str, *, collective_flows: bool
) -> tuple[Causality | None, list[list[Member]]]:
    """Return what came of checking the order of collectives, and their members where arrows are wanted."""
    if not placed.logs:
        return None, []
    from tracekit.merge.align.collective_sets import check_causality, find_sets

    causality = None if align == "none" else check_causality(placed)
    sets = find_sets(placed) if collective_flows else []
    placed.logs.clear()
    return causality, sets


def _plan(
    items: list[Input],
    placed: Placement,
    order: RankOrder,
    select: Selection | None,
    sets: list[list[Member]],
    args: int,
    snap_ns: int,
) -> MergePlan:
    filters: list[EventFilter | None] = [None] * len(items)
    if select is not None and (select.of_events or any(item.unwanted_ranks for item in items)):
        from tracekit.merge.selection.event_filter import make_filters

        filters = make_filters(select, items, placed)
    layout = lay_out(items)
    flows = sum(map(_drawn_before, items))
    added: list[list[AddedEvent]] = [[] for _ in items]
    if sets:
        from tracekit.merge.align.collective_sets import collective_events

        first_id = namespace_of_collectives(layout.rank_count) * NAMESPACE + flows + 1
        added = collective_events(sets, len(items), filters, first_id)
        flows += sum(event.phase == "s" for events in added for event in events)
    layout = replace(layout, collective_flows=flows)
    return MergePlan(items, placed, layout, order, filters, added, unstated_clocks(items, placed.clocks), args, snap_ns)


def _write(
    output: str,
    file: BinaryIO,
    plan: MergePlan,
    workers: MergeExecutor,
    progress: MergeProgress,
    counts: EventCounts,
) -> None:
    """Write a merged trace, and note what became of the events of each input."""
    written = _output(output, plan)
    with packed(output, file) as sink:
        sink.write(written.head())
    units = plan.layout.units
    sizes = [sum(plan.inputs[number].bytes_read for number in unit) for unit in units]

    def job(unit: int) -> UnitJob:
        return plan.job(units[unit], written.part(unit), output)

    for result in workers.write_units(job, sizes, file, progress):
        counts.take(result)
    with packed(output, file) as sink:
        sink.write(written.tail(counts.stack_frames.text(), losses_as_json(counts.losses)))
    counts.total.added += written.own_events


def _output(output: str, plan: MergePlan) -> JsonOutput | PftraceOutput:
    """Return the writer of the format that the name of the output asks for."""
    if output.removesuffix(".gz").endswith(".json"):
        return JsonOutput(plan)
    from tracekit.merge.write.pftrace_output import PftraceOutput

    return PftraceOutput(plan)


def _drawn_before(item: Input) -> int:
    """Return how many arrows between collectives an earlier merge has drawn."""
    if item.kind != "merged":
        return 0
    count = merge_decisions(item.head().header).get("collective_flows", 0)
    return count if type(count) is int and 0 <= count < NAMESPACE else 0


def _refuse(report: MergeReport) -> None:
    """Raise what ``--strict`` does not accept."""
    lost = [drop for drop in report.dropped if drop.lost]
    missing = [item for item in report.omitted if not item.harmless]
    if lost:
        raise MergeError(
            f"{lost[0].path}: {lost[0].count} events would be lost ({lost[0].reason}); nothing was written (strict)"
        )
    if missing:
        raise MergeError(f"{missing[0].path}: {missing[0].reason}; nothing was written (strict)")
    if report.causality is not None and report.causality.violations:
        raise MergeError(f"{report.causality.words()}; nothing was written (strict)")
    if report.warnings:
        raise MergeError(f"{report.warnings[0]}; nothing was written (strict)")
