"""What a summary says, as values; `TraceSummary.as_dict` is its JSON form (``schemas/summary.schema.json``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.analysis.intervals import DeviceTime
    from tracekit.analysis.stragglers_report import Straggler

__all__ = [
    "DeviceSummary",
    "GapSummary",
    "LoadingSummary",
    "MarkerSummary",
    "RankSummary",
    "StageSummary",
    "StepTable",
    "TraceSummary",
    "percentile",
]


@dataclass(frozen=True, slots=True)
class MarkerSummary:
    """All slices of one name and category on one rank.

    Attributes:
        rank: The rank.
        name: The name; one of more than 500 characters is shortened.
        category: The category; empty where there is none.
        count: How many slices.
        total_ns: Their durations together; a slice inside of one of the same name counts, too.
        self_ns: The same without what lies directly inside of them on their track.
        p50_ns, p95_ns, p99_ns: The shortest duration that so many percent of them do not exceed.
        share_of_steps: Durations of the slices that begin in a step, as a share of the time of all steps; None without steps.
        frame: Whether it encloses what happens and is none of it: a step, a function of Python, a span of the profiler.
    """

    rank: int
    name: str
    category: str
    count: int
    total_ns: int
    self_ns: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    share_of_steps: float | None
    frame: bool = False

    @property
    def mean_ns(self) -> float:
        """The mean duration."""
        return self.total_ns / self.count


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage of the steps of a rank: see `tracekit.analysis.stages`.

    Attributes:
        name: Its name.
        total_ns: How long it took in all steps together.
        share_of_steps: Of the time of all steps.
    """

    name: str
    total_ns: int
    share_of_steps: float


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps one by one, as columns.

    Attributes:
        numbers: Their numbers.
        durations_ns: How long each took.
        stages_ns: How long each stage took in each of them.
    """

    numbers: list[int] = field(default_factory=list)
    durations_ns: list[int] = field(default_factory=list)
    stages_ns: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadingSummary:
    """Waiting of the training thread for the data loader.

    Attributes:
        count: How often.
        total_ns: How long together.
        longest_ns: How long at most.
        share_of_steps: What lies in steps, as a share of the time of all steps; None without steps.
    """

    count: int
    total_ns: int
    longest_ns: int
    share_of_steps: float | None


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """A device of a rank.

    Attributes:
        name: Of its process in the trace, such as "GPU 0".
        time: How long it did what.
    """

    name: str
    time: DeviceTime


@dataclass(frozen=True, slots=True)
class GapSummary:
    """A time in which nothing is recorded on the training thread, or in which a device has nothing to do.

    Attributes:
        rank: The rank.
        where: Name of the thread or device.
        start_ns: When it began, ns since the epoch as far as the trace tells.
        length_ns: How long it was.
        after: Name of the slice that ended there.
        before: Name of the slice that followed.
        step: In which step it began, None outside of all.
    """

    rank: int
    where: str
    start_ns: int
    length_ns: int
    after: str
    before: str
    step: int | None


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank.

    Attributes:
        rank: Its number.
        span_ns: From its first slice to the end of the last.
        thread: Name of its training thread: that on which stages take most of the time.
        step_durations_ns: Of all steps, in order of time.
        stages: What they consist of, in the order within a step.
        unrecorded_ns: How much of all steps is no stage.
        loading: Waiting for data; None where no such marker was recorded.
        devices: Its devices; none where no torch.profiler recorded them.
        steps: Step by step.
    """

    rank: int
    span_ns: int
    thread: str
    step_durations_ns: list[int]
    stages: list[StageSummary]
    unrecorded_ns: int
    loading: LoadingSummary | None
    devices: list[DeviceSummary]
    steps: StepTable

    @property
    def steps_ns(self) -> int:
        """The time of all steps."""
        return sum(self.step_durations_ns)

    @property
    def step_mean_ns(self) -> float:
        """The mean time of a step; 0 without steps."""
        return self.steps_ns / len(self.step_durations_ns) if self.step_durations_ns else 0.0

    @property
    def stage_means_ns(self) -> dict[str, float]:
        """The mean time of each stage in a step, in the order within a step; empty without steps."""
        return {stage.name: stage.total_ns / len(self.step_durations_ns) for stage in self.stages}


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank whose steps take longest.

    Attributes:
        rank: Which.
        step_mean_ns: The mean time of its steps.
        median_ns: The median of the means of all ranks.
    """

    rank: int
    step_mean_ns: float
    median_ns: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Where the time goes.

    Attributes:
        files: The files that were read, and how many events each holds.
        ranks: By rank.
        markers: By rank, and then by their total time, longest first.
        gaps: The ten longest of all ranks, longest first.
        notes: What the reader should know: what is not counted, and why.
        stragglers: Who holds the others up, from the times of stages: see `find_stragglers`, which tells more.
        incomplete: Whether something that stands in the files could not be read or counted.
    """

    files: list[tuple[str, int]]
    ranks: list[RankSummary]
    markers: list[MarkerSummary]
    gaps: list[GapSummary]
    notes: list[str]
    stragglers: list[Straggler] = field(default_factory=list)
    incomplete: bool = False

    @property
    def timed(self) -> list[RankSummary]:
        """The ranks that tell of steps."""
        return [rank for rank in self.ranks if rank.step_durations_ns]

    def longest_timed(self, most: int) -> list[RankSummary]:
        """Return no more than so many ranks that tell of steps, by rank: of more, those with the longest steps."""
        longest = sorted(self.timed, key=lambda rank: (-rank.step_mean_ns, rank.rank))[:most]
        return sorted(longest, key=lambda rank: rank.rank)

    @property
    def named_markers(self) -> list[MarkerSummary]:
        """The markers that are no frames, those of the longest total time first."""
        named = [marker for marker in self.markers if not marker.frame]
        return sorted(named, key=lambda marker: (-marker.total_ns, marker.rank, marker.name))

    @property
    def slowest(self) -> SlowestRank | None:
        """The rank with the longest steps; None where fewer than two ranks tell of steps.

        Ranks that wait for each other all take the same time: who holds up the others, `stragglers` says.
        """
        timed = self.timed
        if len(timed) < 2:
            return None
        last = max(timed, key=lambda rank: (rank.step_mean_ns, -rank.rank))
        return SlowestRank(last.rank, last.step_mean_ns, median(rank.step_mean_ns for rank in timed))

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        slowest = self.slowest
        return {
            "format_version": 1,
            "files": [{"file": file, "events": events} for file, events in self.files],
            "ranks": [_rank(rank) for rank in self.ranks],
            "slowest_rank": None
            if slowest is None
            else {
                "rank": slowest.rank,
                "step_mean_ns": slowest.step_mean_ns,
                "median_of_ranks_ns": slowest.median_ns,
            },
            "stragglers": [asdict(straggler) for straggler in self.stragglers],
            "markers": [
                {
                    "rank": marker.rank,
                    "name": marker.name,
                    "category": marker.category,
                    "count": marker.count,
                    "total_ns": marker.total_ns,
                    "self_ns": marker.self_ns,
                    "mean_ns": marker.mean_ns,
                    "p50_ns": marker.p50_ns,
                    "p95_ns": marker.p95_ns,
                    "p99_ns": marker.p99_ns,
                    "share_of_steps": marker.share_of_steps,
                    "frame": marker.frame,
                }
                for marker in self.markers
            ],
            "gaps": [
                {
                    "rank": gap.rank,
                    "where": gap.where,
                    "start_ns": gap.start_ns,
                    "length_ns": gap.length_ns,
                    "after": gap.after,
                    "before": gap.before,
                    "step": gap.step,
                }
                for gap in self.gaps
            ],
            "notes": self.notes,
            "incomplete": self.incomplete,
        }


