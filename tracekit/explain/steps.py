"""The training steps of all ranks: which of them count in averages, and which are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import np, robust_deviation
from tracekit.structs import Struct, field
from tracekit.wording import counted, number_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Bools, Floats, Ints
    from tracekit.table.database import Database

_ROUNDING_NS: Final = 1_000
_MAX_SPANS: Final = 4
_MIN_WINDOW: Final = 2
_MIN_WARM_UP_STEPS: Final = 10
_MAX_WARM_UP_SHARE: Final = 0.2
_MAX_WARM_UP: Final = 200
_LONGER_SHARE: Final = 0.1
_DEVIATIONS: Final = 5.0


class RankSteps(Struct, frozen=True):
    """The steps of one rank in order of time, apart from each other. All arrays have one value for each step."""

    numbers: Ints  # their numbers. After a restart, a number may be there twice.
    starts: Ints  # their times, ns since the epoch
    ends: Ints  # their times, ns since the epoch
    counts: Bools  # true for the steps that count in averages

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def durations(self) -> Ints:
        """The duration of each step."""
        return self.ends - self.starts

    @property
    def counted(self) -> Ints:
        """The durations of the steps that count."""
        return self.durations[self.counts]

    def at(self, times: Ints) -> Ints:
        """Return the place of the step that contains each time; -1 outside of all steps."""
        if not len(self):
            return np.full(len(times), -1)
        found = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((found >= 0) & (times < self.ends[np.maximum(found, 0)]), found, -1)

    def places(self, numbers: Sequence[int]) -> Ints:
        """Return the place of the first step with each of some numbers, which must be there."""
        order = np.argsort(self.numbers, kind="stable")
        return order[np.searchsorted(self.numbers[order], numbers)]

    def is_pause(self, starts: Ints, ends: Ints) -> Bools:
        """Return True for each range of times with a pause of the recording: a step number is missing there."""
        jumps = np.flatnonzero(np.diff(self.numbers) != 1)
        # The first pause that ends after the start of the range.
        at = np.searchsorted(self.starts[jumps + 1], starts, side="right")
        begins = np.append(self.ends[jumps], np.iinfo(np.int64).max)
        return begins[at] < ends


_NO_STEPS: Final = RankSteps(*(np.zeros(0, dtype=kind) for kind in (int, int, int, bool)))


class RunSteps(Struct, frozen=True):
    """The steps of all ranks."""

    ranks: dict[int, RankSteps]  # the steps of each rank that has steps
    warm_up: list[int] = field(default_factory=list)  # numbers of the warm-up steps
    notes: list[str] = field(default_factory=list)  # notes on the steps that do not count in averages

    def of(self, rank: int) -> RankSteps:
        """Return the steps of a rank; none if it has none."""
        return self.ranks.get(rank, _NO_STEPS)

    def common(self, ranks: Sequence[int]) -> list[int]:
        """Return the numbers of the steps that count on each of some ranks, and are there once, in order."""
        common: set[int] | None = None
        for rank in ranks:
            own = self.ranks[rank]
            numbers, first, times = np.unique(own.numbers, return_index=True, return_counts=True)
            usable = set(numbers[(times == 1) & own.counts[first]].tolist())
            common = usable if common is None else common & usable
        return sorted(common or ())


def steps_of_ranks(database: Database, ranks: Sequence[int]) -> RunSteps:
    """Return the steps of some ranks.

    Steps that overlap an evaluation, the first step of each of several recording windows, and warm-up steps do not count.
    """
    sql = "SELECT coalesce(rank, -1)::BIGINT AS rank, step, start_ns, end_ns, evaluation FROM steps ORDER BY rank, start_ns, step"
    columns = {name: np.asarray(values) for name, values in database.columns(sql).items()}
    found: dict[int, RankSteps] = {}
    evaluated: set[int] = set()
    first: set[int] = set()
    windows = 0
    for rank in ranks:
        begin, end = np.searchsorted(columns["rank"], (rank, rank + 1))
        if begin == end:
            continue
        own = {name: values[begin:end] for name, values in columns.items()}
        keep = _apart(own["start_ns"], own["end_ns"])
        numbers, starts, ends, evaluation = (own[name][keep] for name in ("step", "start_ns", "end_ns", "evaluation"))
        ends[:-1] = np.minimum(ends[:-1], np.maximum(starts[1:], starts[:-1]))
        begins = np.append(True, np.diff(numbers) != 1)
        lengths = np.diff(np.append(np.flatnonzero(begins), len(numbers)))
        if len(lengths) > 1 and (lengths >= _MIN_WINDOW).all():
            windows = max(windows, len(lengths))
        else:
            begins[:] = False
        counts = ~(evaluation.astype(bool) | begins)
        if counts.any():
            evaluated |= set(numbers[evaluation.astype(bool)].tolist())
            first |= set(numbers[begins].tolist())
        else:
            counts[:] = True
        found[rank] = RankSteps(numbers, starts, ends, counts)
    notes = []
    if first:
        notes.append(
            f"the first step of each of {counted(windows, 'recording window')} is not counted: {_named(first)}"
        )
    if evaluated:
        notes.append(f"steps that overlap an evaluation are not counted: {_named(evaluated)}")
    return _without_warm_up(RunSteps(found, notes=notes))


def _named(numbers: set[int]) -> str:
    return f"{'step' if len(numbers) == 1 else 'steps'} {number_spans(numbers, dash=' to ', most=_MAX_SPANS)}"


def _apart(starts: Ints, ends: Ints) -> Bools:
    """Return True for steps that do not overlap an earlier one: several files may state the steps of one rank."""
    keep = np.ones(len(starts), dtype=bool)
    if (starts[1:] >= ends[:-1]).all():
        return keep
    end: int | None = None
    for at, (start, own) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        keep[at] = end is None or end - start <= min(_ROUNDING_NS, (own - start) // 2)
        end = own if keep[at] else end
    return keep


def _without_warm_up(steps: RunSteps) -> RunSteps:
    """Return the steps with the warm-up steps of all ranks not counted."""
    common = steps.common(list(steps.ranks))
    if not common:
        return steps
    durations = [own.durations[own.places(common)] for own in steps.ranks.values()]
    lengths: Floats = np.median(np.array(durations, dtype=float), axis=0)
    found = count_warm_up(lengths)
    if not found:
        return steps
    warm_up = common[:found]
    ranks = {
        rank: RankSteps(own.numbers, own.starts, own.ends, own.counts & ~np.isin(own.numbers, warm_up))
        for rank, own in steps.ranks.items()
    }
    return RunSteps(ranks, warm_up, [*steps.notes, warm_up_note(common, lengths, found)])


def count_warm_up(lengths: Floats) -> int:
    """Return how many steps at the beginning are longer than the steps that follow them.

    A step belongs to the warm-up if it is 10 % and 5 robust deviations longer than the median of the steps after the first
    fifth; one shorter step may lie between two of them.
    """
    most = min(_MAX_WARM_UP, int(len(lengths) * _MAX_WARM_UP_SHARE))
    if len(lengths) < _MIN_WARM_UP_STEPS:
        return 0
    after = lengths[most : most + max(3 * most, 50)]
    usual = float(np.median(after))
    is_long = lengths[: most + 1] > usual + max(_LONGER_SHARE * usual, _DEVIATIONS * float(robust_deviation(after)))
    found = 0
    for step in range(most):
        if is_long[step]:
            found = step + 1
        elif not is_long[step + 1]:
            break
    return found


def warm_up_note(numbers: Sequence[int], lengths: Floats, found: int) -> str:
    """Return a note that names the warm-up steps; ``found`` is the result of `count_warm_up`, 1 or more."""
    which = f"step {numbers[0]} is" if found == 1 else f"steps {numbers[0]} to {numbers[found - 1]} are"
    times = float(lengths[:found].max() / np.median(lengths[found:]))
    return f"{which} warm-up (up to {times:.1f} x the usual step) and not counted: {counted(found, 'step')}"
