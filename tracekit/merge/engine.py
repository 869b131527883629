"""The merge: probe every input, align, plan, and rewrite every input into one output, in one pass over each input."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.arguments import check_path, check_paths, check_whole
from tracekit.errors import ConfigError, MergeError
from tracekit.formats.gzip_codec import packed
from tracekit.formats.merged_head import merge_decisions
from tracekit.merge.align.placement import place, unstated_clocks
from tracekit.merge.execute.executor import MergeProgress, merge_executor
from tracekit.merge.plan.plan import NAMESPACE, MergePlan, lay_out, namespace_of_collectives
from tracekit.merge.plan.titles import order_ranks
from tracekit.merge.report import happened
from tracekit.merge.scan.inputs import find_inputs, gather
from tracekit.merge.selection.selection import Selection
from tracekit.merge.write.event_counts import EventCounts, losses_as_json
from tracekit.merge.write.json_output import JsonOutput
from tracekit.storage import atomic_write, refuse_existing, size_bytes, without_secrets
from tracekit.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from tracekit.arguments import Paths, StrPath
    from tracekit.merge.align.collective_sets import AddedEvent, Member
    from tracekit.merge.align.placement import Placement
    from tracekit.merge.execute.executor import MergeExecutor
    from tracekit.merge.plan.plan import UnitJob
    from tracekit.merge.plan.titles import RankOrder
    from tracekit.merge.report import Causality, MergeReport
    from tracekit.merge.scan.input import Input
    from tracekit.merge.selection.event_filter import EventFilter
    from tracekit.merge.write.pftrace_output import PftraceOutput

ARGS: Final = ("all", "ids", "none")
"""The choices of ``args``. Their indexes are the modes of the rewriter."""

ARCHIVES: Final = (".tar", ".zip")
"""The suffixes of archives."""

_FORMATS: Final = (".json", ".pftrace")
_MAX_SNAP_NS: Final = 2**62


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

    Processes, threads and the ids of flows, async events and correlations become unique for each rank. Times are
    converted to one clock, in integer nanoseconds. Overlapping slices move to additional tracks, so that none is lost.
    The stack frames (``stackFrames``) of all inputs are joined without duplicates; in ``.pftrace`` they become an
    argument. Broken events are repaired or dropped, and reported.

    The inputs are only read, and their order does not change the result. The output appears complete or not at all. The
    next merge to a local output removes the temporary files of a killed merge; see `tracekit.merge.execute.scratch` for
    the conditions, and `tracekit.merge.execute.part_store` for remote storages.

    Args:
        output: The file or URL to write: ``.json``, or ``.pftrace`` for a native trace of Perfetto. Append ``.gz`` to
            compress it. ``.tar`` and ``.zip`` write an archive of the inputs with a ``perfetto_manifest.json`` that
            aligns them, for Perfetto v58 and later.
        inputs: Files, folders, globs and URLs of Chrome JSON traces, plain or gzip.
        overwrite: True to replace an existing output.
        strict: True to write nothing if an event would be lost, an input dropped, or a clock assumed.
        ranks: Ranks by path or file name, for inputs without a rank or with a wrong one.
        select: The part of the run to keep; everything by default.
        align: The source of the offsets between the clocks of the ranks. Ranks of one host and boot share a clock.
            "auto": clock exchanges of `ClockSync`, else the ends of matched collectives in torch's traces (a sample of
            large traces), else the wall clock. "sync" or "collectives": only this source, and all collectives. "wall":
            trust the wall clocks. "none": every file keeps its times.
        offsets_ns: Offset in ns to add to all times of a rank, instead of an alignment of its clock.
        collective_flows: True to add arrows between the members of each collective in torch's traces, from the first to
            the last arrival, and a counter of the time between these. Not in archives.
        group_by: Sort the ranks by their position in a dimension of parallelism ("tp", "dp", "pp" or "ep"), or by their
            hosts ("node"). Positions come from the file names of known projects and from Kineto's process groups.
        args: The arguments of events to keep: "all", "ids" (those that connect events) or "none".
        snap_overlaps_ns: Maximum overlap of two slices of a GPU stream that is removed by shortening the earlier slice.
            The noise of CUPTI's clock causes such overlaps. Slices with larger overlaps move to a separate track, as
            all do by default.
        progress: Called from time to time with the completed share, 0 to 1, and the current activity.
        executor: Executor that reads and rewrites the inputs in addition to this thread, with one task per rank, for
            example `tracekit.worker_processes.process_pool` or `tracekit.merge.execute.dask_cluster.DaskExecutor`. It
            needs access to the inputs and the folder of the output. The output is the same to the byte.

    Returns:
        A report of the merged, repaired and dropped events and inputs.

    Raises:
        ConfigError: The output is one of the inputs, there is no input, or an argument is not a path.
        MergeError: The inputs do not fit together, the merge would be incomplete under ``strict``, or a worker died.
        TraceFormatError: None of the inputs is a trace.
        StorageError: An input cannot be read, or the output exists or cannot be written.
    """
    output = check_path("output", output)
    is_json = output.removesuffix(".gz").endswith(".json")
    snap_ns = min(check_whole("snap_overlaps_ns", snap_overlaps_ns, 0), _MAX_SNAP_NS)
    if not isinstance(select, Selection | None):
        raise ConfigError(f"select must be a Selection, not {select!r}")
    if executor is not None and not hasattr(executor, "submit"):
        raise ConfigError(f"executor must be an Executor, not {executor!r}")
    given = (ranks or {}).items()
    stated = {check_path("ranks", path): check_whole(f"the rank of {path}", rank, 0) for path, rank in given}
    _check_options(output, select, args, collective_flows=collective_flows, snaps=snap_ns > 0)
    files = find_inputs(output, check_paths("inputs", inputs))
    if not overwrite:
        refuse_existing(output)  # before the inputs are read, which may take long; atomic_write checks it again
    edits = group_by is not None or args != "all" or snap_ns > 0
    told = MergeProgress(progress, [path for path, _ in files])
    with merge_executor(output, executor) as workers:
        items, omissions = gather(
            files,
            stated,
            told.read,
            workers.prober,
            select,
            store=workers.store,
            may_pass=is_json and not edits,
        )
        order = order_ranks(items, group_by)
        placed = place(items, align=align, offsets_ns=offsets_ns, read_all=collective_flows)
        causality, sets = _check_collectives(placed, align, collective_flows=collective_flows)
        plan = _plan(items, placed, order, select, sets, ARGS.index(args), snap_ns)
        counts = EventCounts(items)
        told.begin_writing(items)
        with atomic_write(output, overwrite=overwrite, folder=workers.folder) as file:
            rewritten = _write(output, file, plan, workers, told, counts)
            report = counts.report(output, placed, omissions, causality, sum(map(len, plan.added)))
            if report.left_out and not happened(report.events_out):
                report.warnings.append("nothing that happened is selected: the merged trace holds names only")
            if strict:
                _refuse(report)
    if progress is not None:
        progress(1.0, "done")
    return replace(report, output_bytes=size_bytes(output) or 0, rewritten=rewritten)


