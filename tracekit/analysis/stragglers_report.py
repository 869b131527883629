"""Who holds whom up, as values; `StragglerReport.as_dict` is the JSON form (``schemas/stragglers.schema.json``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CollectiveReport", "Member", "StageReport", "Straggler", "StragglerReport"]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that holds the others up.

    Attributes:
        rank: Which.
        stage: The stage in which it falls behind; "before collectives" where only collectives tell.
        source: What tells: "stages" (times of stages) or "collectives" (kernels and calls of all members).
        mean_ns: By how much more than the other ranks it falls behind the median rank, in a step on average; by collectives,
            by how much it comes later than the median member, at each on average.
        median_ns: The same in the median step, or at the median collective.
        share_of_step: The mean as a share of a step.
        late: In how many steps it fell behind most, or at how many collectives it came last.
        of: Of how many.
        sure: How likely it is that this is none of chance, 0 to 1.
        look_at: Numbers of the steps in which it was worst.
    """

    rank: int
    stage: str
    source: str
    mean_ns: float
    median_ns: float
    share_of_step: float
    late: int
    of: int
    sure: float
    look_at: list[int]


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a stage costs the run.

    Attributes:
        name: Its name.
        exposed_ns: By how much it moves the frontier, that is makes the step longer for all, on average.
        median_ns: How long it takes on the median rank, waiting included.
        led: In how many steps each rank had used most time at its end.
    """

    name: str
    exposed_ns: float
    median_ns: float
    led: dict[int, int]


@dataclass(frozen=True, slots=True)
class Member:
    """A rank in the collectives.

    Attributes:
        rank: Which.
        count: In how many it was.
        wait_ns: How long it waited in all of them for the last to come.
        transfer_ns: How long they took when all had come.
        last: How often it came last.
        mean_late_ns: By how much it came later than the median member, on average; negative: earlier.
    """

    rank: int
    count: int
    wait_ns: int
    transfer_ns: int
    last: int
    mean_late_ns: float


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """The collectives that were found in the traces of two members or more.

    Attributes:
        count: How many.
        spread_median_ns, spread_longest_ns: How far apart the first and the last member came.
        members: By rank.
    """

    count: int
    spread_median_ns: int
    spread_longest_ns: int
    members: list[Member]


@dataclass(frozen=True, slots=True)
class StragglerReport:
    """Who holds the others up.

    Attributes:
        files: What was read.
        ranks: Whose stages were compared.
        steps: In how many steps.
        step_ns: How long a step is at the frontier, on average.
        together_after: The stage at whose end the ranks are at one moment, since they wait for each other there.
        stages: What each costs, in order from that moment on.
        collectives: Waiting in collectives; None where the traces hold none of two ranks.
        stragglers: Those that are named, the largest delay first; empty when no rank holds the others up.
        notes: What could not be compared, and why.
    """

    files: list[str]
    ranks: list[int]
    steps: int
    step_ns: float
    together_after: str | None
    stages: list[StageReport]
    collectives: CollectiveReport | None
    stragglers: list[Straggler]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        document = {"format_version": 1, **asdict(self)}
        for stage in document["stages"]:
            stage["led"] = {str(rank): count for rank, count in stage["led"].items()}
        return document
