"""Convert the times of one clock to those of another in exact integer arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class ClockMap:
    """An offset as a function of time: linear between knots, and beyond them as between the last two.

    A later time never becomes an earlier one, and times that are equal stay so: slices nest as before.

    Attributes:
        knots: At least one pair of a time and what to add to it, ns, sorted by time; one pair is a constant.
    """

    knots: tuple[tuple[int, int], ...]

    @staticmethod
    def constant(offset_ns: int) -> ClockMap:
        """Return the map that adds the same to all times."""
        return ClockMap(((0, offset_ns),))

    @property
    def is_constant(self) -> bool:
        """True if the offset never changes."""
        return len({offset for _, offset in self.knots}) == 1

    def offset_at(self, time_ns: int) -> int:
        """Return what to add to a time."""
        knots = self.knots
        if len(knots) == 1:
            return knots[0][1]
        after = min(max(bisect_right(knots, time_ns, key=itemgetter(0)), 1), len(knots) - 1)
        (from_ns, first), (to_ns, last) = knots[after - 1], knots[after]
        return first + (last - first) * (time_ns - from_ns) // (to_ns - from_ns)

    def drift_ppm(self) -> float:
        """Return by how many µs a second the offset grows from the first knot to the last."""
        (from_ns, first), (to_ns, last) = self.knots[0], self.knots[-1]
        return 0.0 if from_ns == to_ns else (last - first) / (to_ns - from_ns) * 1e6

    def inverse(self) -> ClockMap:
        """Return the way back; to the nanosecond where this map is constant, to one more where it is not."""
        return ClockMap(tuple((time + offset, -offset) for time, offset in self.knots))
