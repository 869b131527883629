"""The stages of a step: the slices of the training thread that follow each other, and their time in each step.

A stage is a slice that no other encloses; steps, functions of Python and whatever is longer than the longest step do not
count as enclosing. A collective inside a stage is a stage of its own, since work and waiting for others are different things.
Of stages that cross, the time that both share counts for the one that ends first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.explain.arrays import np
from tracekit.explain.run import shortened_name
from tracekit.explain.summary_results import GapSummary, LoadingSummary
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.explain.arrays import Bools, Floats, Ints
    from tracekit.explain.run import Run
    from tracekit.explain.steps import RankSteps

MAX_STAGES: Final = 64
OTHER_STAGES: Final = "(all other stages)"
_CROSSING_NS: Final = 1_000  # less is rounding: some traces are in microseconds
_MAX_NAMED: Final = 3
_MAX_GAPS: Final = 10

# Tables, so that the engine knows how small they are, and does not hold all slices to join them.
_FRAMES: Final = """
CREATE OR REPLACE TEMP TABLE around_steps AS
WITH longest AS (
    SELECT coalesce(rank, -1) AS rank, max(duration_ns) AS longest_ns FROM steps GROUP BY ALL
), long AS (
    SELECT l.rank, s.file, s.id, s.start_ns, s.duration_ns FROM events s JOIN longest l ON coalesce(s.rank, -1) = l.rank
    WHERE s.phase = 'X' AND s.duration_ns > longest_ns
)
SELECT l.file, l.id FROM long l ASOF JOIN steps p ON l.rank = coalesce(p.rank, -1) AND l.start_ns <= p.start_ns
WHERE p.start_ns - l.start_ns < l.duration_ns;
CREATE OR REPLACE TEMP TABLE frame AS
SELECT s.file, s.id FROM slice s ANTI JOIN around_steps a ON s.file = a.file AND s.id = a.id
WHERE s.phase = 'X' AND s.kind IN ('frame', 'step') AND (s.label <> 0 OR s.category IN ('python_function', 'Trace'))
UNION ALL SELECT file, id FROM around_steps"""

# A merge moves slices that cross others of their thread to tracks named (overlap), such as steps of torch.profiler that cross
# the markers of a thread that tracekit records.
_LANES: Final = r"""
CREATE OR REPLACE TEMP TABLE lane AS
SELECT l.pid, l.tid, min(o.tid) AS owner FROM tracks l JOIN tracks o ON o.pid = l.pid AND o.rank IS NOT DISTINCT FROM l.rank
    AND coalesce(o.thread, 'thread ' || o.tid) = regexp_replace(l.thread, ' \(overlap( \d+)?\)$', '')
WHERE regexp_matches(l.thread, ' \(overlap( \d+)?\)$') AND o.tid <> l.tid
    AND l.pid IN (SELECT pid FROM slice WHERE category = 'training loop')
GROUP BY l.pid, l.tid"""

_SLICES: Final = """
SELECT s.rank, s.pid AS process, hash(s.pid, coalesce(o.owner, s.tid)) AS thread,
    s.start_ns, s.duration_ns, s.label, s.kind = 'collective' AS collective, s.kind = 'loading' AS loading,
    s.kind = 'step' AS is_step, s.kind = 'call' AS is_call, s.parent IS NULL OR p.id IS NOT NULL AS is_outer
FROM slice s LEFT JOIN frame p ON s.parent_file = p.file AND s.parent = p.id
LEFT JOIN lane o ON s.pid = o.pid AND s.tid = o.tid
ANTI JOIN around_steps a ON s.file = a.file AND s.id = a.id
WHERE s.phase = 'X'
    AND (s.kind IN ('loading', 'collective', 'step') OR s.kind IN ('stage', 'call') AND (s.parent IS NULL OR p.id IS NOT NULL))"""

_OF_RANK: Final = """
SELECT process, thread, start_ns, duration_ns, label, collective, loading, is_step, is_call, is_outer FROM stage_slice
WHERE rank = {rank}"""

# Processes of different ranks can have equal numbers, as in containers.
_THREADS: Final = """
SELECT coalesce(rank, -1) AS rank, hash(pid, tid) AS thread_key, coalesce(min(thread), 'thread ' || any_value(tid), 'thread')
FROM tracks GROUP BY ALL"""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The stages of a rank."""

    steps: RankSteps  # the steps of the rank
    thread: str  # the name of its training thread
    names: list[str]  # the stages, in the order of their mean starts within a step
    offsets_ns: list[float]  # when each begins after the start of the step, on average
    meets: list[bool]  # true for each stage that is a collective
    times: Floats  # the time of each stage in each step, shape (steps, stages), ns
    loading: LoadingSummary | None  # waiting for data; None if there was no waiting
    gaps: list[GapSummary]  # the longest gaps of the training thread
    cut: Counter[str]  # the number of stages with each name that were cut because they cross another one

    @property
    def totals_ns(self) -> Floats:
        """The time of each stage in all steps that count."""
        totals: Floats = self.times[self.steps.counts].sum(axis=0)
        return totals

    @property
    def unrecorded_ns(self) -> int:
        """The time of the counted steps outside of all stages; slices that reach beyond their step can make it too small."""
        return max(0, int(self.steps.counted.sum()) - int(self.totals_ns.sum()))


