"""The stages of a step: what the training thread does one after the other, and how long each takes in each step."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.analysis.markers import DEVICE, TRANSPARENT, Kind
from tracekit.analysis.nesting import nested
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.analysis.markers import Markers
    from tracekit.analysis.nesting import Slice
    from tracekit.analysis.reading import Reading, Thread
    from tracekit.analysis.steps import Steps

__all__ = [
    "OF_STAGES",
    "OTHER_STAGES",
    "Stage",
    "StageTable",
    "TrainingThreads",
    "cut_notes",
    "joined_tables",
    "keep_training_thread",
    "stage_name",
    "steps_kept",
    "training_stages",
]

MOST_STAGES: Final = 64
MOST_STEPS: Final = 20_000
_MOST_CELLS: Final = 2_000_000
_TYPICAL_STAGES: Final = 16
OTHER_STAGES: Final = -1
"""The number of all stages beyond the first `MOST_STAGES`."""

_CROSSING_NS: Final = 1_000  # less is rounding: some traces are in microseconds
_MOST_CUT_NAMED: Final = 3
_MOST_NS: Final = 2**62  # beyond all sense, and still an integer of 64 bits with a sign
_NO_STAGE: Final = int(TRANSPARENT | DEVICE | Kind.SHADOW)
_TRANSPARENT: Final = int(TRANSPARENT)
_STEP: Final = int(Kind.STEP)
_COLLECTIVE: Final = int(Kind.COLLECTIVE)
_LOADING: Final = int(Kind.LOADING)
OF_STAGES: Final = int(Kind.STEP | Kind.COLLECTIVE | Kind.LOADING)
"""Kinds of which a table of stages takes note wherever they are; of others it does only where nothing encloses them."""


class Stage(NamedTuple):
    """What a stage is known by.

    Attributes:
        marker: Number of its marker.
        within: Number of the marker around it for a collective, which is a stage of its own; -1 for any other.
    """

    marker: int
    within: int


def steps_kept(ranks: int) -> int:
    """Return of how many steps of each of so many ranks the single stages are kept."""
    return min(MOST_STEPS, max(200, _MOST_CELLS // (_TYPICAL_STAGES * max(ranks, 1))))


class StageTable:
    """The stages on one thread. Hand it all of its slices, as they end.

    A stage is a slice that no other encloses, steps and functions of Python not counted. A collective inside of one is taken
    out of it and is a stage of its own, since what a rank does and how long it waits for the others are different things.
    Of stages that cross, such as a marker that ends after the slice of torch that it begins in, the later one is cut: the time
    that both share counts for the one that ends first.

    Args:
        thread: The thread.
        steps: Those of its rank.
        most_steps: How many steps are told one by one.

    Attributes:
        covered_ns: How long any stage was going on; the training thread is the one on which this is longest.
        cells: Of each stage, how long it took in each step.
        loading_count, loading_ns, loading_longest_ns: Times of waiting for the data loader, and of the part that is in steps,
            `loading_in_steps_ns`.
        cut: Number of stages that were cut because they cross another one, by marker.
    """

    def __init__(self, thread: Thread, steps: Steps, most_steps: int) -> None:
        self.thread = thread
        self.steps = steps
        self.covered_ns = 0
        self.in_steps_ns: dict[Stage, int] = {}
        self.cells: dict[Stage, array[int]] = {}
        self.loading_count = self.loading_ns = self.loading_longest_ns = self.loading_in_steps_ns = 0
        self.cut: Counter[int] = Counter()
        self._until: int | None = None  # the end of the last stage
        self._has_steps = False
        self._kept = min(len(steps), most_steps)
        self._offsets: dict[Stage, tuple[int, int]] = {}
        # The collectives in the open stage of each lane.
        self._inside: dict[int, dict[int, tuple[int, int]]] = {}

    @property
    def standing(self) -> tuple[bool, bool, int]:
        """The higher it is, the more the thread seems to be that which trains.

        Its process tells of steps (one that loads data may be busier), it is that on which torch.profiler's steps are, and
        stages take most of its time.
        """
        return bool(self.thread.process.batches[0]), self._has_steps, self.covered_ns

    @property
    def level(self) -> int:
        """How sure its process is to train: 2 where that tells of steps, 1 where torch.profiler's are on the thread, else 0."""
        process_steps, thread_steps, _ = self.standing
        return 2 if process_steps else int(thread_steps)

    @property
    def kept(self) -> int:
        """How many steps are told one by one."""
        return self._kept

    def take(self, slice_: Slice, step: int) -> None:
        """Take the slice that has ended next.

        Args:
            slice_: The slice.
            step: In which it began.
        """
        start, end, marker, _, depth, around, kind, lane = slice_
        if kind & _LOADING and not around & _LOADING:
            self.loading_count += 1
            self.loading_ns += end - start
            self.loading_longest_ns = max(self.loading_longest_ns, end - start)
            if step >= 0:
                self.loading_in_steps_ns += end - start
        if kind & _NO_STAGE:
            self._has_steps = self._has_steps or bool(kind & _STEP)
            if not depth and not kind & _TRANSPARENT:
                self._inside.pop(lane, None)
            return
        if depth:
            if kind & _COLLECTIVE and not around & _COLLECTIVE:
                inside = self._inside.setdefault(lane, {})
                began, length = inside.get(marker, (start, 0))
                inside[marker] = min(began, start), length + end - start
            return
        own = end - start
        if self._until is not None and start < self._until:
            own = max(0, end - self._until)
            self.cut[marker] += min(end, self._until) - start >= _CROSSING_NS
        self._until = end if self._until is None else max(end, self._until)
        self.covered_ns += own
        for inner, (began, length) in self._inside.pop(lane, {}).items():
            self._add(Stage(inner, marker), began, min(length, own), step)
            own -= min(length, own)
        self._add(Stage(marker, -1), start, own, step)

    def _add(self, stage: Stage, start: int, length: int, step: int) -> None:
        if step < 0:
            return
        cells = self.cells.get(stage)
        if cells is None:
            if len(self.cells) >= MOST_STAGES:
                stage = Stage(OTHER_STAGES, -1)
            cells = self.cells.setdefault(stage, array("q", bytes(8 * self._kept)))
        self.in_steps_ns[stage] = self.in_steps_ns.get(stage, 0) + length
        total, count = self._offsets.get(stage, (0, 0))
        self._offsets[stage] = total + start - self.steps.starts[step], count + 1
        if step < self._kept:
            cells[step] = min(cells[step] + length, _MOST_NS)

    def join(self, other: StageTable) -> None:
        """Take in the stages of another process of the rank, such as of an earlier attempt: they are in other steps."""
        self.covered_ns += other.covered_ns
        self.cut.update(other.cut)
        for stage, cells in other.cells.items():
            kept = stage if stage in self.cells or len(self.cells) < MOST_STAGES else Stage(OTHER_STAGES, -1)
            own = self.cells.get(kept)
            self.cells[kept] = cells if own is None else array("q", map(_bounded_sum, own, cells))
            self.in_steps_ns[kept] = self.in_steps_ns.get(kept, 0) + other.in_steps_ns[stage]
            (total, count), (more, times) = self._offsets.get(kept, (0, 0)), other._offsets[stage]
            self._offsets[kept] = total + more, count + times
        self.loading_count += other.loading_count
        self.loading_ns += other.loading_ns
        self.loading_longest_ns = max(self.loading_longest_ns, other.loading_longest_ns)
        self.loading_in_steps_ns += other.loading_in_steps_ns

    @property
    def stages(self) -> list[Stage]:
        """The stages in the order in which they begin within a step, on average."""
        return sorted(self.cells, key=lambda stage: (self.offset(stage), stage))

    def offset(self, stage: Stage) -> float:
        """Return how long after the begin of a step a stage begins, on average."""
        total, count = self._offsets[stage]
        return total / count

    @property
    def unrecorded_ns(self) -> int:
        """How much of the steps is no stage; slices that reach beyond the end of their step can make it too small."""
        return max(0, self.steps.total_ns - sum(self.in_steps_ns.values()))


