"""Summarize a run: the verdict, and the time of steps, stages, devices and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.explain.arrays import np
from tracekit.explain.collectives import exposed_shares
from tracekit.explain.gpu import free_times_in, gpu_times_and_gaps
from tracekit.explain.run import open_run
from tracekit.explain.stages import cut_notes, gap_summary, training_stages
from tracekit.explain.stragglers import compare_run
from tracekit.explain.summary_results import (
    FileSummary,
    GapSummary,
    MarkerSummary,
    RankSummary,
    StageSummary,
    StepSummary,
    StepTable,
    TraceSummary,
    slowest_of,
)
from tracekit.explain.verdict import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import Paths
    from tracekit.explain.arrays import Ints
    from tracekit.explain.gpu_results import GPUTime
    from tracekit.explain.run import Run
    from tracekit.explain.stages import StageTimes
    from tracekit.explain.steps import RankSteps

_MAX_GAPS: Final = 10
_MAX_GAPS_READ: Final = 100  # some of them are pauses of the recording
_MAX_CELLS: Final = 2_000_000
_MIN_STEPS: Final = 200
_LONG_STAGE: Final = 0.05
_MAX_STEPS: Final = 20_000

# Sums beyond 64 bits: Parquet has no wider integers.
_MARKERS: Final = """
SELECT rank, label, count(*) AS slices, sum(duration_ns)::DECIMAL(38) AS total_ns, sum(self_ns)::DECIMAL(38) AS self_ns,
    avg(duration_ns) AS mean_ns, quantile_disc(duration_ns, [0.5, 0.95, 0.99]) AS percentiles_ns,
    (sum(duration_ns) FILTER (step IS NOT NULL))::DECIMAL(38) AS in_steps_ns, min(start_ns) AS first_ns,
    max(start_ns + duration_ns) AS last_ns
FROM slice WHERE {ranks} GROUP BY rank, label ORDER BY rank, total_ns DESC, label"""

_SLICES_OF: Final = """
SELECT nullif(rank, -1) AS rank, start_ns, start_ns + duration_ns AS end_ns FROM slice WHERE label IN ({labels})"""

_FIGURES: Final = ("count", "total_ns", "self_ns", "mean_ns", "p50_ns", "p95_ns", "p99_ns")
_MARKERS_OF: Final = """
SELECT rank, label, first_ns, last_ns, in_steps_ns::HUGEINT, slices, total_ns::HUGEINT, self_ns::HUGEINT, mean_ns,
    percentiles_ns[1], percentiles_ns[2], percentiles_ns[3]
FROM marker_{number}"""

_MAX_COUNTED: Final = 20_000_000  # slices in one statement: exact percentiles keep all durations in memory
_RANK_GROUPS: Final = """
WITH counted AS (
    SELECT coalesce(rank, -1) AS rank, sum(count(*)) OVER (ORDER BY coalesce(rank, -1)) AS events FROM events GROUP BY 1
)
SELECT string_agg(rank, ', ' ORDER BY rank) FROM counted GROUP BY (events - 1) // {most} ORDER BY min(rank)"""


