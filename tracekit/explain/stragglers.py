"""Find the ranks that are slower than the others, and the steps that take longer than usual."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.explain import CONFIDENCE, MIN_SHARE
from tracekit.explain.arrays import np
from tracekit.explain.clocks import resolution_of
from tracekit.explain.collectives import collective_waits
from tracekit.explain.cycles import cycles_of_run, stage_costs
from tracekit.explain.noise import Correction, block_means
from tracekit.explain.run import check_shares, open_run
from tracekit.explain.slow_ranks import compare_ranks, find_outlier_steps, slow_rows
from tracekit.explain.stages import cut_notes, training_stages
from tracekit.explain.stragglers_results import Sensitivity, StageReport, StepOutlier, Straggler, StragglerReport
from tracekit.explain.text import share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import Paths
    from tracekit.explain.collectives import Waits
    from tracekit.explain.cycles import Cycles, RunCycles
    from tracekit.explain.run import Run
    from tracekit.explain.slow_ranks import SlowRank
    from tracekit.explain.stages import StageTimes
    from tracekit.explain.steps import RunSteps

_STEPS_TO_LOOK_AT: Final = 3
_MAX_BLOCKS: Final = 30
"""Number of averages of collectives that are compared if steps are unknown: collectives of one step share their delay."""


def find_stragglers(
    inputs: Paths,
    *,
    inside: Sequence[str] = (),
    at_least: float = MIN_SHARE,
    sure: float = CONFIDENCE,
    cache: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> StragglerReport:
    """Find the ranks that are slower than the others, and the steps that take longer than usual.

    Compares durations only: clocks need not be synchronized. See `tracekit.explain.cycles` and
    `tracekit.explain.collectives`.

    Args:
        inputs: Traces of all ranks: files, folders, globs or URLs, merged or not.
        inside: Names of markers that enclose the stages of a step.
        at_least: Least delay to report, as a share of a step.
        sure: Probability that no rank of equal ranks is reported.
        cache: False to keep no tables.
        progress: Called with the completed share of the work, 0 to 1, and a description of the current part.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, one trace twice, or a share is not between 0 and 1.
        StorageError: A file cannot be read, or the cache cannot be written.
        TraceFormatError: A file that was named is not a trace.
        MissingExtraError: DuckDB is not installed.
    """
    check_shares(at_least=at_least, sure=sure)
    with open_run(inputs, inside=inside, cache=cache, progress=progress) as run:
        key = (sorted(inside), at_least, sure)
        return run.keep(StragglerReport, lambda: compare_run(run, training_stages(run), at_least, sure), *key)


def compare_run(
    run: Run,
    stages: dict[int, StageTimes],
    at_least: float = MIN_SHARE,
    sure: float = CONFIDENCE,
    *,
    collectives: bool = True,
) -> StragglerReport:
    """Compare the ranks of a run."""
    resolution = resolution_of(run)
    found = cycles_of_run(stages, run.steps)
    waits = collective_waits(run) if collectives else None
    cycles, names = found.cycles, found.ordered_names
    steps, step_ns = (0, 0.0) if cycles is None else (len(cycles.begins), cycles.length)
    reports: list[StageReport] = []
    stragglers: list[Straggler] = []
    sensitivity = None
    if cycles is not None:
        for name, cost in zip(names, stage_costs(cycles), strict=True):
            led = dict(zip(found.ranks, cost.led, strict=True))
            reports.append(StageReport(name=name, exposed_ns=cost.exposed, median_ns=cost.median, led=led))
        compared = compare_ranks(cycles, min_share=at_least, confidence=sure, resolution=resolution * step_ns)
        if compared is not None:
            stragglers = [_slow_in_stage(one, found, cycles) for one in compared.slow]
            noise = dict(zip(found.ranks, compared.noise, strict=True))
            sensitivity = Sensitivity(
                limit_share=compared.limit, ess=compared.ess, steps_needed=compared.steps_needed, noise=noise
            )
    if waits is not None and waits.report is not None:
        stragglers += _late_at_collectives(waits, run.steps, step_ns, max(at_least, 3 * resolution), sure)
    notes = [*run.steps.notes, *found.notes]
    if 3 * resolution > at_least:
        notes.append(
            f"delays below {share(3 * resolution)} of a step are not reported: the alignment of the ranks may stretch times by "
            f"{share(resolution)}"
        )
    return StragglerReport(
        files=[path for path, _ in run.files],
        ranks=found.ranks or run.ranks,
        steps=steps,
        step_ns=step_ns,
        together_after=names[-1] if names else None,
        stages=reports,
        collectives=None if waits is None else waits.report,
        warm_up=run.steps.warm_up,
        stragglers=sorted(stragglers, key=lambda one: (-one.mean_ns, one.rank, one.stage or "")),
        outliers=[] if cycles is None else _outliers(found, cycles),
        sensitivity=sensitivity,
        others_wait=cycles is not None and cycles.waits,
        notes=[*notes, *(() if waits is None else waits.unmatched), *run.notes, *cut_notes(stages.values())],
    )


def _slow_in_stage(one: SlowRank, found: RunCycles, cycles: Cycles) -> Straggler:
    place = cycles.own_stages - 1 if one.place is None else one.place
    times = (cycles.positions if one.place is None else cycles.times)[:, :, place]
    worst = np.argsort(-one.each, kind="stable")[:_STEPS_TO_LOOK_AT].tolist()
    return Straggler(
        rank=found.ranks[one.row],
        stage=None if one.place is None else found.ordered_names[place],
        source="stages",
        mean_ns=one.mean,
        low_ns=one.low,
        high_ns=one.high,
        median_ns=float(np.median(one.each)),
        share_of_step=one.mean / cycles.length if cycles.length else 0.0,
        late=int((times.argmax(axis=0) == one.row).sum()),
        of=len(cycles.begins),
        sure=1 - one.chance,
        others_wait=cycles.waits,
        look_at=sorted(found.numbers[cycles.step_of(cycle, place)] for cycle in worst),
    )


def _outliers(found: RunCycles, cycles: Cycles) -> list[StepOutlier]:
    whole = cycles.length * len(cycles.begins)
    return [
        StepOutlier(
            rank=None if one.row is None else found.ranks[one.row],
            stage=found.ordered_names[one.place],
            steps=[found.numbers[cycles.step_of(cycle, one.place)] for cycle in one.cycles],
            late_ns=one.late,
            cost_ns=one.excess,
            share_of_run=one.excess / whole if whole else 0.0,
            is_recurrent=one.is_recurrent,
        )
        for one in find_outlier_steps(cycles)
    ]


def _late_at_collectives(
    waits: Waits, steps: RunSteps, step_ns: float, at_least: float, sure: float
) -> list[Straggler]:
    """Return the ranks that come late to the collectives; ``step_ns`` is 0 where the steps could not be compared."""
    assert waits.report is not None
    members = {member.rank: member for member in waits.report.members}
    whole = fmean([one.wait_ns + one.transfer_ns for one in members.values()]) / waits.report.count
    found = []
    # Ranks with equally many collectives share one estimate of their noise.
    for count in sorted({member.count for member in members.values()}):
        ranks = [rank for rank, member in members.items() if member.count == count]
        # A step may hold many collectives; the delay of one counts as often. Some of them are of steps that are not compared.
        held = [
            places[places >= 0] for places in (steps.of(rank).at(np.array(waits.starts_ns[rank])) for rank in ranks)
        ]
        of_steps = sum(len(np.unique(places)) for places in held) if step_ns else 0
        a_step = sum(map(len, held)) / of_steps if of_steps else 1.0
        least = at_least * max(whole, step_ns / a_step)
        late = np.array([waits.late_ns[rank] for rank in ranks], dtype=float)
        blocks = block_means(late, of_steps // len(ranks) or _MAX_BLOCKS)
        for slow in slow_rows(blocks, least, Correction(len(members), sure)):
            rank = ranks[slow.row]
            found.append(
                Straggler(
                    rank=rank,
                    stage="before collectives",
                    source="collectives",
                    mean_ns=slow.mean,
                    low_ns=slow.low,
                    high_ns=slow.high,
                    median_ns=median(waits.late_ns[rank]),
                    share_of_step=slow.mean * a_step / step_ns if step_ns else 0.0,
                    late=members[rank].last,
                    of=count,
                    sure=1 - slow.chance,
                    others_wait=True,
                    look_at=[],
                )
            )
    return found