TrainingThreads = dict[int, dict[Any, StageTable]]
"""The stages on the training thread of each process that trains, by rank and pid."""


def training_stages(reading: Reading, steps: dict[int, Steps]) -> dict[int, StageTable]:
    """Return the stages on the training thread of each rank that has steps."""
    found: TrainingThreads = {}
    kept = steps_kept(len(steps))
    for thread in reading.threads():
        own = steps.get(thread.rank)
        if not thread.nests or not own:
            continue
        table = StageTable(thread, own, kept)
        for slice_ in nested(thread.windows(), reading.markers.kinds, thread.base_ns, own):
            if not slice_[4] or slice_[6] & OF_STAGES:
                table.take(slice_, own.at(slice_[0]))
        keep_training_thread(found, table)
        reading.forget(thread)
    return joined_tables(found)


def keep_training_thread(found: TrainingThreads, table: StageTable) -> bool:
    """Keep a table if it is that of the training thread of its process so far, and no other process is surer to train."""
    own = found.setdefault(table.thread.rank, {})
    pid = table.thread.process.pid
    level, highest = table.level, max((other.level for other in own.values()), default=-1)
    if not table.covered_ns or level < highest:
        return False
    # Where nothing tells which processes train, there is one.
    rivals = [other for of, other in own.items() if other.level == level and (of == pid or not level)]
    if any(other.standing >= table.standing for other in rivals):
        return False
    if level > highest or not level:
        own.clear()
    own[pid] = table
    return True


def joined_tables(found: TrainingThreads) -> dict[int, StageTable]:
    """Return one table for each rank, of all processes that trained one after the other, as after a restart."""
    joined: dict[int, StageTable] = {}
    for rank, tables in found.items():
        for table in sorted(tables.values(), key=lambda table: table.standing, reverse=True):
            if rank in joined:
                joined[rank].join(table)
            else:
                joined[rank] = table
    return joined


def cut_notes(tables: Iterable[StageTable], markers: Markers) -> list[str]:
    """Return a note on the stages that cross each other, if there are any."""
    cut: Counter[str] = Counter()
    for table in tables:
        for marker, count in table.cut.items():
            cut[markers.table[marker].name] += count
    count = cut.total()
    if not count:
        return []
    names = ", ".join(name for name, _ in cut.most_common(_MOST_CUT_NAMED))
    note = f"{counted(count, 'slice')} of the training thread cross the end of another one ({names})"
    return [f"{note}: the time that both share counts for the stage that ends first"]


def _bounded_sum(first: int, second: int) -> int:
    return min(first + second, _MOST_NS)


def stage_name(stage: Stage, markers: Markers) -> str:
    """Return how a stage is called: "backward", or "backward > all_reduce" for a collective inside of it."""
    if stage.marker == OTHER_STAGES:
        return "(all other stages)"
    own = markers.table[stage.marker].name
    return own if stage.within < 0 else f"{markers.table[stage.within].name} > {own}"