def summarize_traces(
    inputs: Paths,
    *,
    inside: Sequence[str] = (),
    cache: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> TraceSummary:
    """Summarize the time of a run.

    Nothing is estimated: the percentiles are exact.

    Args:
        inputs: Files, folders, globs or URLs: rank traces, torch.profiler's traces, merged traces; JSON or Perfetto's own,
            plain or packed.
        inside: Names of markers that enclose the stages of a step.
        cache: False to keep no tables.
        progress: Called with the completed share of the work, 0 to 1, and a description of the current part.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, or one trace twice.
        StorageError: A file cannot be read, or the cache cannot be written.
        TraceFormatError: A file that was named is not a trace.
        MissingExtraError: DuckDB is not installed.
    """
    with open_run(inputs, inside=inside, cache=cache, progress=progress) as run:
        return run.keep(TraceSummary, lambda: summarize_run(run, training_stages(run)), sorted(inside))


def summarize_run(run: Run, stages: dict[int, StageTimes]) -> TraceSummary:
    """Summarize an open run."""
    devices, gaps = _devices(run)
    gaps += [gap for own in stages.values() for gap in own.gaps]
    markers, spans = _markers(run)
    kept = min(_MAX_STEPS, max(_MIN_STEPS, _MAX_CELLS // (16 * max(1, len(run.steps.ranks)))))
    ranks = [
        _rank(rank, spans[rank], run.steps.of(rank), stages.get(rank), devices.get(rank, []), kept)
        for rank in run.ranks
        if rank in spans
    ]
    found = compare_run(run, stages, collectives=False)
    exposed = {} if devices else exposed_shares(run, _long_stages(ranks))
    notes = [*run.notes, *run.steps.notes]
    if any(len(own) > kept for own in run.steps.ranks.values()):
        notes.append(f"only the first {kept:,} steps of each rank are listed one by one")
    return TraceSummary(
        verdict=verdict_of(ranks, found, exposed, _free_stage(run, ranks)),
        files=[FileSummary(file=path, events=events) for path, events in run.files],
        ranks=ranks,
        slowest_rank=slowest_of(ranks),
        stragglers=found.stragglers,
        outliers=found.outliers,
        markers=markers,
        gaps=sorted(gaps, key=lambda gap: (-gap.length_ns, gap.rank, gap.where, gap.start_ns))[:_MAX_GAPS],
        warm_up=run.steps.warm_up,
        notes=[*notes, *cut_notes(stages.values())],
        incomplete=run.incomplete,
    )


def _free_stage(run: Run, ranks: list[RankSummary]) -> str:
    """Return the stage with more than half of the time in which GPUs wait and the CPU runs no operator; empty without one."""
    devices = [device for rank in ranks for device in rank.devices]
    free_ns = sum(device.host_free_ns or 0 for device in devices)
    if 2 * free_ns <= sum(device.host_bound_ns - device.host_communication_ns for device in devices):
        return ""
    labels = run.labels_of(_long_stages(ranks), ("stage", "loading"))
    slices = {name: _SLICES_OF.format(labels=", ".join(map(str, own))) for name, own in labels.items()}
    found = free_times_in(run.database, slices)
    return next((name for name in sorted(found) if 2 * found[name] > free_ns), "")


def _long_stages(ranks: list[RankSummary]) -> set[str]:
    """Return the names of the stages that take a considerable part of the steps of a rank."""
    stages = (stage for rank in ranks for stage in rank.stages)
    return {stage.name for stage in stages if stage.share_of_steps >= _LONG_STAGE and not stage.collective}


def _markers(run: Run) -> tuple[list[MarkerSummary], dict[int, int]]:
    """Return the markers, and for each rank the time from its first slice to the end of the last."""
    totals = {rank: int(steps.durations.astype(float).sum()) for rank, steps in run.steps.ranks.items()}
    found = []
    spans: dict[int, tuple[int, int]] = {}
    rows: list[tuple[Any, ...]] = []
    for number, ranks in enumerate(_rank_groups(run)):
        run.database.derive(f"marker_{number}", _MARKERS.format(ranks=ranks), of=["label"])
        rows += run.database.run(_MARKERS_OF.format(number=number))
    for rank, label, first, last, in_steps, *figures in rows:
        name, category, kind = run.labels[label]
        before = spans.get(rank, (first, last))
        spans[rank] = min(before[0], first), max(before[1], last)
        found.append(
            MarkerSummary(
                rank=rank,
                name=name,
                category=category,
                **dict(zip(_FIGURES, figures, strict=True)),
                share_of_steps=(in_steps or 0) / totals[rank] if totals.get(rank) else None,
                frame=kind in ("frame", "step") or name.startswith("ProfilerStep#"),
            )
        )
    return found, {rank: last - first for rank, (first, last) in spans.items()}


def _rank_groups(run: Run) -> list[str]:
    """Return conditions on ``rank``: one for a run, or for each group of ranks of a large run."""
    if sum(events for _, events in run.files) <= _MAX_COUNTED:
        return ["true"]
    return [f"rank IN ({ranks})" for (ranks,) in run.database.run(_RANK_GROUPS.format(most=_MAX_COUNTED))]


def _devices(run: Run) -> tuple[dict[int, list[GPUTime]], list[GapSummary]]:
    """Return the devices of each rank, and their longest idle times."""
    found: dict[int, list[GPUTime]] = {}
    times, idle = gpu_times_and_gaps(run.database, _MAX_GAPS_READ)
    for gpu in times:
        found.setdefault(-1 if gpu.rank is None else gpu.rank, []).append(gpu)
    gaps = []
    for rank, device, start, length, after, before in idle:
        steps = run.steps.of(rank)
        moment = np.array([start])
        if not steps.is_pause(moment, moment + length)[0]:
            name = next(gpu.name for gpu in found[rank] if gpu.device == device)
            gaps.append(gap_summary(steps, rank, name, (start, length), after, before))
    return found, gaps


def _rank(
    rank: int, span_ns: int, steps: RankSteps, own: StageTimes | None, devices: list[GPUTime], kept: int
) -> RankSummary:
    durations = steps.counted
    total = int(durations.astype(float).sum())
    stages = []
    if own is not None:
        for name, stage_ns, meets in zip(own.names, own.totals_ns.tolist(), own.meets, strict=True):
            of_steps = stage_ns / total if total else 0.0
            if not stage_ns:  # an evaluation, for example, whose steps do not count
                continue
            stages.append(StageSummary(name=name, total_ns=int(stage_ns), share_of_steps=of_steps, collective=meets))
    return RankSummary(
        rank=rank,
        span_ns=int(span_ns),
        training_thread="" if own is None else own.thread,
        steps=_step_summary(durations, total),
        stages=stages,
        unrecorded_ns=0 if own is None else own.unrecorded_ns,
        loading=None if own is None else own.loading,
        devices=devices,
        step_by_step=_step_table(steps, own, kept),
    )


def _step_summary(durations: Ints, total: int) -> StepSummary:
    count, ordered = len(durations), np.sort(durations)
    # By nearest rank.
    p50, p95, p99, longest = (
        int(ordered[-(-percent * count // 100) - 1]) if count else 0 for percent in (50, 95, 99, 100)
    )
    mean = total / count if count else 0.0
    return StepSummary(
        count=count, total_ns=total, mean_ns=mean, p50_ns=p50, p95_ns=p95, p99_ns=p99, longest_ns=longest
    )


def _step_table(steps: RankSteps, own: StageTimes | None, kept: int) -> StepTable:
    cells: dict[str, Any] = {}
    if own is not None:
        cells = {name: own.times[:kept, at].astype(np.int64).tolist() for at, name in enumerate(own.names)}
    return StepTable(
        numbers=steps.numbers[:kept].tolist(),
        durations_ns=steps.durations[:kept].tolist(),
        counted=steps.counts[:kept].tolist(),
        stages_ns=cells,
    )
