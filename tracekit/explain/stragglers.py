"""Find the ranks that are slower than the others, and the steps that take longer than usual."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.explain import CONFIDENCE, MIN_SHARE
from tracekit.explain.arrays import np
from tracekit.explain.clocks import resolution_of
from tracekit.explain.collectives import read_collectives
from tracekit.explain.noise import Correction, block_means
from tracekit.explain.run import check_shares, open_run
from tracekit.explain.slow_ranks import slow_rows
from tracekit.explain.stage_comparison import StageComparison
from tracekit.explain.stages import cut_notes, training_stages
from tracekit.explain.stragglers_results import Straggler, StragglerReport
from tracekit.explain.text import share
from tracekit.explain.waits import find_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import Paths
    from tracekit.explain.run import Run
    from tracekit.explain.stages import StageTimes
    from tracekit.explain.waits import Waits

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

    Compares durations only: clocks need not be synchronized. See `tracekit.explain.cycles` and `tracekit.explain.waits`.

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
    found = StageComparison(stages, run.steps, at_least, sure, resolution)
    waits = find_waits(read_collectives(run) if collectives else {})
    stragglers = [*found.stragglers, *_late(waits, found, at_least, sure, resolution)]
    cycles = found.cycles
    notes = [*run.steps.notes, *found.notes]
    if 3 * resolution > at_least:
        notes.append(
            f"delays below {share(3 * resolution)} of a step are not reported: the alignment of the ranks may stretch times by "
            f"{share(resolution)}"
        )
    return StragglerReport(
        files=[path for path, _ in run.files],
        ranks=found.ranks or run.ranks,
        steps=0 if cycles is None else len(cycles.begins),
        step_ns=0.0 if cycles is None else cycles.length,
        together_after=found.together_after,
        stages=found.reports,
        collectives=waits.report,
        warm_up=run.steps.warm_up,
        stragglers=sorted(stragglers, key=lambda one: (-one.mean_ns, one.rank, one.stage or "")),
        outliers=found.outliers,
        sensitivity=found.sensitivity,
        others_wait=cycles is not None and cycles.waits,
        notes=[*notes, *waits.unmatched, *run.notes, *cut_notes(stages.values())],
    )


def _late(waits: Waits, run: StageComparison, at_least: float, sure: float, resolution: float) -> list[Straggler]:
    """Return the ranks that come late to the collectives."""
    if waits.report is None:
        return []
    members = {member.rank: member for member in waits.report.members}
    whole = fmean([one.wait_ns + one.transfer_ns for one in members.values()]) / waits.report.count
    step_ns = 0.0 if run.cycles is None else run.cycles.length
    steps = 0 if run.cycles is None else len(run.cycles.begins)
    found = []
    # Ranks with equally many collectives share one estimate of their noise.
    for count in sorted({member.count for member in members.values()}):
        ranks = [rank for rank, member in members.items() if member.count == count]
        # A step may hold many collectives; the delay of one counts as often.
        least = max(at_least, 3 * resolution) * max(whole, step_ns * steps / count)
        late = np.array([waits.late_ns[rank] for rank in ranks], dtype=float)
        for slow in slow_rows(block_means(late, steps or _MAX_BLOCKS), least, Correction(len(members), sure)):
            rank = ranks[slow.row]
            a_step_ns = slow.mean * count / steps if steps else slow.mean
            found.append(
                Straggler(
                    rank=rank,
                    stage="before collectives",
                    source="collectives",
                    mean_ns=slow.mean,
                    low_ns=slow.low,
                    high_ns=slow.high,
                    median_ns=median(waits.late_ns[rank]),
                    share_of_step=a_step_ns / step_ns if step_ns else 0.0,
                    late=members[rank].last,
                    of=count,
                    sure=1 - slow.chance,
                    others_wait=True,
                    look_at=[],
                )
            )
    return found
