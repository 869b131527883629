"""All that a report on a run shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.clocks import ClockReport, clocks_of
from tracekit.explain.counters import CounterReport, counters_of
from tracekit.explain.losses import LossReport, losses_of
from tracekit.explain.results import Result
from tracekit.explain.run import open_run, recordings_of
from tracekit.explain.stages import training_stages
from tracekit.explain.step_times import StepGrid, StepPoint, StepSeries, step_grid, step_points
from tracekit.explain.stragglers import compare_run
from tracekit.explain.stragglers_results import StragglerReport
from tracekit.explain.summary import summarize_run
from tracekit.explain.summary_results import TraceSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.explain.run import Run

_MAX_COLUMNS: Final = 250


class RunReport(Result, frozen=True, kw_only=True):
    """A report on a run. All times are nanoseconds.

    Attributes:
        runs: The names of the runs that the traces state.
        hosts: The hosts that they state.
        world_size: The number of ranks that the run had; null if no trace states it.
        start_ns: The start of the first event, ns since the epoch; null if a trace has no base time.
        summary: The document of ``tracekit summary --json``.
        stragglers: The document of ``tracekit stragglers --json``.
        points: The steps one by one: over all ranks, the fastest, the median and the slowest.
        grid: The steps rank by rank.
        counters: The counters over time.
        clocks: The clocks of the ranks.
        losses: Losses while recording and reading.
    """

    format_version: int = 2
    runs: list[str]
    hosts: list[str]
    world_size: int | None
    start_ns: int | None
    summary: TraceSummary
    stragglers: StragglerReport
    points: list[StepPoint]
    grid: StepGrid
    counters: CounterReport
    clocks: ClockReport
    losses: LossReport


class WrittenReport(RunReport, frozen=True, kw_only=True):
    """The figures of a page that was written. All times are nanoseconds.

    Attributes:
        output: The page, without secrets of a URL.
        output_bytes: Its size.
    """

    output: str
    output_bytes: int

    @classmethod
    def of(cls, report: RunReport, output: str, output_bytes: int) -> WrittenReport:
        """Return a report with the page that shows it."""
        figures = {name: getattr(report, name) for name in report.fields()}
        return cls(output=output, output_bytes=output_bytes, **figures)


def report_run(
    inputs: Sequence[str],
    *,
    inside: Sequence[str] = (),
    cache: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> RunReport:
    """Report on a run."""
    with open_run(inputs, inside=inside, cache=cache, progress=progress) as run:
        return run.keep(RunReport, lambda: _report(run), sorted(inside))


def _report(run: Run) -> RunReport:
    stages = training_stages(run)
    steps = [StepSeries(rank, own.numbers.tolist(), own.durations.tolist()) for rank, own in run.steps.ranks.items()]
    starts = [facts["base_ns"] + facts["span"][0] for facts in run.facts if facts["span"][0] is not None]
    sizes = (facts["account"]["metadata"].get("world_size") for facts in run.facts)
    return RunReport(
        runs=_stated(run, "run_id"),
        hosts=_stated(run, "host"),
        world_size=max((size for size in sizes if type(size) is int), default=None),
        start_ns=min(starts) if starts and all(facts["base_ns"] for facts in run.facts) else None,
        summary=summarize_run(run, stages),
        stragglers=compare_run(run, stages),
        points=step_points(steps),
        grid=step_grid(steps, _MAX_COLUMNS),
        counters=counters_of(run),
        clocks=clocks_of(run),
        losses=losses_of(run),
    )


def _stated(run: Run, key: str) -> list[str]:
    """Return the runs or hosts that rank metadata, and merged traces, state."""
    values = [facts["account"]["metadata"].get(key) for facts in run.facts]
    recordings = [recording for facts in run.facts for recording in recordings_of(facts)]
    values += [recording.run_id if key == "run_id" else recording.process[0] for recording in recordings]
    return sorted({value for value in values if isinstance(value, str) and value})
