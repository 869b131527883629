"""The page of a run: sentences, tables and plots on its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.explain.cells import NAME_HEAD, device_cells, name_rows, step_cells
from tracekit.explain.diff import diff_traces
from tracekit.explain.diff_text import diff_lines
from tracekit.explain.run_report import report_run
from tracekit.explain.stragglers_text import outlier_parts, sentence, straggler_parts
from tracekit.explain.text import duration, share, shortened
from tracekit.view.report.answers import mean_stages
from tracekit.view.report.plots import stacked_bars, step_time_plot
from tracekit.view.report.timing_sections import rank_bar
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.explain.gpu import GPUTime
    from tracekit.explain.step_times import StepPoint
    from tracekit.explain.stragglers_results import StragglerReport
    from tracekit.explain.summary_results import RankSummary, TraceSummary

_MOST_ROWS: Final = 20
_MOST_STRAGGLERS: Final = 5


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: Title of the table.
        heads: The headings of the columns. The cells of the first column are also headings.
        rows: The cells.
        left: Number of columns, from the first, with words instead of numbers.
        more: Description of omitted rows; empty if no rows are omitted.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    more: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """The content of a page about a run.

    Attributes:
        sentences: The answer, the most important sentence first.
        tables: The figures.
        plots: The name of each plot, and its SVG with escaped names.
        notes: Notes for the reader.
        steps: The last known step; None without steps.
    """

    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    steps: int | None


def explain(inputs: Sequence[str], *, progress: Callable[[float, str], None]) -> Explained:
    """Report where the time of a run goes, and the slow ranks.

    Args:
        inputs: As for `report_run`.
        progress: Called with the completed share, 0 to 1, and the current work.

    Raises:
        TracekitError: The traces cannot be read.
    """
    run = report_run(inputs, progress=progress)
    summary, stragglers = run.summary, run.stragglers
    timed = summary.timed
    return Explained(
        sentences=(*_sentences(summary, stragglers),),
        tables=(*_tables(summary, stragglers, timed),),
        plots=(*_plots(run.points, timed),),
        notes=(*dict.fromkeys((*summary.notes, *stragglers.notes)),),
        steps=run.points[-1].last if run.points else None,
    )


def compare(first: Sequence[str], second: Sequence[str], *, progress: Callable[[float, str], None]) -> tuple[str, ...]:
    """Say what changed from one run to another, in the words of ``tracekit diff``.

    Args:
        first: The traces of the run to compare with.
        second: The traces of the other run.
        progress: Called with the completed share, 0 to 1, and the current work.

    Raises:
        TracekitError: The traces cannot be read.
    """
    return (*diff_lines(diff_traces(list(first), list(second), progress=progress), _MOST_ROWS),)


def _sentences(summary: TraceSummary, report: StragglerReport) -> Iterator[str]:
    """Yield the verdict, without the next command, and further findings."""
    verdict = [one for one in summary.verdict.sentences if not one.startswith("Next: ")]
    yield from verdict
    found = [sentence(straggler_parts(one)) for one in report.stragglers[:_MOST_STRAGGLERS]]
    found += [sentence(outlier_parts(one, report)) for one in report.outliers[:_MOST_STRAGGLERS]]
    yield from (one for one in found if not any(known.startswith(one) for known in verdict))


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
    found = name_rows(summary)
    if found:
        yield Table(
            "Markers and operators, by the total times of the ranks",
            ("Name", *(name.capitalize() for name in NAME_HEAD)),
            tuple((shortened(row.name), *row.cells) for row in found[:_MOST_ROWS]),
            more=_more(len(found), _MOST_ROWS, "name"),
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


def _device(rank: int, device: GPUTime) -> tuple[str, ...]:
    _, busy, _, compute, communication, hidden, _ = device_cells(device)
    return f"{rank:,}", shortened(device.name, 24), busy, compute, communication, hidden


def _more(count: int, shown: int, word: str) -> str:
    return f"and {counted(count - shown, word)} more" if count > shown else ""