@dataclass(slots=True)
class _Thread:
    """The stages of one thread: one value of each array for each stage."""

    key: int
    process: int
    has_steps: bool
    starts: Ints
    owns: Ints
    outer: Ints
    label: Ints
    is_collective: Bools
    is_call: Bools
    loading: tuple[Ints, Ints]  # starts and durations
    covered_ns: int
    gaps: list[tuple[int, int, int, int]]  # start, length, and the labels of the slices before and behind it
    cut: Counter[int]


@dataclass(slots=True)
class _Stage:
    """The sums of a stage over the training threads of a rank."""

    times: Floats  # its time in each step
    delays_ns: float = 0.0  # the sum of the times from the start of the step to its own
    count: int = 0
    meets: bool = False

    def add(self, times: Floats, delays_ns: float, count: int) -> None:
        self.times += times
        self.delays_ns += delays_ns
        self.count += count

    @property
    def offset_ns(self) -> float:
        return self.delays_ns / self.count


def training_stages(run: Run) -> dict[int, StageTimes]:
    """Return the stages on the training thread of each rank."""
    database = run.database
    database.derive("stage_slice", _SLICES, before=[_FRAMES, _LANES], of=["label"])
    names = {(rank, key): name for rank, key, name in database.run(_THREADS)}
    trains = {
        (rank, process)
        for rank, process in database.run(
            "SELECT DISTINCT rank, process FROM stage_slice WHERE is_step AND label IN "
            "(SELECT label FROM label WHERE category = 'training loop')"
        )
    }
    found: dict[int, StageTimes] = {}
    for rank in run.ranks:
        columns = database.columns(_OF_RANK.format(rank=rank))
        own = {name: np.asarray(values) for name, values in columns.items()}
        steps = run.steps.of(rank)
        threads = [
            _thread({name: values[own["thread"] == key] for name, values in own.items()}, steps)
            for key in np.unique(own["thread"])
        ]
        training = _training_threads(threads, {process for of, process in trains if of == rank})
        if training:
            found[rank] = _stage_times(run, rank, training, str(names.get((rank, training[0].key), "thread")))
    return found


def cut_notes(stages: Iterable[StageTimes]) -> list[str]:
    """Return a note on the stages that cross each other, if there are any."""
    cut: Counter[str] = Counter()
    for own in stages:
        cut.update(own.cut)
    count = cut.total()
    if not count:
        return []
    names = ", ".join(name for name, _ in cut.most_common(_MAX_NAMED))
    note = f"{counted(count, 'slice')} of the training thread cross the end of another one ({names})"
    return [f"{note}: the time that both share counts for the stage that ends first"]


def _thread(own: dict[str, Any], steps: RankSteps) -> _Thread:
    """Return the stages of a thread."""
    key, process, has_steps = int(own["thread"][0]), int(own["process"][0]), bool(own["is_step"].any())
    order = np.lexsort((-own["start_ns"] - own["duration_ns"], own["start_ns"]))
    own = {name: values[order[~own["is_step"][order]]] for name, values in own.items()}
    starts, label, collective = own["start_ns"], own["label"], own["collective"]
    ends = starts + own["duration_ns"]
    at, until = _outermost(np.flatnonzero(own["is_outer"]), starts, ends)
    begins = np.maximum(starts[at], until)
    owns = ends[at] - begins
    is_cut = (until > starts[at]) & (np.minimum(ends[at], until) - starts[at] >= _CROSSING_NS)
    # Collectives within a stage; of nested ones, the outer.
    talks = np.setdiff1d(_outermost(np.flatnonzero(collective), starts, ends)[0], at)
    of = np.searchsorted(begins, starts[talks], side="right") - 1
    talks, of = talks[of >= 0], of[of >= 0]
    inside = np.minimum(ends[talks] - starts[talks], owns[of])
    taken = np.zeros(len(at), dtype=np.int64)
    np.add.at(taken, of, inside)
    waits, _ = _outermost(np.flatnonzero(own["loading"]), starts, ends)
    stages = np.concatenate([at, talks])
    return _Thread(
        key=key,
        process=process,
        has_steps=has_steps,
        starts=starts[stages],
        owns=np.concatenate([np.maximum(0, owns - taken), inside]),
        outer=np.concatenate([np.full(len(at), -1), of]),
        label=label[stages],
        is_collective=collective[stages],
        is_call=own["is_call"][stages],
        loading=(starts[waits], own["duration_ns"][waits]),
        covered_ns=int(owns.astype(float).sum()),
        gaps=_gaps(starts[at], ends[at], until, label[at], steps),
        cut=Counter(label[at][is_cut].tolist()),
    )


