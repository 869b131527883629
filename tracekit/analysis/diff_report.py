"""What changed between two runs, as values; `TraceDiff.as_dict` is the JSON form (``schemas/diff.schema.json``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

__all__ = ["STEP", "Change", "Presence", "TraceDiff"]

STEP: Final = "(step)"
"""How whole steps are called among the markers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A marker that both sides have.

    Attributes:
        name: Its name; "(step)" for whole steps.
        category: Its category.
        before_ns, after_ns: What it typically takes in a step on each side, on a rank that has it; without steps, a slice of
            it. It is the mean of the medians of blocks of neighbours, of which `ratio` is made.
        self_change_ns: By how much the part changed that no slice inside of it covers, on average: it tells a cause from what
            only encloses it.
        count_before, count_after: How many slices a step holds; 1 without steps.
        ratio: ``after_ns`` to ``before_ns``.
        low, high: Between these the true ratio lies with 95 % probability.
        chance: How likely any of all markers would differ as much by chance.
    """

    name: str
    category: str
    before_ns: float
    after_ns: float
    self_change_ns: float
    count_before: float
    count_after: float
    ratio: float
    low: float
    high: float
    chance: float

    def adjusted(self, tests: int) -> Change:
        """Return the change with the chance that any of so many markers would differ as much."""
        return replace(self, chance=min(1.0, self.chance * tests))


@dataclass(frozen=True, slots=True)
class Presence:
    """A marker that only one side has.

    Attributes:
        name: Its name.
        category: Its category.
        count: How many slices.
        total_ns: Their durations together.
        each_ns: The same for a step; without steps, for a slice.
    """

    name: str
    category: str
    count: int
    total_ns: int
    each_ns: float


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """What changed from the first side to the second.

    Attributes:
        files: What was read, of each side.
        ranks: Which ranks were compared, of each side.
        steps: How many steps of each rank; 0 where single slices were compared.
        step: Whole steps; None where there are none, or too few.
        slower: Markers that became slower, whole steps first, then those that cost most.
        faster: Markers that became faster.
        unchanged: How many others were compared.
        new: Markers that only the second side has.
        vanished: Markers that only the first side has.
        notes: What could not be compared, and why.
    """

    files: tuple[list[str], list[str]]
    ranks: tuple[list[int], list[int]]
    steps: tuple[int, int]
    step: Change | None
    slower: list[Change]
    faster: list[Change]
    unchanged: int
    new: list[Presence]
    vanished: list[Presence]
    notes: list[str]

    @property
    def compared(self) -> int:
        """How many markers were compared, whole steps among them."""
        return len(self.slower) + len(self.faster) + self.unchanged

    def slower_by(self, share: float) -> list[Change]:
        """Return what became slower by more than a share: 0.05 for 5 %."""
        return [change for change in self.slower if change.ratio - 1 > share]

    def as_dict(self) -> dict[str, Any]:
        """Return the difference for JSON."""
        document = {"format_version": 1, **asdict(self)}
        for key in ("files", "ranks", "steps"):
            document[key] = dict(zip(("before", "after"), document[key], strict=True))
        return document
