"""Which rank holds the others up, and in which stage."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.analysis.frontier import Frontier, find_frontier
from tracekit.analysis.markers import Kind
from tracekit.analysis.ordered_rows import Scratch
from tracekit.analysis.reading import Reading, read_traces
from tracekit.analysis.stages import OTHER_STAGES, stage_name, training_stages
from tracekit.analysis.steps import steps_of_ranks
from tracekit.analysis.stragglers_report import (
    CollectiveReport,
    Member,
    StageReport,
    Straggler,
    StragglerReport,
)
from tracekit.analysis.waits import Waits, find_waits
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.stages import StageTable

__all__ = ["find_stragglers"]

UNRECORDED: Final = "(unrecorded)"
_MOST_CELLS: Final = 4_000_000
_LEAST_STEPS: Final = 50
_WARM_UP_LEAST: Final = 10
_READING_SHARE: Final = 0.8
_STEPS_TO_LOOK_AT: Final = 3


def find_stragglers(
    inputs: Sequence[str],
    *,
    inside: Sequence[str] = (),
    at_least: float = 0.01,
    sure: float = 0.99,
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
        ConfigError: Nothing was named, or a share is not between 0 and 1.
        StorageError: Something cannot be read, or there is no room for temporary data.
        TraceFormatError: A file that was named is no trace.
    """
    for name, value in (("at_least", at_least), ("sure", sure)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value!r}: a share from 0 to below 1")
    with Scratch() as scratch:
        share = None if progress is None else lambda done, what: progress(done * _READING_SHARE, what)
        reading = read_traces(inputs, scratch, share, collectives=True)
        reading.markers.look_through(inside)
        if progress is not None:
            progress(_READING_SHARE, "comparing ranks")
        run = _Stages(reading)
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
        notes=[*run.notes, *(() if waits is None else waits.unmatched), *reading.notes],
    )


class _Stages:
    """The stages of all ranks in the steps that they have in common."""

    def __init__(self, reading: Reading) -> None:
        self._markers = reading.markers
        self.notes: list[str] = []
        self.frontier: Frontier | None = None
        self.names: list[str] = []
        tables = training_stages(reading, steps_of_ranks(reading))
        self.tables = {rank: table for rank, table in sorted(tables.items()) if table.cells and rank >= 0}
        self.ranks = list(self.tables)
        self.numbers: list[int] = []
        if len(self.tables) < 2:
            self.notes.append(
                "stages cannot be compared: fewer than two ranks tell of steps and of what is done in them"
            )
            return
        places = {rank: self._places(table) for rank, table in self.tables.items()}
        self.numbers = sorted(set.intersection(*(set(own) for own in places.values())))
        if len(self.numbers) > _WARM_UP_LEAST:
            # In the first step everything is slow, for reasons of its own.
            del self.numbers[0]
        self.names, meets = self._stages()
        most = max(_LEAST_STEPS, _MOST_CELLS // ((len(self.names) + 1) * len(self.ranks)))
        if len(self.numbers) > most:
            self.notes.append(f"only the last {most:,} of {len(self.numbers):,} steps are compared")
            self.numbers = self.numbers[-most:]
        joined = [False, *(after == before + 1 for before, after in zip(self.numbers, self.numbers[1:], strict=False))]
        times = [self._times(table, places[rank]) for rank, table in self.tables.items()]
        self.frontier = find_frontier(times, joined[: len(self.numbers)], meets)
        if self.frontier is None:
            self.notes.append(
                f"stages cannot be compared: the ranks have {len(self.numbers)} steps in common, and 3 are needed at least"
            )

    @staticmethod
    def _places(table: StageTable) -> dict[int, int]:
        """Return where each step of a rank stands, by its number."""
        return {table.steps.numbers[place]: place for place in range(table.kept)}

    def _stages(self) -> tuple[list[str], list[bool]]:
        """Return the stages of all ranks in order, and whether the ranks are known to wait for each other in each."""
        offsets: dict[str, list[float]] = {}
        meets: dict[str, bool] = {}
        for table in self.tables.values():
            for stage in table.cells:
                name = stage_name(stage, self._markers)
                offsets.setdefault(name, []).append(table.offset(stage))
                meets[name] = stage.marker != OTHER_STAGES and bool(self._markers.kinds[stage.marker] & Kind.COLLECTIVE)
        names = sorted(offsets, key=lambda name: (fmean(offsets[name]), name))
        return [*names, UNRECORDED], [*(meets[name] for name in names), False]

    def _times(self, table: StageTable, places: dict[int, int]) -> list[list[int]]:
        """Return the times of each stage in each step that is compared."""
        columns: dict[str, list[int]] = {}
        for stage, cells in table.cells.items():
            name = stage_name(stage, self._markers)
            column = [cells[places[number]] for number in self.numbers]
            columns[name] = (
                [sum(pair) for pair in zip(columns[name], column, strict=True)] if name in columns else column
            )
        empty = [0] * len(self.numbers)
        own = [columns.get(name, empty) for name in self.names[:-1]]
        durations = [table.steps.ends[places[number]] - table.steps.starts[places[number]] for number in self.numbers]
        recorded = [sum(values) for values in zip(*own, strict=True)] if own else empty
        own.append([max(0, whole - part) for whole, part in zip(durations, recorded, strict=True)])
        return [list(values) for values in zip(*own, strict=True)]

    def reports(self) -> list[StageReport]:
        """Return what each stage costs."""
        if self.frontier is None:
            return []
        return [
            StageReport(
                name=self.names[place],
                exposed_ns=self.frontier.costs[place].exposed_ns,
                median_ns=self.frontier.costs[place].median_ns,
                led=dict(zip(self.ranks, self.frontier.costs[place].led, strict=True)),
            )
            for place in self.frontier.order
        ]

    def stragglers(self, at_least: float, sure: float) -> list[Straggler]:
        """Return the ranks that fall behind in a stage."""
        frontier = self.frontier
        if frontier is None:
            return []
        found = []
        for delay in frontier.delays:
            if delay.mean_ns >= at_least * frontier.length_ns and delay.mean_ns > 0 and delay.chance <= 1 - sure:
                worst = sorted(range(frontier.steps), key=lambda step: (-delay.each_ns[step], step))
                found.append(
                    Straggler(
                        rank=self.ranks[delay.rank],
                        stage=self.names[delay.stage],
                        source="stages",
                        mean_ns=delay.mean_ns,
                        median_ns=delay.median_ns,
                        share_of_step=delay.mean_ns / frontier.length_ns if frontier.length_ns else 0.0,
                        late=delay.late_steps,
                        of=frontier.steps,
                        sure=1 - delay.chance,
                        look_at=sorted(self._number(frontier, step, delay.stage) for step in worst[:_STEPS_TO_LOOK_AT]),
                    )
                )
        return found

    def _number(self, frontier: Frontier, step: int, stage: int) -> int:
        """Return the number of the step in which a stage of a cycle lies."""
        # A cycle that begins within a step goes on in the next one.
        split = frontier.together_after < len(self.names) - 1
        begins = [
            place
            for place in range(len(self.numbers) - split)
            if not split or self.numbers[place + 1] == self.numbers[place] + 1
        ]
        place = begins[step]
        return self.numbers[place + 1] if split and stage <= frontier.together_after else self.numbers[place]


def _late(waits: Waits | None, run: _Stages, at_least: float, sure: float) -> list[Straggler]:
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
