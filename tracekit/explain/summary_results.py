"""The values of a summary; `TraceSummary.as_dict` is its JSON form (``schemas/summary.schema.json``)."""

from __future__ import annotations

from statistics import median

from tracekit.explain.gpu import GPUTime
from tracekit.explain.results import Result
from tracekit.explain.stragglers_results import StepOutlier, Straggler


class FileSummary(Result, frozen=True, kw_only=True):
    """A file.

    Attributes:
        file: Its name, without secrets of a URL.
        events: The number of its slices, instants, values of counters and flows; a begin and its end are one.
    """

    file: str
    events: int


class MarkerSummary(Result, frozen=True, kw_only=True):
    """All slices of one name and category on one rank.

    Attributes:
        rank: The rank.
        name: The name, shortened to 500 characters.
        category: The category; empty if it is missing.
        count: The number of slices.
        total_ns: The sum of their durations; a slice inside one of the same name also counts.
        self_ns: The part that no slice directly inside them covers.
        mean_ns: The mean duration.
        p50_ns, p95_ns, p99_ns: The shortest duration that this percentage of them does not exceed.
        share_of_steps: Durations of the slices of steps, as a share of all steps; null without steps. A slice on a device belongs
            to the step of its launch.
        frame: True if it encloses others and is not work itself: a step, a function of Python, a span of the profiler.
    """

    rank: int
    name: str
    category: str
    count: int
    total_ns: int
    self_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int
    share_of_steps: float | None
    frame: bool


class StageSummary(Result, frozen=True, kw_only=True):
    """A stage of the steps of a rank; see `tracekit.explain.stages`.

    Attributes:
        name: Its name; "backward > all_reduce" for a collective inside another stage.
        total_ns: Its time in all steps that count.
        share_of_steps: The same as a share of these steps.
        collective: True if the ranks exchange data in it.
    """

    name: str
    total_ns: int
    share_of_steps: float
    collective: bool


class StepTable(Result, frozen=True, kw_only=True):
    """All steps one by one, as columns.

    Attributes:
        numbers: Their numbers.
        durations_ns: The duration of each.
        counted: True for those that count in averages.
        stages_ns: The time of each stage in each step.
    """

    numbers: list[int]
    durations_ns: list[int]
    counted: list[bool]
    stages_ns: dict[str, list[int]]


class StepSummary(Result, frozen=True, kw_only=True):
    """The steps that count in averages. Percentiles are by nearest rank.

    Attributes:
        count: The number of steps.
        total_ns: The sum of their durations.
        mean_ns: The mean; 0 without steps.
        p50_ns, p95_ns, p99_ns: The shortest duration that this percentage of the steps does not exceed.
        longest_ns: The longest.
    """

    count: int
    total_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int
    longest_ns: int


class LoadingSummary(Result, frozen=True, kw_only=True):
    """Waiting of the training thread for the data loader.

    Attributes:
        count: How often.
        total_ns: The sum of all times.
        longest_ns: The longest.
        share_of_steps: The part in steps that count, as a share of these; null without steps.
    """

    count: int
    total_ns: int
    longest_ns: int
    share_of_steps: float | None


class GapSummary(Result, frozen=True, kw_only=True):
    """A time without slices on the training thread, or without activities on a device.

    Attributes:
        rank: The rank.
        where: The name of the thread or device.
        start_ns: Its start, ns since the epoch if the trace states its base time.
        length_ns: Its length.
        after: The name of the slice that ended there.
        before: The name of the slice that followed.
        step: The step of its start; null outside of all steps.
    """

    rank: int
    where: str
    start_ns: int
    length_ns: int
    after: str
    before: str
    step: int | None


class RankSummary(Result, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        rank: Its number; -1 for processes of a merged trace without a rank.
        span_ns: From its first slice to the end of the last.
        training_thread: The name of the thread of its stages, gaps and loading times; empty if it is unknown.
        steps: Its steps: tracekit's batches, or else ProfilerStep#N.
        stages: The stages of its steps, in the order within a step.
        unrecorded_ns: The time of the steps outside of all stages.
        loading: Waiting for data; null where no such marker was recorded.
        devices: Its devices; empty where torch.profiler recorded none. ``tracekit gpu`` has more.
        step_by_step: Its steps one by one.
    """

    rank: int
    span_ns: int
    training_thread: str
    steps: StepSummary
    stages: list[StageSummary]
    unrecorded_ns: int
    loading: LoadingSummary | None
    devices: list[GPUTime]
    step_by_step: StepTable

    @property
    def stage_means_ns(self) -> dict[str, float]:
        """The mean time of each stage in a step, in the order within a step; empty without steps."""
        return {stage.name: stage.total_ns / self.steps.count for stage in self.stages} if self.steps.count else {}

    @property
    def unrecorded_share(self) -> float | None:
        """The share of the steps outside of all stages; None without steps."""
        return self.unrecorded_ns / self.steps.total_ns if self.steps.total_ns else None


class SlowestRank(Result, frozen=True, kw_only=True):
    """The rank with the longest steps.

    Attributes:
        rank: The rank.
        step_mean_ns: The mean of its steps.
        median_of_ranks_ns: The median of the means of all ranks.
    """

    rank: int
    step_mean_ns: float
    median_of_ranks_ns: float


class Verdict(Result, frozen=True, kw_only=True):
    """The most important facts about a run.

    Attributes:
        bound: "input", "launch", "communication" or "compute", by what limits the run; "unknown" without steps and devices.
        share: The share of the step that this explains; null if it is unknown.
        imbalanced: True if a rank is slower than the others.
        sentences: At most five sentences; the last names the next command.
    """

    bound: str
    share: float | None
    imbalanced: bool
    sentences: list[str]


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
