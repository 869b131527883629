"""A report on stragglers as lines for a terminal; names stand in them as they are in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.analysis.cells import member_cells, spread_words
from tracekit.analysis.text import certainty, duration, share, shortened, table
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analysis.stragglers_report import Straggler, StragglerReport

__all__ = ["straggler_lines"]

_MOST_SHOWN: Final = 10
_MOST_STAGES: Final = 30


def straggler_lines(report: StragglerReport) -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{counted(len(report.files), 'file')}, {counted(len(report.ranks), 'rank')}"
    if report.steps:
        yield (
            f"{counted(report.steps, 'step')} compared, {duration(report.step_ns)} each; "
            f"the ranks are together at the end of {report.together_after}"
        )
        yield from _stages(report)
    yield from _collectives(report)
    yield ""
    if not report.stragglers:
        compared = report.steps or report.collectives is not None
        yield "no straggler: no rank holds the others up" if compared else "nothing could be compared"
    for straggler in report.stragglers[:_MOST_SHOWN]:
        yield from _straggler(straggler)
    if len(report.stragglers) > _MOST_SHOWN:
        yield f"and {len(report.stragglers) - _MOST_SHOWN} more; --json has all"
    for note in report.notes:
        yield f"note: {note}"


def _stages(report: StragglerReport) -> Iterator[str]:
    yield ""
    yield "stages (exposed: what a stage adds to the step of all; waiting adds nothing)"
    shown = set(sorted(range(len(report.stages)), key=lambda at: -report.stages[at].exposed_ns)[:_MOST_STAGES])
    rows = []
    for at, stage in enumerate(report.stages):
        if at in shown:
            rank, led = max(stage.led.items(), key=lambda item: (item[1], -item[0]))
            rows.append(
                (
                    shortened(stage.name),
                    duration(stage.exposed_ns),
                    share(stage.exposed_ns / report.step_ns if report.step_ns else None),
                    duration(stage.median_ns),
                    f"{rank} in {share(led / report.steps)}",
                )
            )
    yield from table(("stage", "exposed", "of step", "median rank", "furthest at its end"), rows)


def _collectives(report: StragglerReport) -> Iterator[str]:
    found = report.collectives
    if found is None:
        return
    yield ""
    yield spread_words(found)
    rows = [(str(member.rank), *member_cells(member)) for member in found.members]
    yield from table(("rank", "collectives", "wait", "transfer", "came last", "later than median"), rows)


def _straggler(one: Straggler) -> Iterator[str]:
    if one.source == "collectives":
        yield (
            f"rank {one.rank} comes late to collectives: {duration(one.mean_ns)} after the median member on average, "
            f"last at {one.late} of {one.of} (sure: {certainty(one.sure)})"
        )
        return
    yield (
        f"rank {one.rank} is slow in {one.stage}: {duration(one.mean_ns)} a step ({share(one.share_of_step)} of it), "
        f"{duration(one.median_ns)} in the median step, behind all others in {one.late} of {one.of} steps "
        f"(sure: {certainty(one.sure)})"
    )
    if one.look_at:
        first = one.look_at[0]
        yield (
            f"  look closer: steps {', '.join(map(str, one.look_at))}; "
            f"tracekit merge --ranks {one.rank} --steps {first}:{first + 1} ..., or "
            f"tracekit diff --rank-a OTHER --rank-b {one.rank} ..."
        )
