"""All that a report on a run tells, from one reading of its traces."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.clock_report import ClockReport, clocks_of
from tracekit.analysis.counter_report import CounterReport, counters_of
from tracekit.analysis.losses_report import LossReport, losses_of
from tracekit.analysis.ordered_rows import Scratch
from tracekit.analysis.step_times import RankSteps, StepGrid, StepPoint, step_grid, step_points
from tracekit.analysis.stragglers import compare_ranks
from tracekit.analysis.summary import Summarizer
from tracekit.analysis.trace_files import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.reading import Reading
    from tracekit.analysis.stragglers_report import StragglerReport
    from tracekit.analysis.summary_report import TraceSummary

__all__ = ["RunReport", "report_run"]

_READING_SHARE: Final = 0.6
_SUMMARY_SHARE: Final = 0.35
_MOST_COLUMNS: Final = 250


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a report on a run tells. All times are ns.

    Attributes:
        runs: The names of the runs that the traces are of, as far as they tell.
        hosts: The hosts they were recorded on.
        world_size: Of how many ranks the run was; None where no trace tells.
        start_ns: When the first slice is, ns since the epoch; None where no trace tells.
        summary: Where the time goes.
        stragglers: Who holds the others up.
        points: The steps one by one.
        grid: The steps rank by rank.
        counters: What the counters tell.
        clocks: How the clocks of the ranks stand to each other.
        losses: What was lost.
    """

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

    def as_dict(self) -> dict[str, Any]:
        """Return what the report tells for JSON; the summary and the stragglers as those verbs have them."""
        return {
            "format_version": 1,
            "runs": self.runs,
            "hosts": self.hosts,
            "world_size": self.world_size,
            "start_ns": self.start_ns,
            "summary": self.summary.as_dict(),
            "stragglers": self.stragglers.as_dict(),
            "counters": asdict(self.counters),
            "clocks": asdict(self.clocks),
            "losses": asdict(self.losses),
        }


def report_run(
    inputs: Sequence[str],
    *,
    inside: Sequence[str] = (),
    progress: Callable[[float, str], None] | None = None,
) -> RunReport:
    """Read traces once, and say all that a report on their run tells.

    Memory stays bounded whatever their size, but for the times of all steps.

    Args:
        inputs: Files, folders, globs or URLs: rank traces, torch.profiler's traces, merged traces; JSON or Perfetto's own,
            plain or gzip.
        inside: Names of markers that enclose the stages of a step, and are to be looked through.
        progress: Called with the share of the work that is done, 0 to 1, and what is being done.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, or one trace twice.
        StorageError: Something cannot be read, or there is no room for temporary data.
        TraceFormatError: A file that was named is no trace.
    """
    with Scratch() as scratch:
        reading = read_traces(inputs, scratch, _part(progress, 0, _READING_SHARE), collectives=True, counters=True)
        reading.markers.look_through(inside)
        summarizer = Summarizer(reading)
        summary = summarizer.result(_part(progress, _READING_SHARE, _SUMMARY_SHARE))
        if progress is not None:
            progress(_READING_SHARE + _SUMMARY_SHARE, "comparing ranks")
        stragglers = compare_ranks(reading, summarizer.tables)
    steps = [RankSteps(rank, own.numbers, own.durations) for rank, own in sorted(summarizer.steps.items()) if len(own)]
    starts = [file.base_ns + file.account.start_ns for file in reading.files if file.account.start_ns is not None]
    return RunReport(
        runs=_said(reading, "run_id"),
        hosts=_said(reading, "host"),
        world_size=max(
            (size for file in reading.files if type(size := file.account.metadata.get("world_size")) is int),
            default=None,
        ),
        start_ns=min(starts) if starts and all(file.base_ns for file in reading.files) else None,
        summary=summary,
        stragglers=stragglers,
        points=step_points(steps),
        grid=step_grid(steps, _MOST_COLUMNS),
        counters=counters_of(reading),
        clocks=clocks_of(reading),
        losses=losses_of(reading),
    )


def _part(
    progress: Callable[[float, str], None] | None, start: float, share: float
) -> Callable[[float, str], None] | None:
    return None if progress is None else lambda done, what: progress(start + share * done, what)


def _said(reading: Reading, key: str) -> list[str]:
    """Return what the files say of the runs and hosts: their rank metadata, and the processes that merged traces list."""
    values = [file.account.metadata.get(key) for file in reading.files]
    recordings = [recording for file in reading.files for recording in file.recordings]
    values += [recording.run_id if key == "run_id" else recording.process[0] for recording in recordings]
    return sorted({value for value in values if isinstance(value, str) and value})
