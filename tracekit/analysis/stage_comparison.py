"""The stages of all ranks beside each other: who falls behind in which."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.analysis.frontier import Frontier, find_frontier
from tracekit.analysis.markers import Kind
from tracekit.analysis.stages import OTHER_STAGES, stage_name
from tracekit.analysis.stragglers_report import StageReport, Straggler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.analysis.markers import Markers
    from tracekit.analysis.stages import StageTable

__all__ = ["AT_LEAST", "SURE", "StageComparison"]

AT_LEAST: Final = 0.01
"""What share of a step a delay must be to be named, as a rule."""
SURE: Final = 0.99
"""How likely it must be that it is none of chance, as a rule."""

UNRECORDED: Final = "(unrecorded)"
_MOST_CELLS: Final = 1_000_000
_LEAST_STEPS: Final = 50
_WARM_UP_LEAST: Final = 10
_STEPS_TO_LOOK_AT: Final = 3


class StageComparison:
    """The stages of all ranks in the steps that they have in common.

    Args:
        tables: The stages of each rank.
        markers: The names.

    Attributes:
        ranks: Whose stages are compared.
        numbers: Of the steps that are compared.
        names: Of the stages, in the order within a step; the last is what is no stage.
        frontier: What the comparison tells; None where there is too little to compare.
        notes: What could not be compared, and why.
    """

    def __init__(self, tables: Mapping[int, StageTable], markers: Markers) -> None:
        self._markers = markers
        self.notes: list[str] = []
        self.frontier: Frontier | None = None
        self.names: list[str] = []
        self._tables = {rank: table for rank, table in sorted(tables.items()) if table.cells and rank >= 0}
        self.ranks = list(self._tables)
        self.numbers: list[int] = []
        if len(self._tables) < 2:
            self.notes.append(
                "stages cannot be compared: fewer than two ranks tell of steps and of what is done in them"
            )
            return
        places = {rank: self._places(table) for rank, table in self._tables.items()}
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
        times = [self._times(table, places[rank]) for rank, table in self._tables.items()]
        self.frontier = find_frontier(times, joined[: len(self.numbers)], meets)
        if self.frontier is not None and not self.frontier.waiting:
            self.notes.append(
                "the times do not show where the ranks wait for each other, if they do: that a rank is slow may hold up none"
            )
        elif self.frontier is not None and not meets[self.frontier.together_after]:
            self.notes.append(
                f"a delay inside of {self.names[self.frontier.together_after]} itself looks like waiting there: give the "
                "exchange a marker of its own, such as all_reduce, or name torch.profiler's traces as well"
            )
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
        for table in self._tables.values():
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
