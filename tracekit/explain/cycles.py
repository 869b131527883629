"""Stage times of all ranks between two meetings of the ranks.

Ranks that wait for each other all take the same time: the delay of one appears as waiting in all others, in a later
stage. Up to a stage boundary, however, the late rank has used more time than the others. The *position* of a rank
at a boundary is the sum of its stage times since the last meeting. The largest position of all ranks is the
*frontier*; the growth of the frontier in a stage is the *exposed cost* of the stage, and waiting costs nothing.
Only durations on the clock of each rank are compared: clocks need not be synchronized. The idea is that of
StageFrontier, arXiv 2606.06751.

Positions count from a meeting. The times show the stage where the ranks wait for each other: all ranks take the
same time between two ends of this stage, and each takes its own time between two passes of any other boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import np
from tracekit.structs import Struct
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.explain.arrays import Floats
    from tracekit.explain.stages import StageTimes
    from tracekit.explain.steps import RunSteps

UNRECORDED: Final = "(unrecorded)"
_MIN_CYCLES: Final = 3
_MAX_CELLS: Final = 4_000_000
_MIN_STEPS: Final = 50
_ABOUT_EQUAL: Final = 1.1
_KNOWN: Final = 3.0
_MUCH_LESS: Final = 0.7


class Cycles(Struct, frozen=True):
    """Stage times from one meeting of the ranks to the next; from step to step where the ranks do not wait."""

    times: Floats  # shape (ranks, cycles, stages)
    positions: Floats  # cumulative sums of the times over the stages, in the same shape
    order: list[int]  # the stage at each place of the last axis
    begins: list[int]  # the first step of each cycle
    waits: bool  # true if the ranks wait for each other in the last stage

    @property
    def own_stages(self) -> int:
        """The number of stages before the waiting stage; a rank can be slow in these."""
        return len(self.order) - self.waits

    @property
    def length(self) -> float:
        """The mean time of a cycle at the frontier."""
        return float(self.positions[:, :, -1].max(axis=0).mean())

    def step_of(self, cycle: int, place: int) -> int:
        """Return the step of a stage of a cycle: a cycle that begins within a step ends in the next one."""
        return self.begins[cycle] + (self.order[place] < self.order[0])


class StageCost(Struct, frozen=True):
    """Cost of a stage for the run."""

    exposed: float  # mean growth of the frontier in the stage
    median: float  # mean over the cycles of the median rank's time
    led: list[int]  # number of cycles with each rank as the frontier at the end of the stage


def find_cycles(times: Floats, joined: Sequence[bool], meets: Sequence[bool]) -> Cycles | None:
    """Find the stage where the ranks wait for each other, and cut the times at its ends.

    Args:
        times: Shape (ranks, steps, stages), of two ranks or more.
        joined: True for each step that directly follows the one before, in all ranks.
        meets: True for each stage that is known to synchronize the ranks, such as a collective.

    Returns None if there are fewer than three cycles.
    """
    ranks, steps, stages = times.shape
    if ranks < 2 or not stages or steps < _MIN_CYCLES:
        return None
    follows = np.array(joined[1:], dtype=bool)
    last, waits = _waiting_stage(times, follows, meets)
    order = [*range(last + 1, stages), *range(last + 1)]
    begins = list(range(steps))
    if last != stages - 1:
        begins = np.flatnonzero(follows).tolist()
        rest, first = times[:, :-1, last + 1 :], times[:, 1:, : last + 1]
        times = np.concatenate([rest, first], axis=2)[:, follows]
    if len(begins) < _MIN_CYCLES:
        return None
    return Cycles(times, np.cumsum(times, axis=2), order, begins, waits)


def stage_costs(cycles: Cycles) -> list[StageCost]:
    """Return the cost of each stage, in the order of the cycle."""
    frontier = cycles.positions.max(axis=0)
    exposed = np.diff(frontier, axis=1, prepend=0).mean(axis=0)
    medians = np.median(cycles.times, axis=0).mean(axis=0)
    leaders = cycles.positions.argmax(axis=0)
    led = [np.bincount(leaders[:, place], minlength=len(cycles.times)).tolist() for place in range(len(cycles.order))]
    return [StageCost(*cost) for cost in zip(exposed.tolist(), medians.tolist(), led, strict=True)]


def _waiting_stage(times: Floats, follows: Floats, meets: Sequence[bool]) -> tuple[int, bool]:
    """Return the stage that synchronizes the ranks, and True if the times show it."""
    ranks, steps, stages = times.shape
    ends = np.cumsum(times.reshape(ranks, -1), axis=1).reshape(ranks, steps, stages)
    cycles = np.diff(ends, axis=1)[:, follows]
    if not cycles.shape[1]:
        return stages - 1, False
    spreads = np.median(np.ptp(cycles, axis=0), axis=0)
    least = spreads.min()
    # A stage that is known for waiting may be a little worse than the best; of equal ones the last counts.
    found = max(
        (stage for stage in range(stages) if spreads[stage] <= (_KNOWN if meets[stage] else _ABOUT_EQUAL) * least),
        key=lambda stage: (meets[stage], stage),
    )
    waits = meets[found] or bool(spreads[found] < _MUCH_LESS * np.median(spreads))
    return (found, True) if waits else (stages - 1, False)


class RunCycles(Struct, frozen=True):
    """The stages of all ranks in the steps that they have in common."""

    ranks: list[int]  # the ranks that are compared
    numbers: list[int]  # numbers of the steps that are compared
    names: list[str]  # names of the stages, in the order within a step; the last is the time outside of all stages
    meets: list[bool]  # true for each stage that is a collective
    cycles: Cycles | None  # None where there is too little to compare
    notes: list[str]  # gaps of the comparison, and their reasons

    @property
    def ordered_names(self) -> list[str]:
        """The names of the stages, in the order of the cycle."""
        return [] if self.cycles is None else [self.names[stage] for stage in self.cycles.order]


def cycles_of_run(stages: Mapping[int, StageTimes], steps: RunSteps) -> RunCycles:
    """Cut the stages of all ranks to cycles."""
    compared = {rank: own for rank, own in sorted(stages.items()) if own.names and rank >= 0}
    ranks = list(compared)
    if len(ranks) < 2:
        note = "stages cannot be compared: fewer than two ranks have steps with stages in them"
        return RunCycles(ranks, [], [], [], None, [note])
    offsets: dict[str, list[float]] = {}
    known: set[str] = set()
    for own in compared.values():
        for name, offset in zip(own.names, own.offsets_ns, strict=True):
            offsets.setdefault(name, []).append(offset)
        known.update(name for name, is_meeting in zip(own.names, own.meets, strict=True) if is_meeting)
    names = [*sorted(offsets, key=lambda name: (sum(offsets[name]) / len(offsets[name]), name)), UNRECORDED]
    meets = [name in known for name in names]
    numbers, notes = steps.common(ranks), []
    most = max(_MIN_STEPS, _MAX_CELLS // (len(names) * len(ranks)))
    if len(numbers) > most:
        notes.append(f"only the last {most:,} of {len(numbers):,} steps are compared")
        numbers = numbers[-most:]
    cycles = None
    if len(numbers) >= _MIN_CYCLES:
        joined = [False, *(np.diff(numbers) == 1)]
        cycles = find_cycles(np.stack([_times(own, numbers, names) for own in compared.values()]), joined, meets)
    if cycles is None:
        notes.append(
            f"stages cannot be compared: the ranks have {counted(len(numbers), 'step')} in common, and at least "
            f"{_MIN_CYCLES} are needed"
        )
    elif not cycles.waits:
        notes.append("the times do not show that the ranks wait for each other: a slow rank may delay no other")
    elif not meets[cycles.order[-1]]:
        notes.append(
            f"a delay inside of {names[cycles.order[-1]]} itself looks like waiting there: give the exchange a marker of "
            "its own, such as all_reduce, or name torch.profiler's traces as well"
        )
    return RunCycles(ranks, numbers, names, meets, cycles, notes)


def _times(own: StageTimes, numbers: list[int], names: list[str]) -> Floats:
    """Return the times of each stage in some steps, shape (steps, stages)."""
    at = own.steps.places(numbers)
    times = np.zeros((len(at), len(names)))
    times[:, [names.index(name) for name in own.names]] = own.times[at]
    times[:, -1] = np.maximum(0, own.steps.durations[at] - times[:, :-1].sum(axis=1))
    return times
