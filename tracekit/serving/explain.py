"""What the page of a run says about its time: sentences, tables and plots, made in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.analysis.cells import device_cells, marker_cells, step_cells
from tracekit.analysis.run_report import report_run
from tracekit.analysis.text import certainty, duration, share, shortened
from tracekit.reporting.answers import mean_stages
from tracekit.reporting.plots import stacked_bars, step_time_plot
from tracekit.reporting.timing_sections import rank_bar
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.analysis.step_times import StepPoint
    from tracekit.analysis.stragglers_report import Straggler, StragglerReport
    from tracekit.analysis.summary_report import DeviceSummary, MarkerSummary, RankSummary, TraceSummary

__all__ = ["Explained", "Table", "explain"]

_MOST_ROWS: Final = 20
_MOST_STRAGGLERS: Final = 5
_SAME: Final = 0.02


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        heads: The headings of its columns; of the first, the cells are headings as well.
        rows: Its cells.
        left: How many columns, from the first, hold words and not numbers.
        more: What was left out; empty for nothing.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    more: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """What a page says.

    Attributes:
        sentences: The answer, the most important first.
        tables: The figures.
        plots: What each is called, and its SVG, whose names are escaped.
        notes: What the reader should know.
        steps: The last step that it knows of; None without steps.
    """

    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    steps: int | None


def explain(inputs: Sequence[str], *, progress: Callable[[float, str], None]) -> Explained:
    """Say where the time of a run goes, and who holds it up.

    Args:
        inputs: As for `report_run`.
        progress: Called with the share that is done, 0 to 1, and with what is being done.

    Raises:
        TracekitError: The traces cannot be read.
    """
    run = report_run(inputs, progress=progress)
    summary, stragglers = run.summary, run.stragglers
    timed = summary.timed
    return Explained(
        sentences=(*_sentences(summary, stragglers, timed),),
        tables=(*_tables(summary, stragglers, timed),),
        plots=(*_plots(run.points, timed),),
        notes=(*dict.fromkeys((*summary.notes, *stragglers.notes)),),
        steps=run.points[-1].last if run.points else None,
    )


def _sentences(summary: TraceSummary, report: StragglerReport, timed: list[RankSummary]) -> Iterator[str]:
    if not timed:
        yield "No steps: the traces hold neither batches of tracekit nor steps of torch.profiler."
        return
    mean = fmean(rank.step_mean_ns for rank in timed)
    steps = max(len(rank.step_durations_ns) for rank in timed)
    yield f"A step takes {duration(mean)} on average, over {counted(steps, 'step')} of {counted(len(timed), 'rank')}."
    for straggler in report.stragglers[:_MOST_STRAGGLERS]:
        yield _straggler(straggler)
    slowest = summary.slowest
    if not report.stragglers and slowest is not None:
        more = slowest.step_mean_ns - slowest.median_ns
        if more >= _SAME * slowest.median_ns:
            yield f"Rank {slowest.rank} has the longest steps: {duration(more)} longer than those of the median rank."
        else:
            yield "No rank holds the others up: all take about the same time."
    waits = [rank.loading.share_of_steps for rank in timed if rank.loading and rank.loading.share_of_steps is not None]
    if waits:
        yield f"Waiting for data takes {share(max(waits))} of the steps{' of the worst rank' if len(timed) > 1 else ''}."


def _straggler(one: Straggler) -> str:
    sure = certainty(one.sure)
    if one.source == "collectives":
        return (
            f"Rank {one.rank} comes late to collectives: {duration(one.mean_ns)} after the median member on average, last at "
            f"{one.late} of {one.of} (sure: {sure})."
        )
    look = f" Look at step {one.look_at[0]}." if one.look_at else ""
    return (
        f"Rank {one.rank} holds the others up in {shortened(one.stage)}: {duration(one.mean_ns)} a step, "
        f"{share(one.share_of_step)} of it; behind all others in {one.late} of {one.of} steps (sure: {sure}).{look}"
    )


def _plots(points: Sequence[StepPoint], timed: list[RankSummary]) -> Iterator[tuple[str, str]]:
    if not timed:
        return
    yield "Time of each step", step_time_plot(points, ranks=len(timed))
    names = list(mean_stages(timed))
    if names:
        title = "Stages of a step, mean of each rank"
        yield title, stacked_bars([rank_bar(rank, names) for rank in timed], names, title=title)


def _tables(summary: TraceSummary, report: StragglerReport, timed: list[RankSummary]) -> Iterator[Table]:
    if timed:
        yield Table(
            "Steps",
            ("Rank", "Steps", "Mean", "p50", "p95", "p99", "Longest", "Waiting for data"),
            tuple(
                (
                    f"{rank.rank:,}",
                    *step_cells(rank),
                    "–" if rank.loading is None else share(rank.loading.share_of_steps),
                )
                for rank in summary.longest_timed(_MOST_ROWS)
            ),
            more=_more(len(timed), _MOST_ROWS, "rank"),
        )
    if report.stages and report.step_ns:
        stages = sorted(report.stages, key=lambda stage: -stage.exposed_ns)[:_MOST_ROWS]
        yield Table(
            "What each stage adds to the step of all",
            ("Stage", "Adds", "Of the step", "Median rank", "Furthest at its end"),
            tuple(
                (
                    shortened(stage.name),
                    duration(stage.exposed_ns),
                    share(stage.exposed_ns / report.step_ns),
                    duration(stage.median_ns),
                    f"rank {max(stage.led, key=lambda rank: (stage.led[rank], -rank))}" if stage.led else "–",
                )
                for stage in stages
            ),
            more=_more(len(report.stages), len(stages), "stage"),
        )
    devices = [(rank.rank, device) for rank in summary.ranks for device in rank.devices]
    if devices:
        yield Table(
            "Devices",
            ("Rank", "Device", "Busy", "Computing", "Communicating", "Of that hidden"),
            tuple(_device(*device) for device in devices[:_MOST_ROWS]),
            left=2,
            more=_more(len(devices), _MOST_ROWS, "device"),
        )
    markers = summary.named_markers
    if markers:
        yield Table(
            "Markers and operators, by total time",
            ("Name", "Rank", "Count", "Total", "Self", "Mean", "p95", "Of the steps"),
            tuple(map(_marker, markers[:_MOST_ROWS])),
            more=_more(len(markers), _MOST_ROWS, "line"),
        )
    if summary.gaps:
        yield Table(
            "Longest gaps",
            ("Length", "Rank", "Where", "Step", "After", "Before"),
            tuple(
                (
                    duration(gap.length_ns),
                    f"{gap.rank:,}",
                    shortened(gap.where, 24),
                    "–" if gap.step is None else f"{gap.step:,}",
                    shortened(gap.after, 32),
                    shortened(gap.before, 32),
                )
                for gap in summary.gaps
            ),
            left=6,
        )


def _device(rank: int, device: DeviceSummary) -> tuple[str, ...]:
    _, busy, _, compute, communication, hidden, _ = device_cells(device)
    return f"{rank:,}", shortened(device.name, 24), busy, compute, communication, hidden


def _marker(marker: MarkerSummary) -> tuple[str, ...]:
    *times, _, p95, _, of_steps = marker_cells(marker)
    return shortened(marker.name), f"{marker.rank:,}", *times, p95, of_steps


def _more(count: int, shown: int, word: str) -> str:
    return f"and {counted(count - shown, word)} more" if count > shown else ""