def check_output(output: str) -> None:
    """Raise ConfigError for a file name that a merged trace cannot have."""
    if not output.endswith(ARCHIVES) and not output.removesuffix(".gz").endswith(_FORMATS):
        endings = " or ".join(f"{ending} or {ending}.gz" for ending in _FORMATS)
        shown = without_secrets(output)
        raise ConfigError(f"{shown}: the output must end with {endings}, or with .tar or .zip for an archive")


def _check_options(output: str, select: Selection | None, args: str, *, collective_flows: bool, snaps: bool) -> None:
    check_output(output)
    shown, is_archive = without_secrets(output), output.endswith(ARCHIVES)
    for is_wrong, problem in (
        (args not in ARGS, f"args {args!r}: give one of {', '.join(ARGS)}"),
        (collective_flows and is_archive, f"{shown}: an archive has no place for arrows between its traces"),
        (snaps and is_archive, f"{shown}: an archive holds its inputs as they are; write .json or .pftrace instead"),
        (
            collective_flows and select is not None and select.names is not None,
            "arrows between collectives cannot be added to a selection by name; merge first, and trim that",
        ),
    ):
        if is_wrong:
            raise ConfigError(problem)


def _check_collectives(
    placed: Placement, align: str, *, collective_flows: bool
) -> tuple[Causality | None, list[list[Member]]]:
    """Check the order of collectives. Return the result, and the members of the collectives if arrows are wanted."""
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
    output: str, file: BinaryIO, plan: MergePlan, workers: MergeExecutor, progress: MergeProgress, counts: EventCounts
) -> dict[str, str] | None:
    """Write the output, and count the events. Return the inputs that an archive does not keep as they are, with reasons."""
    if output.endswith(ARCHIVES):
        from tracekit.merge.write.archive import Archive

        plan.clocks.clear()
        return Archive(output, plan, workers.folder).write(file, counts, progress.at)
    written: JsonOutput | PftraceOutput = JsonOutput(plan)
    if not output.removesuffix(".gz").endswith(".json"):
        from tracekit.merge.write.pftrace_output import PftraceOutput

        written = PftraceOutput(plan)
    with packed(output, file) as sink:
        sink.write(written.head())
    units = plan.layout.units
    sizes = [sum(plan.inputs[number].bytes_read for number in unit) for unit in units]

    def job(unit: int) -> UnitJob:
        return plan.job(units[unit], written.make_encoder(unit), output)

    for result in workers.write_units(job, sizes, file, progress):
        counts.take(result)
    with packed(output, file) as sink:
        sink.write(written.tail(counts.stack_frames.text(), losses_as_json(counts.losses)))
    counts.total.added += written.own_events
    return None


def _drawn_before(item: Input) -> int:
    """Return the number of arrows between collectives that an earlier merge has added."""
    if item.kind != "merged":
        return 0
    count = merge_decisions(item.head().header).get("collective_flows", 0)
    return count if type(count) is int and 0 <= count < NAMESPACE else 0


def _refuse(report: MergeReport) -> None:
    problems = [
        f"{drop.path}: {drop.count} events would be lost ({drop.reason})" for drop in report.dropped if drop.lost
    ]
    problems += [f"{item.path}: {item.reason}" for item in report.omitted if not item.harmless]
    if report.causality is not None and report.causality.violations:
        problems.append(report.causality.words())
    problems += report.warnings
    if problems:
        raise MergeError(f"{problems[0]}; nothing was written (strict)")
