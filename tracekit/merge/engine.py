"""The merge itself: scan every input, plan, rewrite every input into one output."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.errors import ConfigError, MergeError, StorageError
from tracekit.formats.archive_file import archive_format
from tracekit.merge.clocks.collective_events import Added, collective_events
from tracekit.merge.clocks.collective_sets import check_causality, find_sets
from tracekit.merge.clocks.placement import place
from tracekit.merge.clocks.words import RankClock
from tracekit.merge.inputs import find_inputs, gather
from tracekit.merge.losses import recording_losses
from tracekit.merge.namespaces import plan
from tracekit.merge.outputs.archive import Archive
from tracekit.merge.outputs.json_output import JsonOutput
from tracekit.merge.outputs.output import Merged, output_format, packed
from tracekit.merge.parts import PartInput, PartJob
from tracekit.merge.plain import PlainRuns
from tracekit.merge.remote_parts import workshop_for
from tracekit.merge.report import Causality, Drop, InputReport, LeftOut, MergeReport, OmissionReport, RankReport, Repair
from tracekit.merge.selection.event_filter import make_filters
from tracekit.storage import atomic_write, basename, exists, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from tracekit.merge.clocks.placement import Placement
    from tracekit.merge.inputs import Input
    from tracekit.merge.namespaces import InputMap, Process
    from tracekit.merge.outputs.output import Output
    from tracekit.merge.parts import PartResult, Workshop
    from tracekit.merge.selection.event_filter import EventFilter
    from tracekit.merge.selection.selection import Selection

__all__ = ["merge_traces"]

_SCAN_SHARE: Final = 0.4


def merge_traces(
    output: str,
    inputs: Sequence[str],
    *,
    overwrite: bool = False,
    strict: bool = False,
    ranks: Mapping[str, int] | None = None,
    select: Selection | None = None,
    align: str = "auto",
    offsets_ns: Mapping[int, int] | None = None,
    collective_flows: bool = False,
    progress: Callable[[float, str], None] | None = None,
    executor: Executor | None = None,
) -> MergeReport:
    """Merge rank traces of tracekit and traces of torch.profiler into one trace for Perfetto.

    Processes, threads and the ids of flows, async events and correlations become unique for each rank; times are put on
    one clock in integer nanoseconds; slices that overlap get tracks on which nothing is lost. What is broken is repaired
    or left out, and the report says so. The result does not depend on the order of the inputs, which are only read. The
    output appears whole or not at all.

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
        ConfigError: The output is one of the inputs, or nothing was named.
        MergeError: The inputs do not fit together; or, under ``strict``, the merge would not be complete; or a worker died.
        TraceFormatError: None of the inputs is a trace.
        StorageError: An input cannot be read, or the output cannot be written or is there already.
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    make_archive = archive_format(output)
    make_output = JsonOutput if make_archive is not None else output_format(output)
    if collective_flows and make_archive is not None:
        raise ConfigError(f"{without_secrets(output)}: an archive has no place for arrows between its traces")
    if collective_flows and select is not None and select.names is not None:
        raise ConfigError(
            "arrows between collectives cannot be added to a selection by name; merge first, and trim that"
        )
    files = find_inputs(output, inputs)
    if not overwrite and exists(output):
        # Said before the inputs are read, which may take long; atomic_write looks again.
        raise StorageError(
            f"{without_secrets(output)}: already exists; choose another name, or pass --force to replace it"
        )
    with workshop_for(output, executor) as workshop:
        items, omissions = gather(
            files, ranks or {}, _scan_progress(progress, [path for path, _ in files]), workshop.scanner, select
        )
        placed = place(items, align=align, offsets_ns=offsets_ns, read_all=collective_flows)
        sets = find_sets(placed)
        causality = check_causality(placed, sets) if placed.logs and align != "none" else None
        placed.logs.clear()
        processes, maps, moved = plan(items, placed.shifts_ns, workshop.assign_lanes)
        for target, warp in zip(maps, placed.warps, strict=True):
            target.warp = warp
        filters = make_filters(select, items, maps, placed.base_ns)
        added_to = collective_events(sets if collective_flows else [], maps, filters)
        omitted = [OmissionReport(item.path, item.reason, item.harmless) for item in omissions if not item.requested]
        left_out = [LeftOut(item.path, item.reason, None) for item in omissions if item.requested]
        merged = Merged(placed.base_ns, items, processes, placed.metadata())
        sources = [
            _part_input(number, items[number], maps[number], filters[number], added_to[number])
            for number in range(len(items))
        ]
        tell = _write_progress(progress, items)
        archive = None if make_archive is None else Archive(make_archive, merged, maps, map(bool, filters))
        # An archive is written here, and sought in.
        writing = workshop.writing if archive is None else partial(atomic_write, output)
        with writing(overwrite=overwrite) as file:
            if archive is not None:
                added, results = archive.write(file, sources, tell)
            else:
                added, results = _write(output, file, make_output(merged), sources, workshop, tell)
            for item, result in zip(items, results, strict=True):
                left_out += [LeftOut(item.scan.path, why, count) for why, count in sorted(result.left_out.items())]
            report = _report(
                output, placed, items, processes, results, omitted, left_out, added, moved, added_to, causality
            )
            if archive is not None:
                report = replace(report, rewritten=archive.rewritten, overlaps_moved=moved if archive.rewritten else 0)
            if left_out and not any(report.events_out[phase] for phase in report.events_out if phase != "M"):
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
    sources: list[PartInput],
    workshop: Workshop,
    progress: Callable[[int, int], None] | None,
) -> tuple[int, list[PartResult]]:
    """Write a merged trace; returns how many metadata events were added, and what became of the events of each input."""
    jobs = [
        PartJob([sources[number] for number in unit], written.part(unit_number), written.separator, output)
        for unit_number, unit in enumerate(written.units)
    ]
    head, added = written.head()
    with packed(output, file) as sink:
        sink.write(head)
    results = workshop.append_parts(jobs, file, progress)
    with packed(output, file) as sink:
        sink.write(written.tail())
    return added, results


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


