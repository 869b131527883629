"""Find markers that became slower between runs, or are slower on one rank than on another."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.arguments import check_names, check_paths
from tracekit.errors import ConfigError
from tracekit.explain import CONFIDENCE, MIN_SHARE, MIN_VALUES
from tracekit.explain.arrays import np
from tracekit.explain.diff_results import STEP, Change, DiffSide, Presence, TraceDiff
from tracekit.explain.noise import Correction
from tracekit.explain.run import check_shares, open_run
from tracekit.explain.run_change import compare_runs, count_stages, find_causes, marker_of, stage_costs_of
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import Paths
    from tracekit.explain.arrays import Floats
    from tracekit.explain.diff_results import Cause
    from tracekit.explain.run import Run
    from tracekit.explain.run_change import StageCosts

_MAX_CELLS: Final = 8_000_000
_MIN_STEPS: Final = 50
_MAX_VALUES: Final = 4096
_GATE_CONFIDENCE: Final = 0.99

Key = tuple[str, str]  # name and category of a marker

_PLACES: Final = """
WITH own AS (
    SELECT coalesce(rank, -1) AS rank, step, start_ns FROM steps WHERE coalesce(rank, -1) IN ({ranks})
    QUALIFY count(*) OVER (PARTITION BY coalesce(rank, -1), step) = 1
)
SELECT rank, step, row_number() OVER (PARTITION BY rank ORDER BY start_ns) - 1 AS place
FROM own ANTI JOIN (VALUES {excluded}) AS excluded(rank, step) USING (rank, step)"""

# A row is a `_Series` behind its label; the label -1 stands for whole steps.
_SERIES_OF_STEPS: Final = """
WITH timed AS (
    SELECT label, rank, step, duration_ns, self_ns FROM slice WHERE kind NOT IN ('frame', 'step')
    UNION ALL SELECT -1, coalesce(rank, -1), step, duration_ns, duration_ns FROM steps
), cell AS (
    SELECT label, place, sum(duration_ns)::DOUBLE AS total_ns, count(DISTINCT rank) AS ranks, count(*) AS slices,
        sum(self_ns)::DOUBLE AS self_ns
    FROM timed JOIN place USING (rank, step) WHERE place < {kept} GROUP BY label, place
)
SELECT label, coalesce(list(total_ns / ranks ORDER BY place) FILTER (total_ns > 0), []) AS values_ns,
    sum(slices)::BIGINT AS slices, sum(total_ns) AS total_ns, sum(self_ns) AS self_ns, avg(ranks) AS ranks,
    count(*) FILTER (total_ns > 0) / {kept} AS presence
FROM cell GROUP BY label ORDER BY label"""

_SERIES_OF_SLICES: Final = """
WITH own AS (
    SELECT label, duration_ns, row_number() OVER in_order - 1 AS number, count(*) OVER of_label AS slices,
        sum(duration_ns) OVER of_label AS total_ns, sum(self_ns) OVER of_label AS self_ns
    FROM slice WHERE kind NOT IN ('frame', 'step') AND rank IN ({ranks})
    WINDOW of_label AS (PARTITION BY label), in_order AS (PARTITION BY label ORDER BY rank, start_ns, file, id)
)
SELECT label, coalesce(list(duration_ns::DOUBLE ORDER BY number) FILTER (duration_ns > 0), []) AS values_ns,
    any_value(slices) AS slices, any_value(total_ns)::DOUBLE AS total_ns, any_value(self_ns)::DOUBLE AS self_ns,
    1::DOUBLE AS ranks, 1::DOUBLE AS presence
