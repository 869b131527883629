"""Statistics of a stream of durations: exact sums, and quantiles with a known error, in bounded memory.

Sums are integers, so that order and grouping do not matter: the merged statistics of many threads, ranks or files are those
of all their durations together.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BITS: Final = 7
_HALF: Final = 1 << (_BITS - 1)

QUANTILE_ERROR: Final = 1 / (2 * _HALF)
"""Maximum relative error of a quantile: 1/128, or 0.8 %."""


class DurationStatistics:
    """Count, total, mean, minimum, maximum, standard deviation and quantiles of durations.

    Everything is exact except the quantiles. For those, durations are counted in buckets: 64 for each power of two from 128 ns
    on, one for each nanosecond below (as in HdrHistogram). A quantile is the middle of its bucket. It differs from the exact
    quantile by at most `QUANTILE_ERROR` of its value. Durations up to 10 hours need at most 2,700 buckets, and empty ones are
    not kept, so the memory is bounded: usually some kilobytes.

    Not thread-safe: use a lock to share one.

    Args:
        durations_ns: The first durations.

    Attributes:
        count: Number of durations.
        total_ns: Sum of the durations.
        min_ns: The shortest duration, or 0.
        max_ns: The longest duration, or 0.
    """

    __slots__ = ("_buckets", "_squares", "count", "max_ns", "min_ns", "total_ns")

    def __init__(self, durations_ns: Iterable[int] = ()) -> None:
        self.count = 0
        self.total_ns = 0
        self.min_ns = 0
        self.max_ns = 0
        self._squares = 0  # an integer of any size, so that the deviation of nearly equal durations is exact
        self._buckets: Counter[int] = Counter()
        self.add_all(durations_ns)

    # ---- input ------------------------------------------------------------------------------------------------------

    def add(self, duration_ns: int) -> None:
        """Add one duration, in ns from 0 on."""
        self.add_all((duration_ns,))

    def add_all(self, durations_ns: Iterable[int]) -> None:
        """Add durations, in ns; faster than one by one.

        Raises:
            ConfigError: A duration is below 0.
        """
        durations = list(durations_ns)
        if not durations:
            return
        lowest, highest = min(durations), max(durations)
        if lowest < 0:
            raise ConfigError(f"a duration must be 0 ns or more, not {lowest}")
        self._widen(lowest, highest)
        self.count += len(durations)
        self.total_ns += sum(durations)
        self._squares += sum(map(operator.mul, durations, durations))
        # The bucket of a duration consists of its highest bits and their shift; a Counter counts in C.
        self._buckets.update(
            [
                duration
                if (shift := duration.bit_length() - _BITS) <= 0
                else (shift << (_BITS - 1)) + (duration >> shift)
                for duration in durations
            ]
        )

    def merge(self, other: DurationStatistics) -> None:
        """Add all durations of ``other``, which does not change."""
        if not other.count:
            return
        self._widen(other.min_ns, other.max_ns)
        self.count += other.count
        self.total_ns += other.total_ns
        self._squares += other._squares
        self._buckets.update(other._buckets)

    def _widen(self, lowest: int, highest: int) -> None:
        self.min_ns = min(self.min_ns, lowest) if self.count else lowest
        self.max_ns = max(self.max_ns, highest)

    @classmethod
    def merged(cls, parts: Iterable[DurationStatistics]) -> DurationStatistics:
        """Return the statistics of all durations of all parts; with one part, a copy of it."""
        whole = cls()
        for part in parts:
            whole.merge(part)
        return whole

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def mean_ns(self) -> float:
        """The mean, or 0."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def stdev_ns(self) -> float:
        """The population standard deviation (divided by the count, not by the count minus one)."""
        if not self.count:
            return 0.0
        return math.sqrt(self.count * self._squares - self.total_ns**2) / self.count

    def quantile_ns(self, quantile: float) -> int:
        """Return a quantile of the durations, with a relative error of at most `QUANTILE_ERROR`.

        Args:
            quantile: From 0 (the shortest) to 1 (the longest), which are exact; 0.5 is the median. Of n sorted durations, it is
                the one at place ``ceil(quantile * n)``, counted from 1.

        Returns:
            Nanoseconds; 0 without durations.

        Raises:
            ConfigError: The quantile is not between 0 and 1.
        """
        if not 0 <= quantile <= 1:
            raise ConfigError(f"a quantile is a number from 0 to 1, not {quantile!r}")
        place = max(math.ceil(quantile * self.count), 1)
        if place >= self.count:
            return self.max_ns
        if place == 1:
            return self.min_ns
        below = 0
        for bucket in sorted(self._buckets):
            below += self._buckets[bucket]
            if below >= place:
                return min(max(_middle(bucket), self.min_ns), self.max_ns)
        return self.max_ns

    # ---- as a value -------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DurationStatistics) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return (
            f"<DurationStatistics of {self.count}: total {self.total_ns} ns, mean {self.mean_ns:.0f} ns, "
            f"min {self.min_ns} ns, max {self.max_ns} ns>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for Python's ``json`` module; `from_dict` reads it. Some integers are beyond 64 bits."""
        return {
            "count": self.count,
            "total_ns": self.total_ns,
            "min_ns": self.min_ns,
            "max_ns": self.max_ns,
            "squares": self._squares,
            "buckets": sorted(self._buckets.items()),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> DurationStatistics:
        """Return the statistics from a dict of `to_dict`."""
        found = cls()
        found.count, found.total_ns = stored["count"], stored["total_ns"]
        found.min_ns, found.max_ns, found._squares = stored["min_ns"], stored["max_ns"], stored["squares"]
        found._buckets.update(dict(stored["buckets"]))
        return found


def _middle(bucket: int) -> int:
    """Return the duration in the middle of a bucket, ns."""
    shift = (bucket >> (_BITS - 1)) - 1
    if shift <= 0:
        return bucket
    lowest = (bucket - (shift << (_BITS - 1))) << shift
    return lowest + (1 << (shift - 1))
