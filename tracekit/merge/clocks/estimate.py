"""From measurements to what one clock says of another: offset, drift and how far both can be wrong.

Two kinds of measurements: matched collectives, whose ends are one moment on two clocks, give a robust estimate and refuse
where they do not agree; exchanges over the network (`tracekit.clock.ClockOffset`) come with a bound each, so that what is
stated of them is a bound as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from tracekit.merge.clocks.clock_map import ClockMap

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClockEstimate", "SyncPoint", "estimate_from_ends", "estimate_from_sync"]

UNKNOWN_DRIFT_PPB: Final = 50_000
"""How fast two clocks may part where nothing was measured: cheap quartz, 50 ppm."""

MOST_DRIFT: Final = 500e-6
"""No clock that NTP steers is off by more; a line that is steeper is none."""

END_NS: Final = 7_000
"""By how much the members of one collective may end apart each time in the same way: measured with NCCL on 8 GPUs."""

SPREAD_LIMIT_NS: Final = 2_000_000
"""Ends that lie farther apart after the best estimate are not those of the same collectives, or do not synchronise."""

_AGREEING: Final = 0.6
_MANY: Final = 8
_FEW: Final = 6
"""A few ends may all be off to one side: of 6, one time in 30. So the fewer there are, the larger is the error."""

_LINE_SPAN_NS: Final = 1_000_000_000
_LINE_POINTS: Final = 8
_SLOPE_POINTS: Final = 200
_SYNC_POINTS: Final = 300
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """What to add to one clock's times to get another's.

    Attributes:
        map: What to add.
        from_ns, to_ns: When it was measured, on the first clock.
        error_ns: How far it can be off in between.
        wander_ppb: How much more it can be off with every second before or after that, in ns.
        count: From how many measurements it is.
    """

    map: ClockMap
    from_ns: int
    to_ns: int
    error_ns: int
    wander_ppb: int
    count: int

    def error_at(self, time_ns: int) -> int:
        """Return how far the offset can be off at a time."""
        away_ns = max(self.from_ns - time_ns, time_ns - self.to_ns, 0)
        return self.error_ns + -(-self.wander_ppb * away_ns // 1_000_000_000)

    def inverse(self) -> ClockEstimate:
        """Return what the second clock says of the first."""
        start, end = (time + self.map.offset_at(time) for time in (self.from_ns, self.to_ns))
        return ClockEstimate(self.map.inverse(), start, end, self.error_ns, self.wander_ppb, self.count)


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """One measurement: at ``time_ns``, the offset is ``offset_ns`` plus or minus ``error_ns``."""

    time_ns: int
    offset_ns: int
    error_ns: int


def estimate_from_ends(ends: Sequence[tuple[int, int]]) -> ClockEstimate | str:
    """Estimate an offset from moments that two clocks have seen.

    The offset is the median of the differences, or a line through them (Theil-Sen) where they drift: at least 8 of them
    over a second or more, and a line halves what is left. The error is the largest difference that is left of those that
    agree, more where they are few, and what members may end apart by each time.

    Args:
        ends: The same moment on the first clock and on the second, ns; several.

    Returns:
        The estimate, or in words why there is none.
    """
    points = sorted((first, second - first) for first, second in ends)
    times = [time for time, _ in points]
    span_ns = times[-1] - times[0]
    best = ClockMap.constant(_middle([offset for _, offset in points]))
    left = _left(best, points)
    if len(points) >= _LINE_POINTS and span_ns >= _LINE_SPAN_NS:
        line = _line(points)
        if line is not None and 2 * median(_left(line, points)) < median(left):
            best, left = line, _left(line, points)
    limit_ns = max(8 * median(left), END_NS)
    # Of a few, nobody knows which one is wrong.
    agreeing = [point for point, rest in zip(points, left, strict=True) if rest <= limit_ns or len(points) < _MANY]
    if len(agreeing) < _AGREEING * len(points):
        return f"the ends of {len(points)} collectives do not agree"
    spread_ns = max(_left(best, agreeing))
    if spread_ns > SPREAD_LIMIT_NS:
        return f"the ends of {len(points)} collectives lie up to {spread_ns / 1e6:.1f} ms apart"
    error_ns = math.ceil(spread_ns * (1 + _FEW / len(agreeing))) + END_NS
    wander_ppb = min(UNKNOWN_DRIFT_PPB, 2 * error_ns * 1_000_000_000 // max(span_ns, 1))
    return ClockEstimate(best, times[0], times[-1], error_ns, wander_ppb, len(agreeing))


def _left(line: ClockMap, points: Sequence[tuple[int, int]]) -> list[int]:
    return [abs(offset - line.offset_at(time)) for time, offset in points]


def _middle(values: list[int]) -> int:
    """Return the median as an integer: a double does not hold ns since the epoch."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _line(points: Sequence[tuple[int, int]]) -> ClockMap | None:
    """Return the line whose slope is the median of those between any two points; None where it is absurdly steep."""
    some = _thinned(points, _SLOPE_POINTS)
    slopes = [
        (later - offset) / (then - time)
        for number, (time, offset) in enumerate(some)
        for then, later in some[number + 1 :]
        if then > time
    ]
    slope = median(slopes)
    if abs(slope) > MOST_DRIFT:
        return None
    start, end = points[0][0], points[-1][0]
    at_start = _middle([offset - round(slope * (time - start)) for time, offset in points])
    return ClockMap(((start, at_start), (end, at_start + round(slope * (end - start)))))


