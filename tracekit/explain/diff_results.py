"""Changes between runs, as values; `TraceDiff.as_dict` is the JSON form (``schemas/diff.schema.json``)."""

from __future__ import annotations

from typing import Final

from tracekit.explain.results import Result

STEP: Final = "(step)"  # how whole steps are called among the markers


class Change(Result, frozen=True, kw_only=True):
    """A marker that both sides have.

    Attributes:
        before_ns, after_ns: Its mean time on each side, in a step that has it, on a rank that has it; without steps, of a slice.
        self_change_ns: Mean change of its time outside of inner slices: separates a cause from markers that only enclose it.
    """

    name: str  # its name; "(step)" for whole steps
    category: str  # its category
    before_ns: float
    after_ns: float
    self_change_ns: float
    count_before: float  # number of slices in a step; 1 without steps
    count_after: float  # number of slices in a step; 1 without steps
    ratio: float  # ``after_ns`` to ``before_ns``
    low: float  # limits of the true ratio, at the confidence asked for and for all markers together
    high: float  # limits of the true ratio, at the confidence asked for and for all markers together
    chance: float  # probability that any marker of equal runs would differ as much by chance
    share_of_step: float | None  # change of the mean step, as a share of the step before; null without steps
    lower_99: float  # lower 99 % limit of the true ratio of this marker alone
    resolution: float  # least slow-down of this marker alone that would be certain at 99 %, as a share
    waiting: bool  # true if the change is waiting for ranks that come late: a consequence, not a cause

    def is_slower_by(self, share: float) -> bool:
        """Return True if it is slower by more than a share, and slower at all with 99 % confidence."""
        return self.lower_99 > 1 and self.ratio - 1 > share


class Cause(Result, frozen=True, kw_only=True):
    """A stage that made the step longer or shorter, where ranks wait for each other."""

    stage: str  # its name
    change_ns: float  # change of the time that it adds to the step of all ranks; waiting adds nothing
    low_ns: float  # limits of the true change, at the confidence asked for and for all markers and stages together
    high_ns: float  # limits of the true change, at the confidence asked for and for all markers and stages together
    share_of_step: float  # the change as a share of the step before
    ranks: list[int]  # the ranks on which the stage itself has changed: where not all, those that come late
    of_ranks: int  # the number of ranks of the later run
    chance: float  # probability that any stage of equal runs would change as much by chance


class Presence(Result, frozen=True, kw_only=True):
    """A marker that only one side has."""

    name: str  # its name
    category: str  # its category
    count: int  # the number of slices
    total_ns: int  # the sum of their durations
    each_ns: float  # the same for a step; without steps, for a slice


class DiffSide(Result, frozen=True, kw_only=True):
    """One side of the comparison.

    Attributes:
        steps: The number of steps of each rank; 0 if single slices were compared. Of several earlier runs, the fewest.
    """

    files: list[str]  # the files that were read
    ranks: list[int]  # the ranks that were compared
    steps: int


class TraceDiff(Result, frozen=True, kw_only=True):
    """Changes from the earlier runs to the later one. All times are nanoseconds.

    Attributes:
        before, after: The earlier runs, and the later one.
        baselines: Number of earlier runs. With one, the limits do not hold the variation from run to run.
        step: Whole steps; null with fewer than five.
        causes: The stages that made the step longer or shorter, the largest change first; empty where nothing shows that ranks
            wait for each other.
        slower: Markers that became slower: whole steps, causes, others by their cost, and last those that only wait.
        faster: Markers that became faster.
        unchanged: The others that were compared.
        new: Markers that only the later run has.
        vanished: Markers that only the earlier runs have.
        notes: Gaps of the comparison, and their reasons.
    """

    format_version: int = 3
    before: DiffSide
    after: DiffSide
    baselines: int
    step: Change | None
    causes: list[Cause]
    slower: list[Change]
    faster: list[Change]
    unchanged: list[Change]
    new: list[Presence]
    vanished: list[Presence]
    notes: list[str]

    @property
    def compared(self) -> int:
        """Number of markers that were compared, whole steps among them."""
        return len(self.slower) + len(self.faster) + len(self.unchanged)

    def named(self, name: str) -> list[Change]:
        """Return the compared markers of this name, of any category."""
        return [change for change in (*self.slower, *self.faster, *self.unchanged) if change.name == name]

    def slower_by(self, share: float) -> list[Change]:
        """Return the markers that became slower by more than a share: 0.05 for 5 %."""
        return [change for change in self.slower if change.ratio - 1 > share]
