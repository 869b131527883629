"""The content of the page of a run: the verdict, and plots and tables of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tracekit.explain.diff import diff_traces
from tracekit.explain.diff_results import diff_lines
from tracekit.explain.run_report import report_run
from tracekit.explain.stragglers_results import outlier_parts, sentence, straggler_parts
from tracekit.view.report.detail_sections import device_section, marker_section
from tracekit.view.report.timing_sections import rank_section, stage_section, step_section

if TYPE_CHECKING:
    from tracekit.explain.stragglers_results import StragglerReport
    from tracekit.explain.summary_results import TraceSummary
    from tracekit.view.report.content import Figure, Table

_MOST_STRAGGLERS: Final = 5


class Explained(NamedTuple):
    """The content of a page about a run: sentences, the most important first; figures and tables of a report; the last step."""

    sentences: tuple[str, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    steps: int | None


def explain(inputs: Sequence[str], *, progress: Callable[[float, str], None]) -> Explained:
    """Report where the time of a run goes, and the slow ranks; see `report_run`."""
    run = report_run(inputs, progress=progress)
    sections = [part(run) for part in (step_section, rank_section, stage_section, device_section, marker_section)]
    return Explained(
        sentences=tuple(_sentences(run.summary, run.stragglers)),
        figures=tuple(figure for section in sections for figure in section.figures),
        tables=tuple(table for section in sections for table in section.tables),
        notes=tuple(dict.fromkeys((*run.summary.notes, *run.stragglers.notes))),
        steps=run.points[-1].last if run.points else None,
    )


def compare(first: Sequence[str], second: Sequence[str], *, progress: Callable[[float, str], None]) -> tuple[str, ...]:
    """Say what changed from one run to another, in the words of ``tracekit diff``; see `diff_traces`."""
    return tuple(diff_lines(diff_traces(list(first), list(second), progress=progress), 20))


def _sentences(summary: TraceSummary, report: StragglerReport) -> Iterator[str]:
    """Yield the verdict, without the next command, and further findings."""
    verdict = [one for one in summary.verdict.sentences if not one.startswith("Next: ")]
    yield from verdict
    found = [sentence(straggler_parts(one)) for one in report.stragglers[:_MOST_STRAGGLERS]]
    found += [sentence(outlier_parts(one, report)) for one in report.outliers[:_MOST_STRAGGLERS]]
    yield from (one for one in found if not any(known.startswith(one) for known in verdict))