FROM own WHERE number % (2 ** ceil(log2(greatest(1.0, slices / {most}.0))))::BIGINT = 0 GROUP BY label ORDER BY label"""


class _Series(Struct, frozen=True):
    """A marker on one side.

    Attributes:
        values: Its mean time on the ranks that have it, for each step that has it; without steps, the times of single slices.
    """

    values: Floats
    count: int  # the number of slices
    total_ns: float  # the sum of their durations
    self_ns: float  # the part that no inner slice covers
    ranks: float  # mean number of ranks that have it, in the steps that have it
    presence: float  # the share of steps that have it


class _Side(Struct, frozen=True):
    """One run."""

    shown: DiffSide  # the files and ranks that were compared, and the number of steps
    series: dict[Key, _Series]  # the markers
    notes: list[str]  # notes on the files and steps
    costs: StageCosts | None  # the costs of the stages, where the ranks wait for each other

    @property
    def step_ns(self) -> float:
        """The mean step; 0 without steps."""
        return float(self.series[STEP, ""].values.mean()) if self.shown.steps else 0.0

    def each(self, amount: str, key: Key) -> float:
        """Return an amount of a marker for each step of a rank that has it; without steps, for each slice."""
        own = self.series[key]
        of = self.shown.steps * (own.ranks or 1) if self.shown.steps else own.count
        return float(getattr(own, amount) / of)


def diff_traces(
    first: Paths,
    second: Paths | None = None,
    *,
    baselines: Sequence[Paths] = (),
    rank_a: int | None = None,
    rank_b: int | None = None,
    inside: Sequence[str] = (),
    at_least: float = MIN_SHARE,
    sure: float = CONFIDENCE,
    cache: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> TraceDiff:
    """Find the markers that became slower or faster from one run to another, with limits, and those that are new or gone.

    Compares the mean time of each marker in a step or, where a run has fewer than five steps, in a slice. Warm-up steps do not
    count. Where ranks wait for each other, `TraceDiff.causes` has the stages that made the step longer; see
    `tracekit.explain.run_change`.

    Args:
        first: Traces of the earlier run: files, folders, globs or URLs.
        second: Traces of the later run; None to compare two ranks of the first.
        baselines: Traces of further earlier runs. Their variation widens the limits; with none, it is unknown.
        rank_a: Only this rank of the earlier runs.
        rank_b: Only this rank of the later run.
        inside: Names of markers that are not compared, since they only enclose others.
        at_least: Least change to report, as a share of the step; without steps, of the slice.
        sure: Probability that no marker of equal runs is reported.
        cache: False to keep no tables.
        progress: Called with the completed share of the work, 0 to 1, and a description of the current part.

    Raises:
        ConfigError: Nothing was named, several runs of one rank or one trace twice for one side, or a rank is not there.
        StorageError: A file cannot be read, or the cache cannot be written.
        TraceFormatError: A file that was named is not a trace.
        MissingExtraError: DuckDB is not installed.
    """
    check_shares(at_least=at_least, sure=sure)
    before = [check_paths("first", first), *(check_paths("baselines", paths) for paths in baselines)]
    after = before[0] if second is None else check_paths("second", second)
    check_names("inside", inside)
    if second is None and (rank_a is None or rank_b is None or rank_a == rank_b):
        raise ConfigError("one run alone can only be compared by its ranks: name two different ones, rank_a and rank_b")
    wanted = [*((paths, rank_a) for paths in before), (after, rank_b)]
    sides = [_read(*one, inside, cache, _part(progress, at, len(wanted))) for at, one in enumerate(wanted)]
    if not all(side.shown.steps for side in sides):
        sides = [
            _read(*one, inside, cache, None, by_steps=False) if side.shown.steps else side
            for one, side in zip(wanted, sides, strict=True)
        ]
    *ours, theirs = sides
    notes = list(dict.fromkeys(note for side in sides for note in side.notes))
    if second is not None and len(ours) == 1:
        notes.append("one run a side: the limits hold within these two runs, the variation from run to run is unknown")
    changes, causes, untested = _compare(ours, theirs, sure, at_least)
    if untested:
        notes.append(f"{untested:,} markers have fewer than {MIN_VALUES} values on a side and are not compared")

    def is_named(change: Change) -> bool:
        effect = change.ratio - 1 if change.share_of_step is None else change.share_of_step
        return change.chance <= 1 - sure and abs(effect) >= at_least

    stages = [marker_of(one.stage) for one in causes]

    def by_cost(change: Change) -> tuple[bool, bool, bool, float, str]:
        cost = change.after_ns - change.before_ns if change.share_of_step is None else change.share_of_step
        return change.name != STEP, change.waiting, change.name not in stages, -abs(cost), change.name

    return TraceDiff(
        before=DiffSide(
            files=[path for side in ours for path in side.shown.files],
            ranks=sorted({rank for side in ours for rank in side.shown.ranks}),
            steps=min(side.shown.steps for side in ours),
        ),
        after=theirs.shown,
        baselines=len(ours),
        step=next((change for change in changes if change.name == STEP), None),
        causes=causes,
        slower=sorted((one for one in changes if is_named(one) and one.ratio > 1), key=by_cost),
        faster=sorted((one for one in changes if is_named(one) and one.ratio <= 1), key=by_cost),
        unchanged=[one for one in changes if not is_named(one)],
        new=_only(theirs, ours),
        vanished=[
            one for one in _only(ours[0], [theirs]) if all((one.name, one.category) in side.series for side in ours)
        ],
        notes=notes,
    )


def _part(progress: Callable[[float, str], None] | None, at: int, of: int) -> Callable[[float, str], None] | None:
    return None if progress is None else lambda done, what: progress((at + done) / of, what)


def _read(
    patterns: Sequence[str],
    rank: int | None,
    inside: Sequence[str],
    cache: bool,
    progress: Callable[[float, str], None] | None,
    *,
    by_steps: bool = True,
) -> _Side:
    """Read one side; single slices are compared where there are too few steps, or ``by_steps`` says so."""
    with open_run(patterns, inside=inside, cache=cache, progress=progress) as run:
        if rank is not None and rank not in run.ranks:
            there = ", ".join(map(str, run.ranks[:20])) or "none"
            raise ConfigError(f"rank {rank} is not in the traces; there are: {there}")
        ranks = run.ranks if rank is None else [rank]
        timed = [own for own in ranks if own in run.steps.ranks]
        steps = _place_steps(run, timed) if timed and by_steps else 0
        if steps < MIN_VALUES:
            named = ", ".join(map(str, ranks)) or "NULL"
            steps, series = 0, _series(run, _SERIES_OF_SLICES.format(ranks=named, most=_MAX_VALUES), "label")
        else:
            ranks, series = timed, _series(run, _SERIES_OF_STEPS.format(kept=steps), "label", "place")
        costs = stage_costs_of(run) if steps and rank is None else None
        shown = DiffSide(files=[path for path, _ in run.files], ranks=ranks, steps=steps)
        return _Side(shown, series, [*run.notes, *run.steps.notes], costs)


def _place_steps(run: Run, ranks: list[int]) -> int:
    """Number the counted steps of each rank in order of time; return how many all ranks have, or at most can be compared."""
    excluded = ["(NULL::BIGINT, NULL::BIGINT)"]
    stated = run.database.columns("SELECT coalesce(rank, -1)::BIGINT AS rank, step FROM steps ORDER BY 1")
    for rank in ranks:
        own = run.steps.ranks[rank]
        numbers = stated["step"][slice(*np.searchsorted(stated["rank"], (rank, rank + 1)))]
        excluded += [f"({rank}, {number})" for number in np.setdiff1d(numbers, own.numbers[own.counts]).tolist()]
    places = _PLACES.format(ranks=", ".join(map(str, ranks)), excluded=", ".join(excluded))
    run.database.derive("place", places)
    counts = dict(run.database.run("SELECT rank, count(*) FROM place GROUP BY rank"))
    most = max(_MIN_STEPS, _MAX_CELLS // max(1, len(run.labels)))
    return int(min(most, *(counts.get(rank, 0) for rank in ranks)))


def _series(run: Run, sql: str, *tables: str) -> dict[Key, _Series]:
    """Return the markers from a query, which reads derived tables."""
    run.database.derive("diff_series", sql, of=tables)
    columns = run.database.columns("SELECT * FROM diff_series").values()
    rows = zip(*(values.tolist() for values in columns), strict=True)
    return {
        (STEP, "") if label < 0 else run.labels[label][:2]: _Series(np.asarray(values, dtype=float), *amounts)
        for label, values, *amounts in rows
    }


def _compare(ours: list[_Side], theirs: _Side, sure: float, at_least: float) -> tuple[list[Change], list[Cause], int]:
    """Compare the markers that all runs have; returns the changes, their causes, and how many markers have too few values."""
    common = set(theirs.series).intersection(*(side.series for side in ours))
    # A marker that is not in every step, or not on every rank, is compared where it is: the runs may differ in their ranks.
    values = {key: [side.series[key].values for side in (*ours, theirs)] for key in sorted(common)}
    tested = {key: own for key, own in values.items() if min(map(len, own)) >= MIN_VALUES}
    step_ns = fmean(side.step_ns for side in ours)
    costs = [side.costs for side in (*ours, theirs) if side.costs is not None]
    if len(costs) <= len(ours) or len({one.last for one in costs}) > 1:
        costs = []
    tests = Correction(2 * (len(tested) + count_stages(costs)), sure)
    causes, waiting = find_causes(costs[:-1], costs[-1], tests, at_least) if costs else ([], set())
    found: list[Change] = []
    for key, (*before, after) in tested.items():
        change = compare_runs(before, after)
        if change is None:
            continue
        reach, alone = change.reach(tests), change.reach(Correction(1, _GATE_CONFIDENCE))
        each = fmean(side.series[key].presence for side in (*ours, theirs))
        found.append(
            Change(
                name=key[0],
                category=key[1],
                before_ns=change.before,
                after_ns=change.after,
                self_change_ns=theirs.each("self_ns", key) - fmean(side.each("self_ns", key) for side in ours),
                count_before=fmean(side.each("count", key) for side in ours),
                count_after=theirs.each("count", key),
                ratio=change.ratio,
                low=change.ratio / reach,
                high=change.ratio * reach,
                chance=change.chance(tests),
                share_of_step=(change.after - change.before) * each / step_ns if step_ns else None,
                lower_99=change.ratio / alone,
                resolution=alone - 1,
                waiting=key[0] in waiting,
            )
        )
    return found, causes, len(values) - len(tested)


def _only(side: _Side, others: list[_Side]) -> list[Presence]:
    """Return the markers that only one side has, the longest first."""
    found = []
    for name, category in side.series.keys() - set[Key]().union(*(other.series for other in others)):
        own, each_ns = side.series[name, category], side.each("total_ns", (name, category))
        total_ns = int(own.total_ns)
        found.append(Presence(name=name, category=category, count=own.count, total_ns=total_ns, each_ns=each_ns))
    return sorted(found, key=lambda one: (-one.total_ns, one.name, one.category))
