"""What became slower between two runs, or is slower on one rank than on another."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from tracekit.analysis.diff_report import STEP, Change, Presence, TraceDiff
from tracekit.analysis.evidence import LEAST_VALUES, compare
from tracekit.analysis.markers import TRANSPARENT
from tracekit.analysis.nesting import nested
from tracekit.analysis.ordered_rows import Scratch
from tracekit.analysis.steps import Steps, steps_of_ranks
from tracekit.analysis.trace_files import read_traces
from tracekit.arguments import check_names, check_paths
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analysis.reading import Reading, Thread
    from tracekit.arguments import Paths

__all__ = ["diff_traces"]

_FRAME: Final = int(TRANSPARENT)
_MOST_CELLS: Final = 8_000_000
_LEAST_STEPS: Final = 50
_WARM_UP_LEAST: Final = 10
_MOST_VALUES: Final = 4096
_MOST_NS: Final = 2**62  # beyond all sense, and still an integer of 64 bits with a sign
_SHARE_OF_STEP: Final = 0.001

Key = tuple[str, str]
"""Name and category of a marker."""


@dataclass(slots=True)
class _Series:
    """A marker on one side.

    Attributes:
        count: How many slices.
        total_ns: Their durations together.
        self_ns: Without what lies directly inside of them.
        values: What it took in each step, of all ranks together; without steps, of single slices in order of time.
        ranks: How many ranks have it in each step; empty without steps.
        last: The place among the ranks, from 1, of the last that has it in each step; ranks come one after the other.
        stride: Which slices are among the values: every so many-th.
    """

    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    values: array[int] = field(default_factory=lambda: array("q"))
    ranks: array[int] = field(default_factory=lambda: array("I"))
    last: array[int] = field(default_factory=lambda: array("I"))
    stride: int = 1

    @classmethod
    def of_steps(cls, steps: int) -> _Series:
        """Return one of so many steps."""
        return cls(values=array("q", bytes(8 * steps)), ranks=_zeros(steps), last=_zeros(steps))

    def take_in_step(self, length: int, place: int, rank: int) -> None:
        """Add a length to a step.

        Args:
            length: How long, ns.
            place: Of the step.
            rank: The place of its rank among the ranks, from 1.
        """
        self.values[place] = min(self.values[place] + length, _MOST_NS)
        if self.last[place] != rank:
            self.last[place] = rank
            self.ranks[place] += 1

    @property
    def typical_values(self) -> list[float]:
        """What it takes in each step that has it, on a rank that has it; without steps, the values."""
        if not self.ranks:
            return [value for value in self.values if value]
        return [value / ranks for value, ranks in zip(self.values, self.ranks, strict=True) if value]

    @property
    def share(self) -> float:
        """How many ranks have it in a step that has it, on average."""
        return sum(self.ranks) / max(1, sum(1 for ranks in self.ranks if ranks))

    def take_slice(self, length: int) -> None:
        """Take a slice of a trace without steps; of many, evenly chosen ones are kept."""
        if self.count % self.stride == 0:
            self.values.append(length)
            if len(self.values) >= _MOST_VALUES:
                self.values = self.values[::2]
                self.stride *= 2


def _zeros(count: int) -> array[int]:
    return array("I", [0]) * count


@dataclass(slots=True)
class _Side:
    """One of the two.

    Attributes:
        files: What was read.
        ranks: Which ranks count.
        steps: How many steps of each count; 0 where there are none.
        series: By marker.
        notes: What the reader should know.
    """

    files: list[str]
    ranks: list[int]
    steps: int
    series: dict[Key, _Series]
    notes: list[str]

    @property
    def step_ns(self) -> float:
        """The median step."""
        return median(self.series[STEP, ""].typical_values or [0.0]) if self.steps else 0.0


def diff_traces(
    first: Paths,
    second: Paths | None = None,
    *,
    rank_a: int | None = None,
    rank_b: int | None = None,
    inside: Sequence[str] = (),
    at_least: float = 0.02,
    sure: float = 0.99,
    progress: Callable[[float, str], None] | None = None,
) -> TraceDiff:
    """Say what became slower or faster from one run to another, and how sure that is; and what is new or gone.

    Compared is what a marker takes in a step, or, where one side has fewer than five steps, a single slice of it. The first
    step does not count where there are more than ten. Memory stays bounded whatever the size of the traces.

    Args:
        first: Traces of the run to compare with: files, folders, globs or URLs.
        second: Traces of the other run; None to compare two ranks of the first.
        rank_a: Only this rank of the first.
        rank_b: Only this rank of the second.
        inside: Names of markers that are not compared, since they only enclose others.
        at_least: By what share a marker must be slower or faster to be named.
        sure: How likely it must be that none of all that is named is so by chance.
        progress: Called with the share of the work that is done, 0 to 1, and what is being done.

    Raises:
        ConfigError: Nothing was named, several runs of one rank or one trace twice for one side, or a rank is not there.
        StorageError: Something cannot be read, or there is no room for temporary data.
        TraceFormatError: A file that was named is no trace.
    """
    for name, value in (("at_least", at_least), ("sure", sure)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value!r}: a share from 0 to below 1")
    before = check_paths("first", first)
    after = before if second is None else check_paths("second", second)
    check_names("inside", inside)
    if second is None and (rank_a is None or rank_b is None or rank_a == rank_b):
        raise ConfigError("one run alone can only be compared by its ranks: name two different ones, rank_a and rank_b")
    half = None if progress is None else lambda done, what: progress(done / 2, what)
    other = None if progress is None else lambda done, what: progress(0.5 + done / 2, what)
    ours = _read(before, rank_a, inside, half)
    theirs = _read(after, rank_b, inside, other, by_steps=bool(ours.steps))
    if ours.steps and not theirs.steps:
        ours = _read(before, rank_a, inside, None, by_steps=False)
    notes = list(dict.fromkeys([*ours.notes, *theirs.notes]))
    changes, untested = _compare(ours, theirs)
    if untested:
        notes.append(f"{untested:,} markers have fewer than {LEAST_VALUES} values on a side and are not compared")
    named = [
        change
        for change in changes
        if change.chance <= 1 - sure
        and abs(change.ratio - 1) >= at_least
        and abs(change.after_ns - change.before_ns) >= _SHARE_OF_STEP * ours.step_ns
    ]
    return TraceDiff(
        files=(ours.files, theirs.files),
        ranks=(ours.ranks, theirs.ranks),
        steps=(ours.steps, theirs.steps),
        step=next((change for change in changes if change.name == STEP), None),
        slower=sorted((one for one in named if one.ratio > 1), key=_by_cost),
        faster=sorted((one for one in named if one.ratio < 1), key=_by_cost),
        unchanged=len(changes) - len(named),
        new=_only(theirs, ours),
        vanished=_only(ours, theirs),
        notes=notes,
    )


def _by_cost(change: Change) -> tuple[bool, float, str]:
    return change.name != STEP, -abs(change.after_ns - change.before_ns), change.name


def _read(
    patterns: Sequence[str],
    rank: int | None,
    inside: Sequence[str],
    progress: Callable[[float, str], None] | None,
    *,
    by_steps: bool = True,
) -> _Side:
    """Read one side; single slices are compared where there are too few steps, or ``by_steps`` says so."""
    with Scratch() as scratch:
        reading = read_traces(patterns, scratch, progress)
        reading.markers.look_through(inside)
        if rank is not None and rank not in reading.ranks:
            there = ", ".join(map(str, reading.ranks[:20])) or "none"
            raise ConfigError(f"rank {rank} is not in the traces; there are: {there}")
        ranks = reading.ranks if rank is None else [rank]
        steps = {own: found for own, found in steps_of_ranks(reading).items() if own in ranks and found}
        least = min((len(found) for found in steps.values()), default=0)
        if least < LEAST_VALUES or not by_steps:
            steps, least = {}, 0
        ranks = [own for own in ranks if own in steps] or ranks
        most = max(_LEAST_STEPS, _MOST_CELLS // max(1, len(reading.markers.table)))
        skipped = 1 if least > _WARM_UP_LEAST else 0
        kept = min(least - skipped, most)
        series: dict[int, _Series] = {}
        for thread in sorted(reading.threads(), key=lambda thread: thread.rank):
            if thread.rank in ranks:
                place = ranks.index(thread.rank) + 1
                _take(reading, thread, steps.get(thread.rank), place, skipped, kept, series)
            reading.forget(thread)
        side = _Side([file.path for file in reading.files], ranks, kept, {}, reading.all_notes)
        for number, own in series.items():
            marker = reading.markers.table[number]
            if own.count and not reading.markers.kinds[number] & _FRAME:
                side.series[marker.name, marker.category] = own
        if kept:
            whole = _Series.of_steps(kept)
            for number, found in enumerate(steps.values(), 1):
                for place, length in enumerate(found.durations[skipped : skipped + kept]):
                    whole.take_in_step(length, place, number)
            whole.count, whole.total_ns = kept * len(steps), sum(whole.values)
            side.series[STEP, ""] = whole
        return side


def _take(
    reading: Reading,
    thread: Thread,
    steps: Steps | None,
    rank: int,
    skipped: int,
    kept: int,
    series: dict[int, _Series],
) -> None:
    """Add up the slices of a thread of the rank at this place, from 1."""
    for start, end, number, self_ns, *_ in nested(thread.windows(), reading.markers.kinds, thread.base_ns):
        own = series.get(number)
        if own is None:
            own = series[number] = _Series.of_steps(kept)
        length = end - start
        if steps is None:
            own.take_slice(length)
        else:
            place = steps.at(start) - skipped
            if not 0 <= place < kept:
                continue
            own.take_in_step(length, place, rank)
        own.count += 1
        own.total_ns += length
        own.self_ns += self_ns if thread.nests else length


def _compare(ours: _Side, theirs: _Side) -> tuple[list[Change], int]:
    """Compare the markers that both sides have; returns the changes, and how many have too few values."""
    found: list[Change] = []
    untested = 0
    for key in sorted(ours.series.keys() & theirs.series.keys()):
        one, other = ours.series[key], theirs.series[key]
        # What is not in every step, or not on every rank, is compared where it is: the runs may differ in their ranks.
        comparison = compare(one.typical_values, other.typical_values)
        if comparison is None:
            untested += 1
            continue
        found.append(
            Change(
                name=key[0],
                category=key[1],
                before_ns=comparison.first,
                after_ns=comparison.second,
                self_change_ns=_each(other.self_ns, other, theirs) - _each(one.self_ns, one, ours),
                count_before=_each(one.count, one, ours),
                count_after=_each(other.count, other, theirs),
                ratio=comparison.ratio,
                low=comparison.low,
                high=comparison.high,
                chance=comparison.chance,
            )
        )
    # Of many markers one is always unusual: each must be so by as much more.
    return [change.adjusted(len(found)) for change in found], untested


def _each(amount: int, series: _Series, side: _Side) -> float:
    """Return an amount for each step of a rank that has the marker; without steps, for each slice."""
    return amount / (side.steps * (series.share or 1) if side.steps else series.count)


def _only(side: _Side, other: _Side) -> list[Presence]:
    """Return the markers that only one side has, the longest first."""
    found = [
        Presence(name, category, own.count, own.total_ns, _each(own.total_ns, own, side))
        for (name, category), own in side.series.items()
        if (name, category) not in other.series
    ]
    return sorted(found, key=lambda one: (-one.total_ns, one.name, one.category))