def _outermost(at: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return those of some slices that no other encloses, and the latest end of the slices before each."""
    until = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends[at])[:-1]))[: len(at)]
    is_outer = (ends[at] > until) | (starts[at] >= until)
    return at[is_outer], until[is_outer]


def _gaps(starts: Ints, ends: Ints, until: Ints, label: Ints, steps: RankSteps) -> list[tuple[int, int, int, int]]:
    """Return the longest gaps between slices, without the pauses of the recording."""
    at = np.flatnonzero(starts[1:] > until[1:]) + 1
    # The slice that ends last among those before.
    last = np.maximum.accumulate(np.where(ends > until, np.arange(len(ends)), 0))[at - 1]
    keep = ~steps.is_pause(until[at], starts[at])
    at, last = at[keep], last[keep]
    columns = until[at], starts[at] - until[at], label[last], label[at]
    longest = np.lexsort((columns[0], -columns[1]))[:_MAX_GAPS]
    return list(zip(*(values[longest].tolist() for values in columns), strict=True))


def gap_summary(steps: RankSteps, rank: int, where: str, span: tuple[int, int], after: str, before: str) -> GapSummary:
    """Return a gap; its span is the start and the length."""
    place = int(steps.at(np.array(span[:1]))[0])
    return GapSummary(
        rank=rank,
        where=where,
        start_ns=span[0],
        length_ns=span[1],
        after=shortened_name(after),
        before=shortened_name(before),
        step=None if place < 0 else int(steps.numbers[place]),
    )


def _training_threads(threads: list[_Thread], trains: set[int]) -> list[_Thread]:
    """Return the training thread of each process that trains, the surest first.

    A process with steps of tracekit trains; otherwise the threads with steps of torch.profiler do. Without such
    steps, it is the thread that spends most time in stages.
    """

    def level(thread: _Thread) -> int:
        return 2 if thread.process in trains else int(thread.has_steps)

    found: dict[int, _Thread] = {}
    ordered = sorted(
        (one for one in threads if one.covered_ns), key=lambda one: (-level(one), -one.has_steps, -one.covered_ns)
    )
    for thread in ordered:
        if level(thread) == level(ordered[0]) and (level(thread) or not found):
            found.setdefault(thread.process, thread)
    return list(found.values())


def _stage_times(run: Run, rank: int, threads: list[_Thread], name: str) -> StageTimes:
    """Add up the stages of the training threads of a rank."""
    steps = run.steps.of(rank)
    labels = [label for label, _, _ in run.labels]
    found: dict[str, _Stage] = {}
    cut: Counter[str] = Counter()
    gaps: list[GapSummary] = []
    for thread in threads:
        place = steps.at(thread.starts)
        # A collective belongs to the step of its stage.
        inner = thread.outer >= 0
        place[inner] = place[thread.outer[inner]]
        outer = np.where(inner, thread.label[np.maximum(thread.outer, 0)], -1)
        # A call of the runtime between stages is neither a gap nor a stage.
        keep = np.flatnonzero((place >= 0) & ~thread.is_call)
        keys, of = np.unique(np.stack([outer[keep], thread.label[keep]]), axis=1, return_inverse=True)
        for at, (around, label) in enumerate(keys.T.tolist()):
            chosen = keep[of.reshape(-1) == at]
            stage = labels[label] if around < 0 else f"{labels[around]} > {labels[label]}"
            one = found.setdefault(stage, _Stage(np.zeros(len(steps))))
            delays = thread.starts[chosen] - steps.starts[place[chosen]]
            times: Any = np.bincount(place[chosen], weights=thread.owns[chosen].astype(float), minlength=len(steps))
            one.add(times, float(delays.astype(float).sum()), len(chosen))
            one.meets = one.meets or bool(thread.is_collective[chosen].any())
        for label, count in thread.cut.items():
            cut[labels[label]] += count
        gaps += [
            gap_summary(steps, rank, name, (start, length), labels[one], labels[other])
            for start, length, one, other in thread.gaps
        ]
    for stage in sorted(found, key=lambda stage: -float(found[stage].times.sum()))[MAX_STAGES:]:
        one = found.pop(stage)
        found.setdefault(OTHER_STAGES, _Stage(np.zeros(len(steps)))).add(one.times, one.delays_ns, one.count)
    names = sorted(found, key=lambda stage: found[stage].offset_ns)
    return StageTimes(
        steps=steps,
        thread=name,
        names=names,
        offsets_ns=[found[stage].offset_ns for stage in names],
        meets=[found[stage].meets for stage in names],
        times=np.stack([found[stage].times for stage in names], axis=1) if names else np.zeros((len(steps), 0)),
        loading=_loading(steps, threads),
        gaps=gaps,
        cut=cut,
    )


def _loading(steps: RankSteps, threads: list[_Thread]) -> LoadingSummary | None:
    starts, lengths = (np.concatenate(columns) for columns in zip(*(thread.loading for thread in threads), strict=True))
    if not len(lengths):
        return None
    places = steps.at(starts)
    is_counted = places >= 0
    is_counted[is_counted] = steps.counts[places[is_counted]]
    steps_ns = int(steps.counted.astype(float).sum())
    return LoadingSummary(
        count=len(lengths),
        total_ns=int(lengths.astype(float).sum()),
        longest_ns=int(lengths.max()),
        share_of_steps=int(lengths[is_counted].sum()) / steps_ns if steps_ns else None,
    )
