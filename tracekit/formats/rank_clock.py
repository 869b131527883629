"""RankClock: the clock of a rank in a merged trace, and the event that shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import Raw, encode_json

CLOCK_CATEGORY: Final = "clock"
_SHOWN: Final = {"source": "method", "words": "description"}  # in the arguments of the event


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """The clock of a rank.

    Attributes:
        source: The method of its alignment: "reference" (the merged trace uses its clock), "shared" (it has the clock
            of the reference: same host and boot), "sync", "collectives", "earlier_merge", "by_hand", "wall", "none" or
            "unknown".
        aligned: True if its times are on the clock of the reference, or if no alignment was requested.
        offset_ns: Offset added to its times, at its first event.
        drift_ppm: Growth of the offset in µs per second.
        error_ns: Maximum error anywhere in its traces, or None if unknown.
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
        return {name: getattr(self, name) for name in self.__slots__}


def stated_clock(value: Any) -> RankClock | None:
    """Return a clock from the header of a merged trace, or None if it is invalid."""
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
    """Return the valid clocks of ranks in the header of a merged trace."""
    clocks = header.get("tracekit", {}).get("clocks")
    found = clocks.get("ranks") if isinstance(clocks, dict) else None
    return [clock for clock in map(stated_clock, found) if clock is not None] if isinstance(found, list) else []


def clock_instant(clock: RankClock, pid: int, tid: int | Raw, time_ns: int) -> dict[str, Any]:
    """Return an instant that shows the clock in a row of its process, at a time of the merged trace. JSON-ready."""
    args = {_SHOWN.get(name, name): value for name, value in clock.to_json().items()}
    args["error_ns"] = "unknown" if clock.error_ns is None else clock.error_ns
    # Use few different names for thousands of ranks.
    name = f"clock: {clock.source}" if clock.aligned else "clock: NOT ALIGNED"
    place = {"pid": pid, "tid": tid, "ts": Raw(format_us(time_ns))}
    # An async instant has a separate row; an instant of the process has a row with the name of the process.
    # The id has the same spaces as in the output of a merge, so that another merge does not change it.
    own = Raw(b'{"local": %b}' % encode_json(CLOCK_CATEGORY))
    return {"ph": "n", "cat": CLOCK_CATEGORY, "name": name, **place, "id2": own, "args": args}
