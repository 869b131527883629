"""Estimate offset, drift and error between two clocks from measurements, in exact integer arithmetic.

There are two kinds of measurements. The ends of a matched collective are one moment on two clocks. They give a robust
estimate, and a refusal if they disagree. Exchanges over the network (`tracekit.clock.ClockOffset`), and the rule that no
member leaves a collective before all have come, bound the offset, so the stated error is a bound too.
"""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from tracekit.merge.align.domains import ClockEstimate, ClockMap

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN_DRIFT_PPB: Final = 200_000
"""How fast two clocks may part where nothing was measured: each may be off by 100 ppm, in opposite directions."""

MOST_DRIFT: Final = 500e-6  # no clock that NTP steers is off by more; a line that is steeper is none

END_NS: Final = 7_000
"""By how much the members of one collective may end apart each time in the same way: measured with NCCL on 8 GPUs."""

CPU_END_NS: Final = 600_000  # the same of collectives of the CPU: measured with gloo on 2 ranks of one host

SPREAD_LIMIT_NS: Final = 2_000_000
"""Ends that lie farther apart after the best estimate are not those of the same collectives, or do not synchronise."""

_AGREEING: Final = 0.6
MANY: Final = 8
_MIN_TRIMMED: Final = 16
"""Of fewer ends than this, those that disagree count in the error: any of them may be the right ones."""
_FEW: Final = 12
"""A few ends may all be off to one side. So the fewer there are, the larger is the error; a line adds a second unknown."""

_LINE_SPAN_NS: Final = 1_000_000_000
_LINE_POINTS: Final = 8
_SLOPE_POINTS: Final = 200
_SYNC_POINTS: Final = 300
_HALVINGS: Final = 60


class SyncPoint(NamedTuple):
    """One measurement: at ``time_ns``, the offset is ``offset_ns`` plus or minus ``error_ns``."""

    time_ns: int
    offset_ns: int
    error_ns: int


