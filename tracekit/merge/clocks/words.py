"""What places a rank on the merged timeline, as a value for the report and in words for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tracekit.merge.clocks.graph import ClockPath, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RankClock", "by_path", "by_wall", "counted", "duration", "rank_spans", "stated", "worse"]

_WORST_LAST = ("reference", "shared", "earlier_merge", "sync", "collectives", "by_hand", "wall", "none", "unknown")


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


def by_path(path: ClockPath, offset_ns: int, drift_ppm: float, error_ns: int) -> tuple[str, str]:
    """Return source and words of a clock that links tie to the reference."""
    worst = max(link.evidence for link in path.links)
    count = min((link.estimate.count for link in path.links if link.evidence is worst), default=0)
    source, evidence = {
        Evidence.EARLIER_MERGE: ("earlier_merge", "as an earlier merge placed that clock"),
        Evidence.SYNC: ("sync", f"from {counted(count, 'clock exchange')}"),
        Evidence.COLLECTIVES: ("collectives", f"from the ends of {counted(count, 'collective')}"),
    }[worst]
    if worst is Evidence.COLLECTIVES and not offset_ns:
        return source, f"wall clock, within {duration(error_ns)} by the ends of {counted(count, 'collective')}"
    drift = f", drift {drift_ppm:+.3f} ppm" if drift_ppm else ""
    through = f", through {counted(len(path.links) - 1, 'other clock')}" if len(path.links) > 1 else ""
    return source, f"{duration(offset_ns, sign=True)} ± {duration(error_ns)}{drift}, {evidence}{through}"


def by_wall(relation: str, *, several: bool, hosts_known: bool) -> str:
    """Return the words of a clock that goes by the wall clock."""
    if several:
        relation = "different hosts: error unknown" if hosts_known else "host unknown"
    return f"wall clock; {relation or 'host unknown'}"


def stated(value: Any) -> RankClock | None:
    """Read a clock that a merged trace states; None where it cannot be read."""
    try:
        clock = RankClock(**value)
        numbers = (clock.rank, clock.offset_ns, 0 if clock.error_ns is None else clock.error_ns)
        if (
            not all(type(number) is int and abs(number) < 2**62 for number in numbers)
            or type(clock.aligned) is not bool
        ):
            return None
        return replace(clock, drift_ppm=float(clock.drift_ppm), words=str(clock.words), source=str(clock.source))
    except (TypeError, ValueError):
        return None


def worse(first: RankClock | None, second: RankClock) -> RankClock:
    """Return of two clocks of one rank the less certain one, which its reader must know about; else the first."""
    if first is None:
        return second
    return max(first, second, key=_uncertainty)


def _uncertainty(clock: RankClock) -> tuple[bool, int, int]:
    place = _WORST_LAST.index(clock.source) if clock.source in _WORST_LAST else len(_WORST_LAST)
    return not clock.aligned, place, clock.error_ns or 0


def duration(ns: int, *, sign: bool = False) -> str:
    """Return a time as people write it: "+137.000 ms"."""
    text = f"{ns:+d} ns" if sign else f"{ns} ns"
    for unit, size, decimals in (("µs", 1_000, 3), ("ms", 1_000_000, 3), ("s", 1_000_000_000, 6)):
        if abs(ns) >= size:
            text = f"{ns / size:+.{decimals}f} {unit}" if sign else f"{ns / size:.1f} {unit}"
    return text


def rank_spans(ranks: Iterable[int]) -> str:
    """Return "rank 3", "ranks 0-7" or "ranks 0-2, 5"."""
    spans: list[list[int]] = []
    ordered = sorted(set(ranks))
    for rank in ordered:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {words}"


def counted(number: int, noun: str) -> str:
    """Return "1 rank" or "1,000 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
