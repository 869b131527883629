"""Ranges of time that overlap: the time in which there is at least one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.arrays import np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.explain.arrays import Ints

NEVER: Final = -(2**63)


class Busy:
    """The time with one of some activities, which are added in the order of their starts."""

    def __init__(self) -> None:
        self.total_ns = 0
        self.until_ns = NEVER  # the latest end

    def add(self, starts: Ints, ends: Ints) -> Ints:
        """Add activities; return the latest end before each, `NEVER` before the first."""
        until: Ints = np.maximum.accumulate(np.concatenate((np.array([self.until_ns], dtype=np.int64), ends)))
        self.until_ns = int(until[-1])
        self.total_ns += int(np.maximum(0, ends - np.maximum(starts, until[:-1])).sum())
        return until[:-1]


class Cover:
    """The time with one of some ranges, which are pairs of starts and ends, up to any time."""

    def __init__(self, *ranges: Sequence[Ints]) -> None:
        starts, ends = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        order = np.argsort(starts, kind="stable")
        starts, busy = starts[order], Busy()
        until = busy.add(starts, ends[order])
        begins = starts > until
        self._starts = starts[begins]
        self._lengths = np.append(until[begins][1:], busy.until_ns)[: len(self._starts)] - self._starts
        self._before = np.cumsum(self._lengths) - self._lengths

    def __bool__(self) -> bool:
        return len(self._starts) > 0

    def within(self, starts: Ints, ends: Ints) -> int:
        """Return the covered time in some ranges."""
        return int((self.until(ends) - self.until(starts)).sum())

    def until(self, times: Ints) -> Ints:
        """Return the covered time before each time."""
        if not self:
            return np.zeros_like(times)
        at = np.searchsorted(self._starts, times, side="right") - 1
        known = np.maximum(at, 0)
        covered = self._before[known] + np.minimum(times - self._starts[known], self._lengths[known])
        return np.where(at < 0, 0, covered)
