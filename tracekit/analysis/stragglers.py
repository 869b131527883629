"""Which rank holds the others up, and in which stage."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.analysis.ordered_rows import Scratch
from tracekit.analysis.stage_comparison import AT_LEAST, SURE, StageComparison
from tracekit.analysis.stages import cut_notes, training_stages
from tracekit.analysis.steps import steps_of_ranks
from tracekit.analysis.stragglers_report import (
    CollectiveReport,
    Member,
    Straggler,
    StragglerReport,
)
from tracekit.analysis.trace_files import read_traces
from tracekit.analysis.waits import Waits, find_waits
from tracekit.arguments import check_names, check_paths
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.reading import Reading
    from tracekit.analysis.stages import StageTable
    from tracekit.arguments import Paths

__all__ = ["compare_ranks", "find_stragglers"]

_READING_SHARE: Final = 0.8


def find_stragglers(
    inputs: Paths,
    *,
    inside: Sequence[str] = (),
    at_least: float = AT_LEAST,
    sure: float = SURE,
    progress: Callable[[float, str], None] | None = None,
) -> StragglerReport:
    """Say which rank holds the others up, in which stage, by how much, and how sure that is.

    Works on durations alone, so that the clocks of the ranks need not be synchronised; see `tracekit.analysis.frontier` and
    `tracekit.analysis.waits`. Memory stays bounded whatever the size of the traces.

    Args:
        inputs: Traces of all ranks: files, folders, globs or URLs, merged or not.
        inside: Names of markers that enclose the stages of a step, and are to be looked through.
        at_least: What share of a step a delay must be to be named.
        sure: How likely it must be that it is none of chance.
        progress: Called with the share of the work that is done, 0 to 1, and what is being done.

    Raises:
        ConfigError: Nothing was named, several runs of one rank, one trace twice, or a share is not between 0 and 1.
        StorageError: Something cannot be read, or there is no room for temporary data.
        TraceFormatError: A file that was named is no trace.
    """
    for name, value in (("at_least", at_least), ("sure", sure)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value!r}: a share from 0 to below 1")
    paths = check_paths("inputs", inputs)
    check_names("inside", inside)
    with Scratch() as scratch:
        share = None if progress is None else lambda done, what: progress(done * _READING_SHARE, what)
        reading = read_traces(paths, scratch, share, collectives=True)
        reading.markers.look_through(inside)
        if progress is not None:
            progress(_READING_SHARE, "comparing ranks")
        return compare_ranks(reading, training_stages(reading, steps_of_ranks(reading)), at_least, sure)


def compare_ranks(
    reading: Reading, tables: dict[int, StageTable], at_least: float = AT_LEAST, sure: float = SURE
) -> StragglerReport:
    """Say which rank holds the others up, of what was read with its collectives.

    Args:
        reading: What was read.
        tables: The stages of each rank.
        at_least: What share of a step a delay must be to be named.
        sure: How likely it must be that it is none of chance.
    """
    run = StageComparison(tables, reading.markers)
    waits = find_waits(reading.collectives())
    stragglers = [*run.stragglers(at_least, sure), *_late(waits, run, at_least, sure)]
    return StragglerReport(
        files=[file.path for file in reading.files],
        ranks=run.ranks or sorted(reading.ranks),
        steps=0 if run.frontier is None else run.frontier.steps,
        step_ns=0.0 if run.frontier is None else run.frontier.length_ns,
        together_after=None if run.frontier is None else run.names[run.frontier.together_after],
        stages=run.reports(),
        collectives=_collectives(waits),
        stragglers=sorted(stragglers, key=lambda one: (-one.mean_ns, one.rank, one.stage)),
        notes=[
            *run.notes,
            *(() if waits is None else waits.unmatched),
            *reading.all_notes,
            *cut_notes(tables.values(), reading.markers),
        ],
    )


def _late(waits: Waits | None, run: StageComparison, at_least: float, sure: float) -> list[Straggler]:
    """Return the ranks that come late to the collectives."""
    if waits is None or not waits.ranks:
        return []
    whole = fmean([one.wait_ns + one.transfer_ns for one in waits.ranks.values()]) / max(1, waits.collectives)
    step_ns = 0.0 if run.frontier is None else run.frontier.length_ns
    steps = 0 if run.frontier is None else run.frontier.steps
    found = []
    for rank, own in waits.ranks.items():
        count = len(own.late_ns)
        a_step_ns = own.mean_late_ns * count / steps if steps else own.mean_late_ns
        if own.mean_late_ns > at_least * whole and a_step_ns > at_least * step_ns and own.chance <= 1 - sure:
            found.append(
                Straggler(
                    rank=rank,
                    stage="before collectives",
                    source="collectives",
                    mean_ns=own.mean_late_ns,
                    median_ns=sorted(own.late_ns)[count // 2],
                    share_of_step=a_step_ns / step_ns if step_ns else 0.0,
                    late=own.last,
                    of=count,
                    sure=1 - own.chance,
                    look_at=[],
                )
            )
    return found


def _collectives(waits: Waits | None) -> CollectiveReport | None:
    if waits is None or not waits.collectives:
        return None
    spread = sorted(waits.spread_ns)
    return CollectiveReport(
        count=waits.collectives,
        spread_median_ns=spread[len(spread) // 2],
        spread_longest_ns=spread[-1],
        members=[
            Member(rank, len(own.late_ns), own.wait_ns, own.transfer_ns, own.last, own.mean_late_ns)
            for rank, own in waits.ranks.items()
        ],
    )
