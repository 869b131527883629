"""The slices of many tracks, given in any order and read in the order of time, of which a bounded number is in memory.

A trace of any size is sorted this way: rows are collected until there are many on all tracks together; then those of the
largest tracks are sorted and stored as runs (`tracekit.spill`). Where a file is about in the order of time, as most are,
only one or two runs of a track reach into each other, and only these are read at once.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.spill import Row, Run, columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["OrderedRows", "Scratch", "merged_windows"]

MOST_ROWS: Final = 300_000
"""How many rows of all tracks are in memory at once, as tuples: some 50 MB."""

_WINDOW_ROWS: Final = 1 << 13
_LEAST_RUN_ROWS: Final = 1 << 10


class Scratch:
    """A temporary folder for what does not fit into memory, and the count of what is there. Use it in a ``with`` block.

    Args:
        most_rows: How many rows may be in memory.

    Raises:
        StorageError: There is no room for it.
    """

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._held = 0
        self._tracks: list[OrderedRows] = []
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="tracekit-")
        except OSError as error:
            raise StorageError(f"no room for temporary data in {tempfile.gettempdir()}: {error}") from error
        self.path = str(Path(self._folder.name, "rows"))

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def track(self) -> OrderedRows:
        """Return rows for a new track."""
        track = OrderedRows(self.path)
        self._tracks.append(track)
        return track

    def added(self, count: int) -> None:
        """Say that so many rows were added to the tracks; stores some where they are too many."""
        self._held += count
        if self._held > self._most_rows:
            large = [track for track in self._tracks if len(track.rows) >= _LEAST_RUN_ROWS]
            # Many small tracks: they are stored as columns, which take a fifth of the memory.
            kept = self._held - sum(len(track.rows) for track in large)
            for track in self._tracks if kept > self._most_rows // 2 else large:
                track.settle()
            self._held = sum(len(track.rows) for track in self._tracks)

    def forget(self, track: OrderedRows) -> None:
        """Let go of what a track that has been read has in memory."""
        self._held -= len(track.rows)
        track.clear()


class OrderedRows:
    """Rows of integers of one width: add them to `rows`, in any order, and tell `Scratch.added`.

    Attributes:
        rows: Those that are in memory.
    """

    __slots__ = ("_path", "_runs", "rows")

    def __init__(self, path: str) -> None:
        self._path = path
        self._runs: list[tuple[Row, Run]] = []
        self.rows: list[Row] = []

    @property
    def first(self) -> Row | None:
        """The first row in order; None of none."""
        return min([first for first, _ in self._runs] + ([min(self.rows)] if self.rows else []), default=None)

    def settle(self) -> None:
        """Move the rows out of memory."""
        if self.rows:
            self.rows.sort()
            self._runs.append((self.rows[0], Run(columns(self.rows)).store(self._path)))
            self.rows = []

    def clear(self) -> None:
        """Forget all rows."""
        self._runs = []
        self.rows = []

    def windows(self) -> Iterator[list[Row]]:
        """Return all rows in order, a list at a time. Nothing may be added meanwhile."""
        self.rows.sort()
        waiting: list[tuple[Row, Iterator[list[Row]]]] = [
            (first, run.windows(_WINDOW_ROWS)) for first, run in self._runs
        ]
        if self.rows:
            waiting.append((self.rows[0], iter([self.rows])))
        return merged_windows(waiting)


def merged_windows(sources: list[tuple[Row, Iterator[list[Row]]]]) -> Iterator[list[Row]]:
    """Merge sources, each given with its first row, and opened when the others have come so far.

    Sorting what is there is one call into C, and much faster than a heap that is asked row by row.
    """
    waiting = sorted(sources, key=lambda source: source[0], reverse=True)
    open_: list[tuple[list[Row], Iterator[list[Row]]]] = []
    while waiting or open_:
        if not open_:
            source = waiting.pop()[1]
            open_.append((next(source), source))
        # Beyond the end of the window that ends first, not all rows are known yet.
        limit = min(window[-1] for window, _ in open_)
        while waiting and waiting[-1][0] <= limit:
            source = waiting.pop()[1]
            open_.append((next(source), source))
            limit = min(limit, open_[-1][0][-1])
        out: list[Row] = []
        left = []
        for window, source in open_:
            cut = bisect_right(window, limit)
            out += window[:cut]
            rest = window[cut:] or next(source, [])
            if rest:
                left.append((rest, source))
        if len(open_) > 1:
            out.sort()
        open_ = left
        yield out
