"""The values of a summary, and its lines of up to 80 columns.

`TraceSummary.as_dict` is the JSON form (``schemas/summary.schema.json``).
Names are those of the trace; who prints them makes them printable.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.explain.gpu_results import DEVICE_TIMES, GPUTime, device_cells, device_lines
from tracekit.explain.results import Result
from tracekit.explain.stragglers_results import StepOutlier, Straggler
from tracekit.explain.text import ENDS, duration, range_cells, section, share, shortened, shortened_apart
from tracekit.structs import Struct
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_RANKS: Final = 64
_MAX_GAPS: Final = 5
_WHERE_WIDTH: Final = 15
_DEVICE_SHARES: Final = {"busy": "busy_ns", **DEVICE_TIMES}


class FileSummary(Result, frozen=True, kw_only=True):
    """A file."""

    file: str  # its name, without secrets of a URL
    events: int  # the number of its slices, instants, values of counters and flows; a begin and its end are one


class MarkerSummary(Result, frozen=True, kw_only=True):
    """All slices of one name and category on one rank.

    Attributes:
        share_of_steps: Durations of the slices of steps, as a share of all steps; null without steps. A slice on a device belongs
            to the step of its launch.
        frame: True if it encloses others and is not work itself: a step, a function of Python, a span of the profiler.
    """

    rank: int  # the rank
    name: str  # the name, shortened to 500 characters
    category: str  # the category; empty if it is missing
    count: int  # the number of slices
    total_ns: int  # the sum of their durations; a slice inside one of the same name also counts
    self_ns: int  # the part that no slice directly inside them covers
    mean_ns: float  # the mean duration
    p50_ns: int  # the shortest duration that this percentage of them does not exceed
    p95_ns: int  # the shortest duration that this percentage of them does not exceed
    p99_ns: int  # the shortest duration that this percentage of them does not exceed
    share_of_steps: float | None
    frame: bool


class StageSummary(Result, frozen=True, kw_only=True):
    """A stage of the steps of a rank; see `tracekit.explain.stages`."""

    name: str  # its name; "backward > all_reduce" for a collective inside another stage
    total_ns: int  # its time in all steps that count
    share_of_steps: float  # the same as a share of these steps
    collective: bool  # true if the ranks exchange data in it


class StepTable(Result, frozen=True, kw_only=True):
    """All steps one by one, as columns."""

    numbers: list[int]  # their numbers
    durations_ns: list[int]  # the duration of each
    counted: list[bool]  # true for those that count in averages
    stages_ns: dict[str, list[int]]  # the time of each stage in each step


class StepSummary(Result, frozen=True, kw_only=True):
    """The steps that count in averages. Percentiles are by nearest rank."""

    count: int  # the number of steps
    total_ns: int  # the sum of their durations
    mean_ns: float  # the mean; 0 without steps
    p50_ns: int  # the shortest duration that this percentage of the steps does not exceed
    p95_ns: int  # the shortest duration that this percentage of the steps does not exceed
    p99_ns: int  # the shortest duration that this percentage of the steps does not exceed
    longest_ns: int  # the longest


class LoadingSummary(Result, frozen=True, kw_only=True):
    """Waiting of the training thread for the data loader."""

    count: int  # how often
    total_ns: int  # the sum of all times
    longest_ns: int  # the longest
    share_of_steps: float | None  # the part in steps that count, as a share of these; null without steps


class GapSummary(Result, frozen=True, kw_only=True):
    """A time without slices on the training thread, or without activities on a device."""

    rank: int  # the rank
    where: str  # the name of the thread or device
    start_ns: int  # its start, ns since the epoch if the trace states its base time
    length_ns: int  # its length
    after: str  # the name of the slice that ended there
    before: str  # the name of the slice that followed
    step: int | None  # the step of its start; null outside of all steps


class RankSummary(Result, frozen=True, kw_only=True):
    """One rank."""

    rank: int  # its number; -1 for processes of a merged trace without a rank
    span_ns: int  # from its first slice to the end of the last
    training_thread: str  # the name of the thread of its stages, gaps and loading times; empty if it is unknown
    steps: StepSummary  # its steps: tracekit's batches, or else ProfilerStep#N
    stages: list[StageSummary]  # the stages of its steps, in the order within a step
    unrecorded_ns: int  # the time of the steps outside of all stages
    loading: LoadingSummary | None  # waiting for data; null where no such marker was recorded
    devices: list[GPUTime]  # its devices; empty where torch.profiler recorded none. ``tracekit gpu`` has more.
    step_by_step: StepTable  # its steps one by one

    @property
    def stage_means_ns(self) -> dict[str, float]:
        """The mean time of each stage in a step, in the order within a step; empty without steps."""
        return {stage.name: stage.total_ns / self.steps.count for stage in self.stages} if self.steps.count else {}

    @property
    def loading_share(self) -> float | None:
        """The share of the steps in which the training thread waits for data; None if that is unknown."""
        return None if self.loading is None else self.loading.share_of_steps

    @property
    def unrecorded_share(self) -> float | None:
        """The share of the steps outside of all stages; None without steps."""
        return self.unrecorded_ns / self.steps.total_ns if self.steps.total_ns else None


class SlowestRank(Result, frozen=True, kw_only=True):
    """The rank with the longest steps."""

    rank: int  # the rank
    step_mean_ns: float  # the mean of its steps
    median_of_ranks_ns: float  # the median of the means of all ranks


class Verdict(Result, frozen=True, kw_only=True):
    """The most important facts about a run.

    Attributes:
        bound: "input", "launch", "cpu", "copy", "communication" or "compute", by what limits the run; "unknown" without steps
            and devices.
    """

    bound: str
    share: float | None  # the share of the step that this explains; null if it is unknown
    imbalanced: bool  # true if a rank is slower than the others
    sentences: list[str]  # at most five sentences; the last names the next command


class TraceSummary(Result, frozen=True, kw_only=True):
    """A summary of the time of a run. All times are nanoseconds; shares are between 0 and 1 unless slices of one name nest.

    Attributes:
        verdict: The most important facts.
        files: The files that were read.
        ranks: By rank.
        slowest_rank: The rank with the longest steps; null with fewer than two ranks. See ``stragglers`` for slow ranks: ranks
            that wait for each other all take the same time.
        stragglers: The slow ranks by the times of stages; ``tracekit stragglers`` reports more.
        outliers: Steps that took longer than usual, those that cost most first.
        markers: By rank, and then by total time, longest first.
        gaps: The ten longest of all ranks, longest first.
        warm_up: Numbers of the warm-up steps, which do not count in averages.
        notes: Events and steps that are not counted, and reasons.
        incomplete: True if something in the files could not be read or counted.
    """

    format_version: int = 2
    verdict: Verdict
    files: list[FileSummary]
    ranks: list[RankSummary]
    slowest_rank: SlowestRank | None
    stragglers: list[Straggler]
    outliers: list[StepOutlier]
    markers: list[MarkerSummary]
    gaps: list[GapSummary]
    warm_up: list[int]
    notes: list[str]
    incomplete: bool

    @property
    def timed(self) -> list[RankSummary]:
        """The ranks that have steps."""
        return [rank for rank in self.ranks if rank.steps.count]

    def longest_timed(self, most: int) -> list[RankSummary]:
        """Return at most this number of ranks that have steps, by rank: those with the longest steps."""
        longest = sorted(self.timed, key=lambda rank: (-rank.steps.mean_ns, rank.rank))[:most]
        return sorted(longest, key=lambda rank: rank.rank)

    @property
    def named_markers(self) -> list[MarkerSummary]:
        """The markers except frames, those with the longest total time first."""
        named = [marker for marker in self.markers if not marker.frame]
        return sorted(named, key=lambda marker: (-marker.total_ns, marker.rank, marker.name))


def slowest_of(ranks: list[RankSummary]) -> SlowestRank | None:
    """Return the rank with the longest steps; None with fewer than two ranks that have steps."""
    timed = [rank for rank in ranks if rank.steps.count]
    if len(timed) < 2:
        return None
    last = max(timed, key=lambda rank: (rank.steps.mean_ns, -rank.rank))
    return SlowestRank(
        rank=last.rank,
        step_mean_ns=last.steps.mean_ns,
        median_of_ranks_ns=median(rank.steps.mean_ns for rank in timed),
    )


def step_cells(rank: RankSummary) -> tuple[str, ...]:
    """Return the count, mean, p50, p95, p99 and longest of the steps of a rank."""
    steps = rank.steps
    times = (steps.mean_ns, steps.p50_ns, steps.p95_ns, steps.p99_ns, steps.longest_ns)
    return (f"{steps.count:,}", *map(duration, times))


class NameRow(Struct, frozen=True):
    """All slices of one name and category on all ranks.

    Attributes:
        cells: Count; least, median and most of the ranks' total times; the rank with the most; median share of the steps.
    """

    name: str  # the name
    category: str  # the category; empty if it is missing
    cells: tuple[str, ...]


def telling_names(markers: Iterable[MarkerSummary | NameRow], width: int) -> dict[tuple[str, str], str]:
    """Return a text for each name and category: the short name, with the category where several categories have the name."""
    categories: dict[str, set[str]] = {}
    for one in markers:
        categories.setdefault(one.name, set()).add(one.category)
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, own in categories.items():
        for category in own:
            short = shortened(category or "no category", width - width // 3 - 3)
            alike.setdefault(f" ({short})" if len(own) > 1 else "", []).append((name, category))
    found: dict[tuple[str, str], str] = {}
    for end, keys in alike.items():
        names = shortened_apart((name for name, _ in keys), width - len(end))
        found |= {key: names[key[0]] + end for key in keys}
    return found


NAME_HEAD: Final = ("count", "least", "median", "most", "rank", "of steps")  # the headings of `NameRow.cells`


def name_rows(summary: TraceSummary) -> list[NameRow]:
    """Return a row for each name that is not a frame, those of the longest total time first."""
    by_name: dict[tuple[str, str], list[MarkerSummary]] = {}
    for marker in summary.markers:
        if not marker.frame:
            by_name.setdefault((marker.name, marker.category), []).append(marker)
    ranks = dict.fromkeys((rank.rank for rank in summary.ranks), 0)
    rows = []
    for (name, category), own in sorted(
        by_name.items(), key=lambda item: (-sum(marker.total_ns for marker in item[1]), item[0])
    ):
        totals = [(total, rank) for rank, total in (ranks | {marker.rank: marker.total_ns for marker in own}).items()]
        of_steps = share(median(marker.share_of_steps or 0.0 for marker in own))
        cells = (f"{sum(marker.count for marker in own):,}", *range_cells(totals, duration), of_steps)
        rows.append(NameRow(name, category, cells))
    return rows


def summary_lines(summary: TraceSummary, top: int, *, per_rank: bool = False) -> Iterator[str]:
    """Yield the lines of a summary: the verdict, then tables."""
    yield from summary.verdict.sentences
    yield ""
    events = sum(file.events for file in summary.files)
    ranks = counted(len(summary.ranks), "rank")
    yield f"{counted(len(summary.files), 'file')}, {counted(events, 'event')}, {ranks}"
    if summary.timed:
        yield from _steps(summary, per_rank=per_rank)
        yield from _stages(summary.timed, top, per_rank=per_rank)
    yield from _devices(summary.ranks, per_rank=per_rank)
    yield from _markers(summary, top, per_rank=per_rank)
    threads = {(rank.rank, rank.training_thread) for rank in summary.ranks}
    rows = []
    for gap in summary.gaps[: None if per_rank else _MAX_GAPS]:
        is_long = len(gap.where) > _WHERE_WIDTH and (gap.rank, gap.where) in threads
        where = "training thread" if is_long else shortened(gap.where, _WHERE_WIDTH)
        step = "-" if gap.step is None else str(gap.step)
        around = shortened(gap.after, 17), shortened(gap.before, 17)
        rows.append((duration(gap.length_ns), str(gap.rank), where, step, *around))
    title = "longest gaps: nothing on the training thread, or nothing on a device"
    yield from section(title, ("length", "rank", "where", "step", "after", "before"), rows, 6)
    for note in summary.notes:
        yield f"note: {note}"


def _steps(summary: TraceSummary, *, per_rank: bool) -> Iterator[str]:
    timed = summary.timed
    if per_rank or len(timed) == 1:
        rows = [
            (str(rank.rank), *step_cells(rank), share(rank.loading_share), share(rank.unrecorded_share))
            for rank in summary.longest_timed(_MAX_RANKS)
        ]
        head = ("rank", "steps", "mean", "p50", "p95", "p99", "longest", "loading", "unrecorded")
        left = len(timed) - len(rows)
        return section("steps", head, rows, 0, [f"  and {counted(left, 'rank')} with shorter steps"] if left else ())
    rows = [
        (name, *range_cells([(getattr(rank.steps, f"{name}_ns"), rank.rank) for rank in timed], duration))
        for name in ("mean", "p50", "p95", "p99", "longest")
    ]
    waits = [(rank.loading_share or 0.0, rank.rank) for rank in timed if rank.loading is not None]
    if waits:
        rows.append(("waiting for data", *range_cells(waits, share)))
    rows.append(("in no marker", *range_cells([(rank.unrecorded_share or 0.0, rank.rank) for rank in timed], share)))
    return section(f"steps of {len(timed):,} ranks", ("", *ENDS), rows)


def _stages(timed: list[RankSummary], top: int, *, per_rank: bool) -> Iterator[str]:
    names = dict.fromkeys(stage.name for rank in timed for stage in rank.stages)
    each = [(rank.stage_means_ns, rank.rank) for rank in timed]
    means = {name: [(own.get(name, 0.0), rank) for own, rank in each] for name in names}
    whole = fmean(rank.steps.mean_ns for rank in timed)
    # In the order within a step; the longest ones if there are many.
    shown = set(sorted(means, key=lambda name: -fmean(mean for mean, _ in means[name]))[:top])
    wide = len(timed) > 1 and not per_rank
    short = shortened_apart(shown, 32 if wide else 40)

    def of_step(mean: float) -> str:
        return share(mean / whole if whole else None)

    rows: list[tuple[str, ...]] = []
    for name in (name for name in names if name in shown):
        if wide:
            mean = fmean(value for value, _ in means[name])
            rows.append((short[name], of_step(mean), *range_cells(means[name], duration)))
        else:
            rows += [(short[name], str(rank), duration(value), of_step(value)) for value, rank in means[name]]
    head = ("stage", "of step", *ENDS) if wide else ("stage", "rank", "mean", "of step")
    left = len(names) - len(shown)
    after = [f"  and {counted(left, 'shorter stage')}"] if left else []
    return section("stages of a step (training thread)", head, rows, after=after)


def _devices(ranks: list[RankSummary], *, per_rank: bool) -> Iterator[str]:
    devices = [(rank.rank, device) for rank in ranks for device in rank.devices]
    if per_rank:
        head = ("rank", "device", "span", "busy", "idle", "compute", "comm.", "hidden", "copies")
        rows = [(str(rank), shortened(device.name, 12), *device_cells(device)) for rank, device in devices]
        title = "devices (hidden: the part of communication during which kernels compute)"
        left = len(rows) - 2 * _MAX_RANKS
        after = [f"  and {counted(left, 'device')} more; --json has all"] if left > 0 else []
        yield from section(title, head, rows[: 2 * _MAX_RANKS], 2, after)
    elif devices:
        yield ""
        yield f"{counted(len(devices), 'device')}, as a share of the time from its first activity to its last"
        yield from device_lines([device for _, device in devices], _DEVICE_SHARES)


def _markers(summary: TraceSummary, top: int, *, per_rank: bool) -> Iterator[str]:
    if per_rank or len(summary.ranks) == 1:
        markers = summary.named_markers
        one_rank = len(summary.ranks) == 1
        names = telling_names(markers[:top], 26 if one_rank else 20)
        rows = []
        for marker in markers[:top]:
            times = map(duration, (marker.total_ns, marker.self_ns, marker.p50_ns, marker.p95_ns))
            of = () if one_rank else (str(marker.rank),)
            cells = (*of, f"{marker.count:,}", *times, share(marker.share_of_steps))
            rows.append((names[marker.name, marker.category], *cells))
        head: tuple[str, ...] = ("count", "total", "self", "p50", "p95", "of steps")
        head, title = ("name", *head) if one_rank else ("name", "rank", *head), "markers by total time"
        left = len(markers) - len(rows)
    else:
        found = name_rows(summary)
        names = telling_names(found[:top], 28)
        rows = [(names[row.name, row.category], *row.cells) for row in found[:top]]
        head, title = ("name", *NAME_HEAD), "markers by total time, and the total time of a rank"
        left = len(found) - len(rows)
    return section(title, head, rows, after=[f"  and {left:,} more; --top N shows N, --json all"] if left else ())
