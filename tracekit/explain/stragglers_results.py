"""Slow ranks and long steps: values, sentences and lines.

`StragglerReport.as_dict` is the JSON form (``schemas/stragglers.schema.json``). All outputs use these sentences.
Names are as they are in the trace; who prints them makes them printable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.results import Result
from tracekit.explain.text import certainty, duration, section, share, shortened
from tracekit.wording import counted, number_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

Parts = tuple[str, str, str]  # a sentence: the words before the name of a stage, the name, and the words after it
_MOST_SHOWN: Final = 10
_MOST_STAGES: Final = 30
_MOST_SPANS: Final = 5
_INDEPENDENT: Final = 1.5
_STRONG: Final = 6.0


class Straggler(Result, frozen=True, kw_only=True):
    """A rank that is slower than the others.

    Attributes:
        stage: The slow stage; "before collectives" if only collectives show it; None where no single
            stage accounts for it with confidence.
        mean_ns: Mean time in a step beyond the median of the other ranks; by collectives, mean delay behind the median of the
            other members.
    """

    rank: int  # the rank
    stage: str | None
    source: str  # the evidence: "stages" (times of stages) or "collectives" (kernels and calls of all members)
    mean_ns: float
    low_ns: float  # limits of the true mean, at the confidence asked for and for all ranks and stages together
    high_ns: float  # limits of the true mean, at the confidence asked for and for all ranks and stages together
    median_ns: float  # the same as the mean, in the median step or at the median collective
    share_of_step: float  # the mean as a share of a step
    late: int  # number of steps where it took longest, or of collectives where it came last
    of: int  # number of steps or collectives
    sure: float  # 1 minus the probability that any of equal ranks would be as slow by chance
    others_wait: bool  # true if the traces show that the other ranks wait for it
    look_at: list[int]  # numbers of its slowest steps


class StepOutlier(Result, frozen=True, kw_only=True):
    """Steps that one rank, or all ranks together, made longer than usual in one stage."""

    rank: int | None  # the rank that came late; None if all ranks took longer
    stage: str  # the long stage
    steps: list[int]  # numbers of the steps
    late_ns: float  # excess time of the stage, in the median of these steps
    cost_ns: float  # sum of the excess times of these steps
    share_of_run: float  # the cost as a share of all compared steps
    is_recurrent: bool  # true if the rank has more of them than chance gives to one of equal ranks


class Sensitivity(Result, frozen=True, kw_only=True):
    """The differences between ranks that a comparison can show.

    Attributes:
        steps_needed: Number of steps that would show a rank slower by 5 % of a step; None if the limit is below.
        noise: Standard deviation of each rank's time compared with the other ranks, as a share of a step.
    """

    limit_share: float  # no unnamed rank is slower by more than this share of a step, at the confidence asked for
    ess: float  # effective sample size: the number of independent steps with the information of the steps compared
    steps_needed: int | None
    noise: dict[int, float]


class StageReport(Result, frozen=True, kw_only=True):
    """Cost of a stage for the run."""

    name: str  # its name
    exposed_ns: float  # mean growth of the frontier in the stage: the time that it adds to the step of all ranks
    median_ns: float  # its time on the median rank, waiting included
    led: dict[int, int]  # the number of steps that each rank led at its end: it had used most time


class Member(Result, frozen=True, kw_only=True):
    """A rank in the collectives."""

    rank: int  # the rank
    count: int  # the number of collectives with it
    wait_ns: int  # time that it waited for the last member, in all of them
    transfer_ns: int  # their time after the last member came
    last: int  # number of collectives where it came last
    mean_late_ns: float  # by how much it came later than the median member, on average; negative: earlier


class CollectiveReport(Result, frozen=True, kw_only=True):
    """The collectives that were found in the traces of two members or more."""

    count: int  # their number
    spread_median_ns: int  # time between the first and the last member
    spread_longest_ns: int  # time between the first and the last member
    members: list[Member]  # by rank


class StragglerReport(Result, frozen=True, kw_only=True):
    """Slow ranks and long steps of a run.

    Attributes:
        files: The files that were read.
        ranks: The ranks that were compared.
        steps: Number of steps compared.
        step_ns: Mean time of a step at the frontier.
        together_after: The stage that synchronizes the ranks; the last stage of a step if they do not wait.
        stages: The cost of each stage, in order from that moment on.
        collectives: Waiting in collectives; None where the traces hold none of two ranks.
        warm_up: Numbers of the steps that are warm-up and not compared.
        stragglers: The ranks that are slower, the largest delay first.
        outliers: Steps that took longer than usual, those that cost most first.
        sensitivity: The differences that the comparison of steps can show; None where steps could not be compared.
        others_wait: True if the traces show that ranks wait for each other.
        notes: Gaps of the comparison, and their reasons.
    """

    format_version: int = 1
    files: list[str]
    ranks: list[int]
    steps: int
    step_ns: float
    together_after: str | None
    stages: list[StageReport]
    collectives: CollectiveReport | None
    warm_up: list[int]
    stragglers: list[Straggler]
    outliers: list[StepOutlier]
    sensitivity: Sensitivity | None
    others_wait: bool
    notes: list[str]

    @property
    def blames(self) -> bool:
        """Return True if a rank is slower than the others, always or again and again."""
        return bool(self.stragglers) or any(outlier.is_recurrent for outlier in self.outliers)


def member_cells(member: Member) -> tuple[str, ...]:
    """Return the count of a member's collectives, mean wait, mean transfer, how often it came last, and its mean delay."""
    return (
        f"{member.count:,}",
        duration(member.wait_ns / member.count),
        duration(member.transfer_ns / member.count),
        share(member.last / member.count),
        duration(member.mean_late_ns),
    )


def spread_words(found: CollectiveReport) -> str:
    """Return the time between the first and the last member of collectives."""
    return (
        f"{counted(found.count, 'collective')}: first and last member come {duration(found.spread_median_ns)} apart in the "
        f"median, {duration(found.spread_longest_ns)} at most"
    )


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
