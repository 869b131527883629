"""The values of a summary; `TraceSummary.as_dict` is its JSON form (``schemas/summary.schema.json``)."""

from __future__ import annotations

from statistics import median

from tracekit.explain.gpu import GPUTime
from tracekit.explain.results import Result
from tracekit.explain.stragglers_results import StepOutlier, Straggler


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
        bound: "input", "launch", "communication" or "compute", by what limits the run; "unknown" without steps and devices.
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