def _thinned(points: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    if len(points) <= most:
        return points
    return [points[number * (len(points) - 1) // (most - 1)] for number in range(most)]


def estimate_from_sync(measured: Sequence[SyncPoint]) -> ClockEstimate:
    """Estimate an offset from measurements that are bounded each.

    Taken is the simplest of a constant, a line, and a line from each of the good points to the next that no measurement
    contradicts. Its error at the time of a measurement is the distance to that one's offset and that one's own error;
    between two measurements the drift is taken to be even.

    Args:
        measured: At least one measurement.
    """
    points = _best_of_each_stretch(sorted(measured, key=lambda point: (point.time_ns, point.error_ns, point.offset_ns)))
    start, end = points[0].time_ns, points[-1].time_ns
    slope, slope_error = _rate(points)
    wander_ppb = math.ceil(min(UNKNOWN_DRIFT_PPB, slope_error * 1e9))
    best = _through(points, 0.0) or _through(points, _widest(points, slope, slope_error))
    if best is None:
        least = min(point.error_ns for point in points)
        best = ClockMap(tuple((p.time_ns, p.offset_ns) for p in points if p.error_ns <= 4 * least))
        wander_ppb = UNKNOWN_DRIFT_PPB
    jump_ns = max((_jump(*pair) for pair in pairwise(best.knots)), default=0)
    # Every measurement bounds the error everywhere, the less the farther it is.
    errors = [abs(point.offset_ns - best.offset_at(point.time_ns)) + point.error_ns for point in points]
    error_ns = max(
        min(
            error - (-wander_ppb * abs(at.time_ns - point.time_ns) // 1_000_000_000)
            for point, error in zip(points, errors, strict=True)
        )
        for at in points
    )
    return ClockEstimate(best, start, end, error_ns + jump_ns, wander_ppb, len(measured))


def _jump(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Return what drift cannot explain: one of the machines slept, and nothing tells when in between."""
    beyond = abs(second[1] - first[1]) - MOST_DRIFT * (second[0] - first[0])
    return max(0, math.ceil(beyond))


def _best_of_each_stretch(points: list[SyncPoint]) -> list[SyncPoint]:
    """Keep a few hundred measurements, those with the least error; one of each time."""
    size = -(-len(points) // _SYNC_POINTS)
    kept = [min(points[at : at + size], key=lambda point: point.error_ns) for at in range(0, len(points), size)]
    return list({point.time_ns: point for point in reversed(kept)}.values())[::-1]


def _rate(points: list[SyncPoint]) -> tuple[float, float]:
    """Return the drift that two measurements bound best, and its bound; both in ns per ns."""
    best = (0.0, float("inf"))
    for number, first in enumerate(points):
        for last in points[number + 1 :]:
            span_ns = last.time_ns - first.time_ns
            error = (first.error_ns + last.error_ns) / span_ns
            if error < best[1]:
                best = (last.offset_ns - first.offset_ns) / span_ns, error
    return best


def _widest(points: list[SyncPoint], slope: float, slope_error: float) -> float:
    """Return the slope that leaves most room for a line that no measurement contradicts."""
    if math.isinf(slope_error):
        return 0.0
    # The room is a concave function of the slope: what is lowest minus what is highest.
    low, high = slope - slope_error, slope + slope_error
    for _ in range(_HALVINGS):
        third = (high - low) / 3
        if _room(points, low + third) < _room(points, high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _room(points: list[SyncPoint], slope: float) -> int:
    lowest, highest = _band(points, slope)
    return highest - lowest


def _band(points: list[SyncPoint], slope: float) -> tuple[int, int]:
    """Return between what a line of this slope may begin."""
    start = points[0].time_ns
    rises = [round(slope * (point.time_ns - start)) for point in points]
    lowest = max(point.offset_ns - point.error_ns - rise for point, rise in zip(points, rises, strict=True))
    highest = min(point.offset_ns + point.error_ns - rise for point, rise in zip(points, rises, strict=True))
    return lowest, highest


def _through(points: list[SyncPoint], slope: float) -> ClockMap | None:
    """Return the line of this slope in the middle of what all measurements allow; None where they allow none."""
    start, end = points[0].time_ns, points[-1].time_ns
    low, high = _band(points, slope)
    if low > high:
        return None
    at_start = (low + high) // 2
    if not slope or start == end:
        return ClockMap.constant(at_start)
    return ClockMap(((start, at_start), (end, at_start + round(slope * (end - start)))))
