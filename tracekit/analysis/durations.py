"""Exact percentiles of many durations, of which a bounded number is in memory."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from tracekit.analysis.ordered_rows import merged_windows
from tracekit.spill import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DurationStore", "Durations"]

MOST_DURATIONS: Final = 4_000_000
"""How many durations are in memory at once: 32 MB, and for a moment a list of those of one marker."""

_LEAST_RUN: Final = 1 << 12
_WINDOW_ROWS: Final = 1 << 13


class DurationStore:
    """Makes `Durations` that share a bound on memory.

    Args:
        path: A temporary file for what is too much.
        most: How many durations may be in memory.
    """

    def __init__(self, path: str, most: int = MOST_DURATIONS) -> None:
        self._path = path
        self._most = most
        self._all: list[Durations] = []
        self._held = 0

    def new(self) -> Durations:
        """Return an empty set of durations."""
        durations = Durations(self._path)
        self._all.append(durations)
        return durations

    def added(self, count: int) -> None:
        """Say that so many were added; moves some out of memory where they are too many."""
        self._held += count
        if self._held > self._most:
            for durations in self._all:
                if len(durations.values) >= _LEAST_RUN:
                    durations.settle()
            self._held = sum(len(durations.values) for durations in self._all)


class Durations:
    """The durations of one marker: append them to `values`.

    Attributes:
        values: Those in memory, ns.
    """

    __slots__ = ("_path", "_runs", "values")

    def __init__(self, path: str) -> None:
        self._path = path
        self._runs: list[Run] = []
        self.values: array[int] = array("q")

    def settle(self) -> None:
        """Move the values out of memory."""
        if self.values:
            self._runs.append(Run([array("q", sorted(self.values))]).store(self._path))
            self.values = array("q")

    def percentiles(self, percents: Sequence[int]) -> list[int]:
        """Return the least of the durations that at least so many percent of them do not exceed (the nearest rank).

        Args:
            percents: 1 to 100, ascending.
        """
        if not self._runs:
            ordered = sorted(self.values)
            return [ordered[_at(percent, len(ordered))] for percent in percents]
        self.settle()
        count = sum(run.length for run in self._runs)
        wanted = [_at(percent, count) for percent in percents]
        found: list[int] = []
        passed = 0
        sources = [(run.rows(0, 1)[0], run.windows(_WINDOW_ROWS)) for run in self._runs]
        for window in merged_windows(sources):
            while len(found) < len(wanted) and wanted[len(found)] < passed + len(window):
                found.append(window[wanted[len(found)] - passed][0])
            passed += len(window)
        self._runs = []
        return found


def _at(percent: int, count: int) -> int:
    return -(-percent * count // 100) - 1