def percentile(values: list[int], percent: int) -> int:
    """Return the least value that at least so many percent of the values do not exceed; 0 of none."""
    return sorted(values)[-(-percent * len(values) // 100) - 1] if values else 0


def _rank(rank: RankSummary) -> dict[str, Any]:
    durations = rank.step_durations_ns
    loading = rank.loading
    return {
        "rank": rank.rank,
        "span_ns": rank.span_ns,
        "training_thread": rank.thread,
        "steps": {
            "count": len(durations),
            "total_ns": rank.steps_ns,
            "mean_ns": rank.step_mean_ns,
            "p50_ns": percentile(durations, 50),
            "p95_ns": percentile(durations, 95),
            "p99_ns": percentile(durations, 99),
            "longest_ns": max(durations, default=0),
        },
        "stages": [
            {"name": stage.name, "total_ns": stage.total_ns, "share_of_steps": stage.share_of_steps}
            for stage in rank.stages
        ],
        "unrecorded_ns": rank.unrecorded_ns,
        "loading": None
        if loading is None
        else {
            "count": loading.count,
            "total_ns": loading.total_ns,
            "longest_ns": loading.longest_ns,
            "share_of_steps": loading.share_of_steps,
        },
        "devices": [
            {
                "name": device.name,
                "span_ns": device.time.span_ns,
                "busy_ns": device.time.busy_ns,
                "idle_ns": device.time.idle_ns,
                "compute_ns": device.time.compute_ns,
                "communication_ns": device.time.communication_ns,
                "communication_hidden_ns": device.time.hidden_ns,
                "memory_ns": device.time.memory_ns,
            }
            for device in rank.devices
        ],
        "step_by_step": {
            "numbers": rank.steps.numbers,
            "durations_ns": rank.steps.durations_ns,
            "stages_ns": rank.steps.stages_ns,
        },
    }