def estimate_from_ends(ends: Sequence[tuple[int, int]], end_ns: int = END_NS) -> ClockEstimate | str:
    """Estimate an offset from moments on two clocks that may differ by ``end_ns`` each time. Return a reason to refuse it.

    The offset is the median of the differences, or a line through them (Theil-Sen) where they drift: at least 8 of them
    over a second or more, and a line halves what is left. The error is the largest difference that is left of those that
    agree, more where they are few, and what members may end apart by each time.
    """
    points = sorted((first, second - first) for first, second in ends)
    times = [time for time, _ in points]
    span_ns = times[-1] - times[0]
    best = ClockMap.constant(_middle([offset for _, offset in points]))
    left = list(map(abs, _rests(best, points)))
    if len(points) >= _LINE_POINTS and span_ns >= _LINE_SPAN_NS:
        line = _line(points)
        left_of_line = [] if line is None else list(map(abs, _rests(line, points)))
        if line is not None and 2 * _middle(left_of_line) < _middle(left):
            best, left = line, left_of_line
    limit_ns = max(8 * _middle(left), 3 * END_NS)
    trims = len(points) >= _MIN_TRIMMED
    agreeing = [point for point, rest in zip(points, left, strict=True) if rest <= limit_ns or not trims]
    if len(agreeing) < _AGREEING * len(points):
        return f"the ends of {len(points)} collectives do not agree"
    spread_ns = max(map(abs, _rests(best, agreeing)))
    if spread_ns > SPREAD_LIMIT_NS:
        return f"the ends of {len(points)} collectives lie up to {spread_ns / 1e6:.1f} ms apart"
    unknowns = 1 if best.is_constant else 2
    error_ns = math.ceil(spread_ns * (1 + unknowns * _FEW / len(agreeing))) + end_ns
    unknown_ppb = UNKNOWN_DRIFT_PPB + math.ceil(abs(best.drift_ppm()) * 1000)
    wander_ppb = min(unknown_ppb, 2 * error_ns * 1_000_000_000 // max(span_ns, 1))
    return ClockEstimate(best, times[0], times[-1], error_ns, wander_ppb, len(agreeing))


def estimate_from_stays(
    stays: Sequence[tuple[tuple[int, int], tuple[int, int]]], offset_ns: int | None = None
) -> ClockEstimate | str:
    """Bound an offset by when two members came to each collective and left it: none leaves before both have come.

    The bound is true however late a member leaves, and as wide as the stays are long. ``offset_ns`` is the offset to state
    where the bounds allow it. Return a reason to refuse the estimate.
    """
    points = []
    for (start, end), (other_start, other_end) in stays:
        low, high = other_start - end, other_end - start
        drift_ns = -(-UNKNOWN_DRIFT_PPB * (end - start) // 1_000_000_000)
        points.append(SyncPoint((start + end) // 2, (low + high) // 2, (high - low + 1) // 2 + drift_ns))
    points.sort(key=lambda point: point.time_ns)
    above = _reach(points, [point.error_ns + point.offset_ns for point in points], UNKNOWN_DRIFT_PPB)
    below = _reach(points, [point.error_ns - point.offset_ns for point in points], UNKNOWN_DRIFT_PPB)
    if any(high + low < 0 for high, low in zip(above, below, strict=True)):
        return f"the {len(points)} collectives that could be the same contradict each other"
    return estimate_from_sync(points, offset_ns)


def _rests(line: ClockMap, points: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the distance of the offset of each point above a line."""
    return [offset - line.offset_at(time) for time, offset, *_ in points]


def _middle(values: list[int]) -> int:
    """Return the median as an integer: a double does not hold ns since the epoch."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _line(points: Sequence[tuple[int, int]]) -> ClockMap | None:
    """Return the line with the median slope of all pairs of points, or None if it is too steep."""
    most, last = _SLOPE_POINTS, len(points) - 1
    some = points if last < most else [points[number * last // (most - 1)] for number in range(most)]
    pairs = combinations(some, 2)
    slopes = sorted((later - offset) / (then - time) for (time, offset), (then, later) in pairs if then > time)
    slope = (slopes[(len(slopes) - 1) // 2] + slopes[len(slopes) // 2]) / 2
    if abs(slope) > MOST_DRIFT:
        return None
    start, end = points[0][0], points[-1][0]
    at_start = _middle([offset - round(slope * (time - start)) for time, offset in points])
    return ClockMap(((start, at_start), (end, at_start + round(slope * (end - start)))))


def estimate_from_sync(measured: Sequence[SyncPoint], offset_ns: int | None = None) -> ClockEstimate:
    """Estimate an offset from measurements that are bounded each.

    Taken is the simplest of a constant, a line, and a line from each of the good points to the next that no measurement
    contradicts. Its error at the time of a measurement is the distance to that one's offset and that one's own error;
    between two measurements the drift is taken to be even. The constant is ``offset_ns`` where no measurement contradicts it.
    """
    points = _best_of_each_stretch(sorted(measured, key=lambda point: (point.time_ns, point.error_ns, point.offset_ns)))
    start, end = points[0].time_ns, points[-1].time_ns
    slope, slope_error = _rate(points)
    best = _through(points, 0.0, offset_ns) or _through(points, _widest(points, slope, slope_error))
    if best is None:
        least = min(point.error_ns for point in points)
        best = ClockMap(tuple((p.time_ns, p.offset_ns) for p in points if p.error_ns <= 4 * least))
        above = below = list(map(abs, _rests(best, points)))
        slope_error = math.inf
    else:
        above = _rests(best, points)
        below = [-rest for rest in above]
    rate = best.drift_ppm() / 1e6
    # The true drift lies within the error of the measured one, on either side of the map's.
    wander_ppb = math.ceil(min(UNKNOWN_DRIFT_PPB + abs(rate) * 1e9, (slope_error + abs(rate - slope)) * 1e9))
    # Drift cannot explain a jump: one of the machines slept.
    jumps = (
        abs(offset - before) - MOST_DRIFT * (time - then) for (then, before), (time, offset) in pairwise(best.knots)
    )
    jump_ns = max(0, math.ceil(max(jumps, default=0)))
    # Every measurement bounds the offset everywhere, above and below, the less the farther it is.
    error_ns = max(
        max(_reach(points, [rest + point.error_ns for rest, point in zip(side, points, strict=True)], wander_ppb))
        for side in (above, below)
    )
    return ClockEstimate(best, start, end, error_ns + jump_ns, wander_ppb, len(measured))


def _reach(points: list[SyncPoint], bounds_ns: list[int], wander_ppb: int) -> list[int]:
    """Return how far the offset can lie from the map on one side at each point, by the bounds of all points."""
    found = list(bounds_ns)
    for order in (range(1, len(points)), range(len(points) - 2, -1, -1)):
        for at in order:
            before = at - order.step
            gap_ns = abs(points[at].time_ns - points[before].time_ns)
            found[at] = min(found[at], found[before] - (-wander_ppb * gap_ns // 1_000_000_000))
    return found


def _best_of_each_stretch(points: list[SyncPoint]) -> list[SyncPoint]:
    """Keep a few hundred measurements, those with the least error; one of each time."""
    size = -(-len(points) // _SYNC_POINTS)
    kept = [min(points[at : at + size], key=lambda point: point.error_ns) for at in range(0, len(points), size)]
    return list({point.time_ns: point for point in reversed(kept)}.values())[::-1]


def _rate(points: list[SyncPoint]) -> tuple[float, float]:
    """Return the drift that two measurements bound best, and its bound; both in ns per ns."""
    best = (0.0, math.inf)
    for first, last in combinations(points, 2):
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
        (lowest, highest), (others_lowest, others_highest) = _band(points, low + third), _band(points, high - third)
        if highest - lowest < others_highest - others_lowest:
            low += third
        else:
            high -= third
    return (low + high) / 2


def _band(points: list[SyncPoint], slope: float) -> tuple[int, int]:
    """Return between what a line of this slope may begin."""
    start = points[0].time_ns
    rises = [round(slope * (point.time_ns - start)) for point in points]
    lowest = max(point.offset_ns - point.error_ns - rise for point, rise in zip(points, rises, strict=True))
    highest = min(point.offset_ns + point.error_ns - rise for point, rise in zip(points, rises, strict=True))
    return lowest, highest


def _through(points: list[SyncPoint], slope: float, offset_ns: int | None = None) -> ClockMap | None:
    """Return the line of this slope that all measurements allow: in the middle, or at an offset if they allow that.

    None where they allow no line.
    """
    start, end = points[0].time_ns, points[-1].time_ns
    low, high = _band(points, slope)
    if low > high:
        return None
    at_start = offset_ns if offset_ns is not None and low <= offset_ns <= high else (low + high) // 2
    if not slope or start == end:
        return ClockMap.constant(at_start)
    return ClockMap(((start, at_start), (end, at_start + round(slope * (end - start)))))
