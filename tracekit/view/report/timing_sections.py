"""The parts of the page on steps: over time, rank by rank, stage by stage, and the slow ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.explain.step_times import reduced_steps
from tracekit.explain.stragglers_results import member_cells, negative_sentence, outlier_parts, spread_words
from tracekit.explain.summary_results import step_cells
from tracekit.explain.text import certainty, duration, share
from tracekit.view.report.content import Figure, Name, Section, Table, more
from tracekit.view.report.heat_map import heat_map
from tracekit.view.report.plots import Bar, stacked_bars, step_time_plot
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.run_report import RunReport
    from tracekit.explain.stragglers_results import CollectiveReport, Straggler
    from tracekit.explain.summary_results import RankSummary

_MOST_RANK_ROWS: Final = 64
_MOST_STAGES: Final = 24
_MOST_BARS: Final = 12
_MOST_STRAGGLERS: Final = 20
_MOST_MEMBERS: Final = 64
_MOST_NOTES: Final = 10
_NO_STEPS: Final = (
    "The traces hold neither batches of tracekit nor ProfilerStep#N of torch.profiler. Call profiler.step() after each step, "
    "or use profiler.iterate(loader), and record again."
)


def step_section(report: RunReport) -> Section:
    """Return the section on step times."""
    title = "Step time"
    timed = report.summary.timed
    if not report.points:
        return Section("steps", title, [_NO_STEPS])
    rows = [
        (
            f"{point.first:,}" if point.first == point.last else f"{point.first:,}–{point.last:,}",
            *map(duration, (point.median_ns, point.fastest_ns, point.slowest_ns)),
            f"{point.slowest_rank:,}",
            f"{point.slowest_step:,}",
        )
        for point in reduced_steps(report.points, 100)
    ]
    table = Table("Step times, as plotted", ("step", "median", "fastest", "slowest", "on rank", "in step"), rows)
    svg = step_time_plot(report.points, ranks=len(timed))
    words = f"How long each step took, on {counted(len(timed), 'rank')}."
    if len(timed) > 1:
        words += " Ranks that wait for each other all take the time of the slowest."
    return Section("steps", title, [words], [Figure("Time of each step", svg, table)])


def rank_section(report: RunReport) -> Section:
    """Return the section on ranks."""
    title = "Ranks"
    timed = report.summary.timed
    if not timed:
        return Section("ranks", title, [_NO_STEPS])
    figures = []
    if len(timed) > 1:
        columns = [f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in report.grid.columns]
        steps = heat_map(
            report.grid.longest_ns,
            rows=[f"{rank:,}" for rank in report.grid.ranks],
            columns=columns,
            row_name="rank",
            column_name="step",
            title="Time of each step on each rank",
            about=f"{counted(len(timed), 'rank')}; the table below has the figures of each rank.",
        )
        figures.append(Figure("Time of each step on each rank", steps))
        if any(rank.stages for rank in timed):
            figures.append(_stages_of_ranks(timed))
    rows = [
        (
            str(rank.rank),
            *step_cells(rank),
            "–" if rank.loading is None else share(rank.loading.share_of_steps),
            share(rank.unrecorded_share),
        )
        for rank in report.summary.longest_timed(_MOST_RANK_ROWS)
    ]
    head = ("rank", "steps", "mean", "p50", "p95", "p99", "longest", "waiting for data", "in no marker")
    where = ": see tracekit summary --json. These are the ranks with the longest steps."
    left = more(len(timed) - _MOST_RANK_ROWS, "rank", where)
    return Section("ranks", title, [], figures, [Table("Step times of each rank", head, rows, left)])


def _stages_of_ranks(timed: list[RankSummary]) -> Figure:
    whole = fmean(rank.steps.mean_ns for rank in timed) or 1.0
    means = _mean_stages(timed)
    shown = [name for name in means if name in set(sorted(means, key=lambda name: -means[name])[:_MOST_STAGES])]
    each = [rank.stage_means_ns for rank in timed]
    rows, values = [], []
    for name in shown:
        own = [stages.get(name, 0.0) for stages in each]
        middle = median(own)
        values.append([(value - middle) / whole for value in own])
        fastest, slowest = own.index(min(own)), own.index(max(own))
        rows.append(
            (
                Name(name),
                duration(middle),
                duration(own[fastest]),
                str(timed[fastest].rank),
                duration(own[slowest]),
                str(timed[slowest].rank),
                share((own[slowest] - middle) / whole),
            )
        )
    head = ("stage", "median rank", "fastest", "on rank", "slowest", "on rank", "more, of a step")
    title = "Time of each stage on each rank, against the median rank"
    svg = heat_map(
        values,
        rows=shown,
        columns=[f"{rank.rank:,}" for rank in timed],
        row_name="stage",
        column_name="rank",
        title=title,
        about="As a share of a step; more than 0 is longer than on the median rank.",
        diverging=True,
    )
    table = Table("Time of each stage in a step", head, rows, more(len(means) - len(shown), "shorter stage"))
    return Figure(f"{title}, as a share of a step", svg, table)


def _mean_stages(timed: list[RankSummary]) -> dict[str, float]:
    """Return the mean time of each stage in a step, over all ranks, in the order within a step."""
    means = dict.fromkeys((stage.name for rank in timed for stage in rank.stages), 0.0)
    for rank in timed:
        for name, mean_ns in rank.stage_means_ns.items():
            means[name] += mean_ns / len(timed)
    return means


def stage_section(report: RunReport) -> Section:
    """Return the section on stages."""
    title = "Stages of a step"
    timed = report.summary.timed
    if not timed:
        return Section("stages", title, [_NO_STEPS])
    means = _mean_stages(timed)
    if not means:
        words = 'Nothing is recorded in the steps. Put markers around their stages, such as profiler.marker("forward").'
        return Section("stages", title, [words])
    names = list(means)
    unrecorded = fmean(rank.unrecorded_ns / rank.steps.count for rank in timed)
    bars = [_bar(rank, names) for rank in report.summary.longest_timed(_MOST_BARS)]
    if len(timed) > 1:
        bars.insert(0, Bar("all ranks", list(means.values()), unrecorded))
    whole = fmean(rank.steps.mean_ns for rank in timed)
    compared = {stage.name: stage for stage in report.stragglers.stages}
    each = [(rank.stage_means_ns, rank.rank) for rank in timed]
    kept = set(sorted(names, key=lambda name: -means[name])[: 2 * _MOST_STAGES])
    rows: list[tuple[str | Name, ...]] = []
    for name in names:
        if name in kept:
            slowest_ns, minus_rank = max((own.get(name, 0.0), -rank) for own, rank in each)
            stage = compared.get(name)
            rows.append(
                (
                    Name(name),
                    duration(means[name]),
                    share(means[name] / whole if whole else None),
                    duration(slowest_ns),
                    str(-minus_rank),
                    "–" if stage is None else duration(stage.exposed_ns),
                    "–" if stage is None else share(stage.exposed_ns / (report.stragglers.step_ns or 1)),
                    f"{max(stage.led, key=lambda rank: (stage.led[rank], -rank))}" if stage and stage.led else "–",
                )
            )
    in_none = ("in no marker", duration(unrecorded), share(unrecorded / whole if whole else None))
    rows.append((*in_none, *("–",) * 5))
    words = "What the training thread does in a step, one after the other; the mean of all steps."
    if len(timed) > _MOST_BARS:
        words += f" Drawn are the mean of all ranks, and the {_MOST_BARS} ranks with the longest steps."
    head = ("stage", "mean", "of step", "longest", "on rank", "exposed", "of step", "furthest at its end: rank")
    caption = "Stages of a step; exposed is what a stage adds to the step of all, waiting adds nothing"
    table = Table(caption, head, rows, more(len(names) - len(kept), "shorter stage"))
    svg = stacked_bars(bars, names, title="What a step consists of", rest="in no marker")
    return Section("stages", title, [words], [Figure("What a step consists of", svg)], [table])


def _bar(rank: RankSummary, stages: Sequence[str]) -> Bar:
    """Return the bar of a step of a rank: these stages, in this order, and the rest."""
    means = rank.stage_means_ns
    rest_ns = rank.unrecorded_ns / rank.steps.count
    return Bar(f"rank {rank.rank}", [means.get(name, 0.0) for name in stages], rest_ns)


def straggler_section(report: RunReport) -> Section:
    """Return the section on slow ranks and long steps."""
    found = report.stragglers
    words: list[str | Name | list[str | Name]] = []
    if found.steps:
        compared = (
            f"{counted(found.steps, 'step')} of {counted(len(found.ranks), 'rank')} were compared, by durations alone"
        )
        together = [" The ranks are together at the end of ", Name(found.together_after or ""), "."]
        words.append([f"{compared}, so that clocks do not matter.", *(together if found.others_wait else ())])
    if not found.stragglers:
        words.append(negative_sentence(found))
    for outlier in found.outliers[:_MOST_STRAGGLERS]:
        before, name, after = outlier_parts(outlier, found)
        words.append([f"{before[:1].upper()}{before[1:]}", Name(name), f"{after}."])
    tables = []
    if found.stragglers:
        rows = [_straggler(one) for one in found.stragglers[:_MOST_STRAGGLERS]]
        head = ("rank", "stage", "a step", "of step", "median", "behind in", "how sure", "look closer at steps")
        left = more(len(found.stragglers) - _MOST_STRAGGLERS, "case")
        tables.append(Table("Slow ranks", head, rows, left, text=(1, 2)))
    if found.collectives is not None:
        tables.append(_collectives(found.collectives))
    words += [Name(f"Note: {note}", 300, stands_out=False) for note in found.notes[:_MOST_NOTES]]
    return Section("stragglers", "Stragglers", words, (), tables)


def _straggler(one: Straggler) -> tuple[str | Name, ...]:
    return (
        str(one.rank),
        Name(one.stage or "no single stage"),
        duration(one.mean_ns),
        share(one.share_of_step),
        duration(one.median_ns),
        f"{one.late:,} of {one.of:,}",
        f"{certainty(one.sure)} sure",
        ", ".join(map(str, one.look_at)) or "–",
    )


def _collectives(found: CollectiveReport) -> Table:
    members = sorted(found.members, key=lambda one: (-one.mean_late_ns, one.rank))[:_MOST_MEMBERS]
    rows = [(str(one.rank), *member_cells(one)) for one in sorted(members, key=lambda one: one.rank)]
    head = ("rank", "collectives", "wait", "transfer", "came last", "later than median")
    return Table(spread_words(found), head, rows, more(len(found.members) - _MOST_MEMBERS, "rank"))
