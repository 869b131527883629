"""The clock of a rank, as a merged trace states it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["RankClock", "stated_clock", "stated_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """The clock of a rank.

    Attributes:
        rank: Whose.
        source: What places it: "reference" (its clock is the merged trace's), "shared" (it is the reference's own clock: same
            host and boot), "sync", "collectives", "earlier_merge", "by_hand", "wall", "none" or "unknown".
        aligned: Whether it is on the reference's clock as far as anybody asked for that.
        offset_ns: What was added to its times, at its first event.
        drift_ppm: By how many µs a second that grows.
        error_ns: How far it can be off, anywhere in its traces; None when that is not known.
        words: The same for people.
    """

    rank: int
    source: str
    aligned: bool
    offset_ns: int = 0
    drift_ppm: float = 0.0
    error_ns: int | None = None
    words: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the clock as JSON-ready values."""
        return asdict(self)


def stated_clock(value: Any) -> RankClock | None:
    """Read a clock that a merged trace states; None where it cannot be read."""
    try:
        clock = RankClock(**value)
        numbers = (clock.rank, clock.offset_ns, 0 if clock.error_ns is None else clock.error_ns)
        if (
            not all(type(number) is int and abs(number) < 2**62 for number in numbers)
            or type(clock.aligned) is not bool
            or (clock.error_ns or 0) < 0
            or not math.isfinite(drift_ppm := float(clock.drift_ppm))
        ):
            return None
        return replace(clock, drift_ppm=drift_ppm, words=str(clock.words), source=str(clock.source))
    except (OverflowError, TypeError, ValueError):
        return None


def stated_ranks(header: dict[str, Any]) -> list[RankClock]:
    """Return what a merged trace states of its ranks' clocks, as far as it can be read."""
    clocks = header.get("tracekit", {}).get("clocks")
    found = clocks.get("ranks") if isinstance(clocks, dict) else None
    return [clock for clock in map(stated_clock, found) if clock is not None] if isinstance(found, list) else []
