"""What places a rank on the merged timeline, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.merge.clocks.graph import ClockPath, Evidence
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.formats.rank_clock import RankClock

__all__ = ["by_path", "by_wall", "duration", "worse"]

_WORST_LAST = ("reference", "shared", "earlier_merge", "sync", "collectives", "by_hand", "wall", "none", "unknown")


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