def _part_input(number: int, item: Input, target: InputMap, chosen: EventFilter | None, added: Added) -> PartInput:
    return PartInput(
        number=number,
        path=item.path,
        shown=item.scan.path,
        target=target,
        id_args=item.scan.kind in ("torch", "merged"),
        epoch_only=item.scan.base_ns == 0,
        events=sum(item.scan.phases.values()),
        # As text, all times of a run are moved alike.
        plain=item.scan.plain if target.warp is None else PlainRuns(),
        size_bytes=item.scan.bytes_read,
        chosen=chosen,
        added=added,
    )


def _report(
    output: str,
    placed: Placement,
    items: list[Input],
    processes: list[Process],
    results: list[PartResult],
    omitted: list[OmissionReport],
    left_out: list[LeftOut],
    added: int,
    moved: int,
    added_to: list[Added],
    causality: Causality | None,
) -> MergeReport:
    events_in: Counter[str] = Counter()
    events_out: Counter[str] = Counter({"M": added} if added else {})
    repaired: list[Repair] = []
    dropped: list[Drop] = []
    for item, result in zip(items, results, strict=True):
        path = item.scan.path
        events_in.update(item.scan.phases)
        events_out.update(result.written)
        repaired += [
            Repair(path, found.kind, found.count, found.offset_bytes, found.detail) for found in item.scan.repairs
        ]
        repaired += [Repair(path, kind, count, None, "") for kind, count in sorted(result.repaired.items())]
        dropped += [
            Drop(path, found.kind, found.count, found.offset_bytes, Drop.is_loss(found.kind))
            for found in item.scan.drops
        ]
        dropped += [
            Drop(path, reason, count, None, Drop.is_loss(reason)) for reason, count in sorted(result.dropped.items())
        ]
    titles: dict[int, list[str]] = {rank: [] for rank in placed.clocks}
    for process in processes:
        titles.setdefault(process.rank, []).append(process.title)
    return MergeReport(
        output=without_secrets(output),
        output_bytes=0,
        base_time_ns=placed.base_ns,
        inputs=[
            InputReport(
                path=item.scan.path,
                kind=item.scan.kind,
                rank=item.rank,
                rank_source=item.rank_source,
                form=item.scan.form,
                generation=item.scan.generation,
                base_time_ns=item.scan.base_ns,
                host=item.host,
                events=sum(item.scan.phases.values()),
                bytes=item.scan.bytes_read,
            )
            for item in items
        ],
        omitted=omitted,
        left_out=left_out,
        recording_losses=recording_losses(items),
        ranks=[_rank_report(rank, placed.clocks.get(rank), names) for rank, names in sorted(titles.items())],
        events_in=dict(sorted(events_in.items())),
        events_out=dict(sorted(events_out.items())),
        metadata_added=added,
        collective_events_added=sum(added.phases.total() for added in added_to),
        overlaps_moved=moved,
        repaired=repaired,
        dropped=dropped,
        causality=causality,
        warnings=placed.warnings,
    )


def _rank_report(rank: int, clock: RankClock | None, processes: list[str]) -> RankReport:
    if clock is None:
        clock = RankClock(rank=rank, source="unknown", aligned=False, words="unknown")
    return RankReport(
        rank, clock.words, processes, clock.source, clock.aligned, clock.offset_ns, clock.drift_ppm, clock.error_ns
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
