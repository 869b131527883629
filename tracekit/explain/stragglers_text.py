"""Findings on ranks and steps as sentences, and a report on stragglers as lines for a terminal.

All outputs use these sentences. Names are as they are in the trace; who prints them makes them printable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.cells import member_cells, spread_words
from tracekit.explain.text import certainty, duration, section, share, shortened
from tracekit.wording import counted, number_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.explain.stragglers_results import StepOutlier, Straggler, StragglerReport

Parts = tuple[str, str, str]  # a sentence: the words before the name of a stage, the name, and the words after it

_MOST_SHOWN: Final = 10
_MOST_STAGES: Final = 30
_MOST_SPANS: Final = 5
_INDEPENDENT: Final = 1.5
_STRONG: Final = 6.0


def straggler_parts(one: Straggler) -> Parts:
    """Return the sentence on a slow rank, without a full stop."""
    sure = f"(sure: {certainty(one.sure)})"
    if one.source == "collectives":
        late = f"{duration(one.mean_ns)} after the median of the others, last at {one.late:,} of {one.of:,}"
        return f"rank {one.rank} comes late to collectives: {late} {sure}", "", ""
    verb = "holds the others up" if one.others_wait else "is slower"
    cost = (
        f"{duration(one.mean_ns)} a step ({share(one.share_of_step)} of it; {duration(one.low_ns)} to {duration(one.high_ns)}), "
        f"longest in {one.late:,} of {counted(one.of, 'step')} {sure}"
    )
    if one.stage is None:
        return f"rank {one.rank} {verb}: {cost}; no single stage accounts for it with confidence", "", ""
    return f"rank {one.rank} {verb} in ", one.stage, f": {cost}"


def outlier_parts(one: StepOutlier, report: StragglerReport) -> Parts:
    """Return the sentence on steps that took longer than usual, without a full stop."""
    steps = f"{'step' if len(one.steps) == 1 else 'steps'} {number_spans(one.steps, dash=' to ', most=_MOST_SPANS)}"
    run = f"{duration(one.cost_ns)} of {duration(report.step_ns * report.steps)}"
    late = f"{duration(one.late_ns)}{' each' if len(one.steps) > 1 else ''}"
    if one.rank is None:
        return f"{steps}: all ranks took {late} longer in ", one.stage, f"; {run}"
    waited = "all ranks waited; " if report.others_wait else ""
    often = "; more often than chance gives to one of equal ranks" if one.is_recurrent else ""
    return f"{steps}: rank {one.rank} stalled {late} in ", one.stage, f"; {waited}{run}{often}"


def negative_sentence(report: StragglerReport) -> str:
    """Return what the comparison could have shown, where no rank is slower."""
    found = report.sensitivity
    if found is None:
        if report.collectives is not None:
            return f"No rank comes late with confidence ({counted(report.collectives.count, 'collective')})."
        return "Nothing could be compared: that needs traces of two ranks or more, with steps and stages or with collectives."
    each = report.steps / found.ess
    kind = "independent" if each <= _INDEPENDENT else "correlated" if each <= _STRONG else "strongly correlated"
    basis = f"{counted(report.steps, 'step')} of {kind} noise"
    needed = "" if found.steps_needed is None else f"; about {found.steps_needed:,} steps would show 5%"
    if found.limit_share >= 1:
        return f"The noise hides any difference between the ranks ({basis}{needed})."
    limit = max(found.limit_share, 0.001)
    return f"No rank is slower by more than {limit:.{0 if limit >= 0.0995 else 1}%} of a step ({basis}{needed})."


def sentence(parts: Parts, findings: int = 1) -> str:
    """Return a sentence with a full stop, and the number of further findings of its kind."""
    before, name, after = parts
    more = f" There {'are' if findings > 2 else 'is'} {counted(findings - 1, 'more case')}." if findings > 1 else ""
    return f"{before[:1].upper()}{before[1:]}{shortened(name)}{after}.{more}"


def straggler_lines(report: StragglerReport) -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{counted(len(report.files), 'file')}, {counted(len(report.ranks), 'rank')}"
    if report.steps:
        together = f"; the ranks are together at the end of {report.together_after}" if report.others_wait else ""
        yield f"{counted(report.steps, 'step')} compared, {duration(report.step_ns)} each{together}"
        yield from _noise(report)
        yield from _stages(report)
    yield from _collectives(report)
    yield ""
    if not report.stragglers:
        yield negative_sentence(report)
    for straggler in report.stragglers[:_MOST_SHOWN]:
        yield from _straggler(straggler)
    for outlier in report.outliers[:_MOST_SHOWN]:
        yield "".join(outlier_parts(outlier, report))
    left = max(0, len(report.stragglers) - _MOST_SHOWN) + max(0, len(report.outliers) - _MOST_SHOWN)
    if left:
        yield f"and {left} more; --json has all"
    for note in report.notes:
        yield f"note: {note}"


def _noise(report: StragglerReport) -> Iterator[str]:
    if report.sensitivity is None:
        return
    noise = sorted((own, rank) for rank, own in report.sensitivity.noise.items())
    (least, quiet), (most, loud) = noise[0], noise[-1]
    yield f"noise of a rank compared with the others: {share(least)} of a step (rank {quiet}) to {share(most)} (rank {loud})"


def _stages(report: StragglerReport) -> Iterator[str]:
    shown = set(sorted(range(len(report.stages)), key=lambda at: -report.stages[at].exposed_ns)[:_MOST_STAGES])
    rows = []
    for stage in (stage for at, stage in enumerate(report.stages) if at in shown):
        rank, led = max(stage.led.items(), key=lambda item: (item[1], -item[0]))
        of_step = share(stage.exposed_ns / report.step_ns if report.step_ns else None)
        cost = duration(stage.exposed_ns), of_step, duration(stage.median_ns)
        rows.append((shortened(stage.name), *cost, f"{rank} in {share(led / report.steps)}"))
    title = "stages (exposed: what a stage adds to the step of all; waiting adds nothing)"
    return section(title, ("stage", "exposed", "of step", "median rank", "furthest at its end"), rows)


def _collectives(report: StragglerReport) -> Iterator[str]:
    found = report.collectives
    if found is None:
        return iter(())
    rows = [(str(member.rank), *member_cells(member)) for member in found.members]
    head = ("rank", "collectives", "wait", "transfer", "came last", "later than median")
    return section(spread_words(found), head, rows)


def _straggler(one: Straggler) -> Iterator[str]:
    yield "".join(straggler_parts(one))
    if one.look_at:
        first = one.look_at[0]
        yield (
            f"  look closer: steps {', '.join(map(str, one.look_at))}; "
            f"tracekit merge --ranks {one.rank} --steps {first}:{first + 1} ..., or "
            f"tracekit diff --rank-a OTHER --rank-b {one.rank} ..."
        )
