"""Slow ranks and long steps, as values; `StragglerReport.as_dict` is the JSON form (``schemas/stragglers.schema.json``)."""

from __future__ import annotations

from tracekit.explain.results import Result


class Straggler(Result, frozen=True, kw_only=True):
    """A rank that is slower than the others.

    Attributes:
        stage: The slow stage; "before collectives" if only collectives show it; None where no single
            stage accounts for it with confidence.
        mean_ns: Mean time in a step beyond the median of the other ranks; by collectives, mean delay behind the median of the
            other members.
    """

    rank: int  # the rank
    stage: str | None
    source: str  # the evidence: "stages" (times of stages) or "collectives" (kernels and calls of all members)
    mean_ns: float
    low_ns: float  # limits of the true mean, at the confidence asked for and for all ranks and stages together
    high_ns: float  # limits of the true mean, at the confidence asked for and for all ranks and stages together
    median_ns: float  # the same as the mean, in the median step or at the median collective
    share_of_step: float  # the mean as a share of a step
    late: int  # number of steps where it took longest, or of collectives where it came last
    of: int  # number of steps or collectives
    sure: float  # 1 minus the probability that any of equal ranks would be as slow by chance
    others_wait: bool  # true if the traces show that the other ranks wait for it
    look_at: list[int]  # numbers of its slowest steps


class StepOutlier(Result, frozen=True, kw_only=True):
    """Steps that one rank, or all ranks together, made longer than usual in one stage."""

    rank: int | None  # the rank that came late; None if all ranks took longer
    stage: str  # the long stage
    steps: list[int]  # numbers of the steps
    late_ns: float  # excess time of the stage, in the median of these steps
    cost_ns: float  # sum of the excess times of these steps
    share_of_run: float  # the cost as a share of all compared steps
    is_recurrent: bool  # true if the rank has more of them than chance gives to one of equal ranks


class Sensitivity(Result, frozen=True, kw_only=True):
    """The differences between ranks that a comparison can show.

    Attributes:
        steps_needed: Number of steps that would show a rank slower by 5 % of a step; None if the limit is below.
        noise: Standard deviation of each rank's time compared with the other ranks, as a share of a step.
    """

    limit_share: float  # no unnamed rank is slower by more than this share of a step, at the confidence asked for
    ess: float  # effective sample size: the number of independent steps with the information of the steps compared
    steps_needed: int | None
    noise: dict[int, float]


class StageReport(Result, frozen=True, kw_only=True):
    """Cost of a stage for the run."""

    name: str  # its name
    exposed_ns: float  # mean growth of the frontier in the stage: the time that it adds to the step of all ranks
    median_ns: float  # its time on the median rank, waiting included
    led: dict[int, int]  # the number of steps that each rank led at its end: it had used most time


class Member(Result, frozen=True, kw_only=True):
    """A rank in the collectives."""

    rank: int  # the rank
    count: int  # the number of collectives with it
    wait_ns: int  # time that it waited for the last member, in all of them
    transfer_ns: int  # their time after the last member came
    last: int  # number of collectives where it came last
    mean_late_ns: float  # by how much it came later than the median member, on average; negative: earlier


class CollectiveReport(Result, frozen=True, kw_only=True):
    """The collectives that were found in the traces of two members or more."""

    count: int  # their number
    spread_median_ns: int  # time between the first and the last member
    spread_longest_ns: int  # time between the first and the last member
    members: list[Member]  # by rank


class StragglerReport(Result, frozen=True, kw_only=True):
    """Slow ranks and long steps of a run.

    Attributes:
        files: The files that were read.
        ranks: The ranks that were compared.
        steps: Number of steps compared.
        step_ns: Mean time of a step at the frontier.
        together_after: The stage that synchronizes the ranks; the last stage of a step if they do not wait.
        stages: The cost of each stage, in order from that moment on.
        collectives: Waiting in collectives; None where the traces hold none of two ranks.
        warm_up: Numbers of the steps that are warm-up and not compared.
        stragglers: The ranks that are slower, the largest delay first.
        outliers: Steps that took longer than usual, those that cost most first.
        sensitivity: The differences that the comparison of steps can show; None where steps could not be compared.
        others_wait: True if the traces show that ranks wait for each other.
        notes: Gaps of the comparison, and their reasons.
    """

    format_version: int = 1
    files: list[str]
    ranks: list[int]
    steps: int
    step_ns: float
    together_after: str | None
    stages: list[StageReport]
    collectives: CollectiveReport | None
    warm_up: list[int]
    stragglers: list[Straggler]
    outliers: list[StepOutlier]
    sensitivity: Sensitivity | None
    others_wait: bool
    notes: list[str]

    @property
    def blames(self) -> bool:
        """Return True if a rank is slower than the others, always or again and again."""
        return bool(self.stragglers) or any(outlier.is_recurrent for outlier in self.outliers)
