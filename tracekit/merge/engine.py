"""The merge itself: scan every input, plan, rewrite every input into one output."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.arguments import check_path, check_paths
from tracekit.errors import ConfigError, MergeError
from tracekit.formats.archive_file import archive_format
from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.merge.clocks.collective_events import Added, collective_events
from tracekit.merge.clocks.collective_sets import check_causality, find_sets
from tracekit.merge.clocks.placement import place
from tracekit.merge.inputs import find_inputs, gather
from tracekit.merge.outputs.archive import Archive
from tracekit.merge.outputs.json_output import JsonOutput
from tracekit.merge.outputs.merged import Merged
from tracekit.merge.outputs.output import output_format, packed, write_head
from tracekit.merge.parts import PartInput, PartJob
from tracekit.merge.plain_runs import PlainRuns
from tracekit.merge.planning import plan
from tracekit.merge.remote_parts import workshop_for
from tracekit.merge.selection.event_filter import make_filters
from tracekit.merge.shelf import Shelf
from tracekit.merge.tally import Tally
from tracekit.storage import atomic_write, basename, refuse_existing, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from tracekit.arguments import Paths, StrPath
    from tracekit.merge.input import Input
    from tracekit.merge.namespaces import InputMap
    from tracekit.merge.outputs.output import Output
    from tracekit.merge.report import MergeReport
    from tracekit.merge.selection.event_filter import EventFilter
    from tracekit.merge.selection.selection import Selection
    from tracekit.merge.workshop import Workshop

__all__ = ["merge_traces"]

_SCAN_SHARE: Final = 0.4


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
    progress: Callable[[float, str], None] | None = None,
    executor: Executor | None = None,
) -> MergeReport:
    """Merge rank traces of tracekit and traces of torch.profiler into one trace for Perfetto.

    Processes, threads and the ids of flows, async events and correlations become unique for each rank; times are put on
    one clock in integer nanoseconds; slices that overlap get tracks on which nothing is lost; stack frames (``stackFrames``) of
    all inputs are joined, each once, and in ``.pftrace`` written out as an argument. What is broken is repaired or left out,
    and the report says so. The result does not depend on the order of the inputs, which are only read. The output appears
    whole or not at all. What a merge that was killed has left beside a local output, the next merge to that output removes;
    see `tracekit.merge.scratch` for when, and `tracekit.merge.remote_parts` for what stays on a remote storage.

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
            "auto": clock exchanges of `ClockSync`, else the ends of matched collectives in torch's traces, else the wall clock;
            "sync" or "collectives": only that; "wall": the wall clocks are trusted; "none": every file keeps its times.
        offsets_ns: What to add to all times of a rank, in ns, by hand; its clock is not aligned otherwise.
        collective_flows: Whether to add arrows between the members of each collective that is found in torch's traces, from who
            came first to who came last, and a counter of how far apart they came. Not in archives.
        progress: Called now and then with the share that is done, 0 to 1, and with what is being done.
        executor: Who scans and rewrites the inputs, each as one piece of work, for example
            `tracekit.merge.workers.process_pool` or `tracekit.merge.dask_cluster.DaskExecutor`; it must reach the inputs and
            the folder of the output. The output is the same to the byte. None: this thread does all.

    Returns:
        What was merged, repaired and left out.

    Raises:
        ConfigError: The output is one of the inputs, or nothing was named; or what was named is no path.
        MergeError: The inputs do not fit together; or, under ``strict``, the merge would not be complete; or a worker died.
        TraceFormatError: None of the inputs is a trace.
        StorageError: An input cannot be read, or the output cannot be written or is there already.
    """
    output = check_path("output", output)
    told = {check_path("ranks", path): rank for path, rank in (ranks or {}).items()}
    make_archive = archive_format(output)
    make_output = JsonOutput if make_archive is not None else output_format(output)
    if collective_flows and make_archive is not None:
        raise ConfigError(f"{without_secrets(output)}: an archive has no place for arrows between its traces")
    if collective_flows and select is not None and select.names is not None:
        raise ConfigError(
            "arrows between collectives cannot be added to a selection by name; merge first, and trim that"
        )
    files = find_inputs(output, check_paths("inputs", inputs))
    if not overwrite:
        refuse_existing(output)  # before the inputs are read, which may take long; atomic_write looks again
    with workshop_for(output, executor) as workshop, Shelf(workshop.local_folder) as shelf:
        items, omissions = gather(
            files,
            told,
            _scan_progress(progress, [path for path, _ in files]),
            workshop.scanner,
            select,
            shelf=shelf,
        )
        placed = place(items, align=align, offsets_ns=offsets_ns, read_all=collective_flows)
        causality = check_causality(placed) if placed.logs and align != "none" else None
        sets = find_sets(placed) if collective_flows else []
        placed.logs.clear()
        maps = plan(
            items, placed.shifts_ns, placed.warps, shelf, workshop.assign_lanes, together=workshop.planned_together
        )
        filters = make_filters(select, items, maps, placed.base_ns)
        added_to = collective_events(sets, maps, filters) if sets else None
        merged = Merged(placed.base_ns, items, maps.processes, placed)

        def source(number: int) -> PartInput:
            added = None if added_to is None else added_to[number]
            return _part_input(items[number], *maps.with_plain(number), filters[number], added)

        tell = _write_progress(progress, items)
        archive = None if make_archive is None else Archive(make_archive, merged, maps, map(bool, filters))
        # An archive is written here, and sought in.
        writing = workshop.writing if archive is None else partial(atomic_write, output, folder=workshop.local_folder)
        tally = Tally(items)
        with writing(overwrite=overwrite) as file:
            if archive is not None:
                for number, added, result in archive.write(file, source, tell):
                    tally.take(number, result, added)
            else:
                _write(output, file, make_output(merged), source, workshop, tell, tally)
            if added_to is not None:
                tally.collective_events_added = sum(added.phases.total() for added in added_to)
            report = tally.report(output, placed, maps, omissions, causality)
            if archive is not None:
                moved = maps.moved if archive.rewritten else 0
                report = replace(report, rewritten=archive.rewritten, overlaps_moved=moved)
            if report.left_out and not any(report.events_out[phase] for phase in report.events_out if phase != "M"):
                report.warnings.append("nothing that happened is selected: the merged trace holds names only")
            if strict:
                _refuse(report)
    if progress is not None:
        progress(1.0, "done")
    return replace(report, output_bytes=size_bytes(output) or 0)


def _write(
    output: str,
    file: BinaryIO,
    written: Output,
    source: Callable[[int], PartInput],
    workshop: Workshop,
    progress: Callable[[int, int], None] | None,
    tally: Tally,
) -> None:
    """Write a merged trace, and note what became of the events of each input."""
    jobs = (
        PartJob([source(number) for number in unit], written.part(unit_number), written.separator, output)
        for unit_number, unit in enumerate(written.units)
    )
    with packed(output, file) as sink:
        tally.added = write_head(written, sink)
    for results in workshop.append_parts(jobs, file, progress):
        for number in sorted(results):  # frames that do not fit are the same ones, whoever was first
            tally.take(number, results[number])
    with packed(output, file) as sink:
        sink.write(written.tail(tally.stack_frames.text()))


def _scan_progress(
    progress: Callable[[float, str], None] | None, paths: list[str]
) -> Callable[[str, int], None] | None:
    if progress is None:
        return None
    numbers = {path: number for number, path in enumerate(paths)}

    def tell(path: str, done_bytes: int) -> None:
        # How much a packed file unpacks to is not known: approach the end without reaching it.
        inside = done_bytes / (done_bytes + 64_000_000)
        progress(_SCAN_SHARE * (numbers[path] + inside) / len(paths), f"reading {basename(path)}")

    return tell


def _write_progress(
    progress: Callable[[float, str], None] | None, items: list[Input]
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    before = [0, *accumulate(item.scan.bytes_read for item in items)]

    def tell(number: int, done_bytes: int) -> None:
        share = (before[number] + done_bytes) / (before[-1] or 1)
        progress(_SCAN_SHARE + (1 - _SCAN_SHARE) * share, f"writing {basename(items[number].path)}")

    return tell


def _part_input(
    item: Input, target: InputMap, plain: PlainRuns, chosen: EventFilter | None, added: Added | None
) -> PartInput:
    return PartInput(
        number=target.number,
        path=item.path,
        shown=item.scan.path,
        target=target,
        id_args=item.scan.kind in ("torch", "merged"),
        epoch_only=item.scan.base_ns == 0,
        events=item.scan.events,
        # As text, all times of a run are moved alike.
        plain=plain if target.warp is None else PlainRuns(),
        size_bytes=item.scan.bytes_read,
        chosen=chosen,
        added=added,
        stack_frames=item.scan.head().header[STACK_FRAMES] if item.scan.has_stack_frames else None,
    )


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
