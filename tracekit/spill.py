"""Sorted rows of integers, of which only a bounded number is in memory: the others lie in a file.

A track may have more slices than fit in memory. Rows are collected until there are many, sorted, and stored as a *run*;
runs are read side by side, in windows, and merged. No file stays open: however many runs there are, one is open at a time.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from contextlib import contextmanager
from copy import copy
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MAX_ROWS", "Lookup", "Row", "RowSorter", "Run", "ScratchError", "columns", "merged", "window_rows"]

Row = tuple[int, ...]

MAX_ROWS: Final = 1 << 14
"""How many rows are in memory at once, as tuples: 2 to 3 MB."""

_INLINE_ROWS: Final = 256
"""So many rows of a run stay in memory: less than what is known about their track anyway."""
_INTEGER_BYTES: Final = 8
_ENDLESS: Final = 2**64


class Run:
    """Sorted rows that are read any number of times, from several processes.

    Args:
        values: The rows, as columns of equal length.
        first: The last column need not be stored when it counts up from here.
        ordered: Whether the rows are sorted; else they must be brought in order before they are merged.
    """

    __slots__ = ("_columns", "_first", "_offset", "_ordered", "_path", "length", "width")

    def __init__(self, values: list[array[int]], first: int | None = None, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self.length = len(values[0])
        self.width = len(values)
        self._columns: list[array[int]] | None = values
        self._first = first
        self._path = ""
        self._offset = 0

    @property
    def path(self) -> str:
        """The file that the rows are in; empty for a run in memory."""
        return self._path

    def moved(self, path: str) -> Run:
        """Return the same rows after their file was copied to ``path``."""
        if not self._path:
            return self
        run = copy(self)
        run._path = path  # noqa: SLF001 - of the same class
        return run

    def store(self, path: str | None, inline_rows: int | None = None) -> Run:
        """Move a run to the end of a file (None: nowhere) if it has more than so many rows, or those of a large one."""
        limit = _INLINE_ROWS if inline_rows is None else inline_rows
        if path is not None and self._columns is not None and self.length > limit:
            with _writing(path), Path(path).open("ab") as file:
                self._path, self._offset = path, file.tell()
                for column in self._columns:
                    column.tofile(file)
            self._columns = None
        return self

    @classmethod
    def join(cls, runs: list[Run], path: str | None) -> Run:
        """Return runs as one, which is in a file where a path is given."""
        joined = cls([array("q") for _ in range(runs[0].width)])
        joined.length = sum(run.length for run in runs)
        windows = merged([run.windows(window_rows(len(runs))) for run in runs])
        if path is None:
            joined._columns = [array("q", column) for column in zip(*chain.from_iterable(windows), strict=True)]
            return joined
        joined._columns = None
        joined._path = path
        Path(path).touch()
        with _writing(path), Path(path).open("r+b") as file:
            joined._offset = file.seek(0, os.SEEK_END)
            done = 0
            for rows in windows:
                for number, column in enumerate(zip(*rows, strict=True)):
                    file.seek(joined._offset + (number * joined.length + done) * _INTEGER_BYTES)
                    array("q", column).tofile(file)
                done += len(rows)
        return joined

    def rows(self, start: int, end: int, width: int | None = None) -> list[Row]:
        """Return the rows from ``start`` to before ``end``, or only their first ``width`` numbers."""
        end = min(end, self.length)
        columns: list[Iterable[int]] = [*self._read(start, end, width)]
        if self._first is not None and width is None:
            columns.append(range(self._first + start, self._first + end))
        return list(zip(*columns, strict=True))

    def in_order(self) -> Run:
        """Return the run, or one with its rows sorted."""
        return self if self._ordered else Run(columns(sorted(self.rows(0, self.length))))

    def windows(self, count: int, width: int | None = None) -> Iterator[list[Row]]:
        """Yield the rows, or only their first ``width`` numbers, ``count`` at a time."""
        for start in range(0, self.length, count):
            yield self.rows(start, start + count, width)

    def column_windows(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the first two numbers of the rows, ``count`` rows at a time, as columns of 64-bit integers."""
        for start in range(0, self.length, count):
            first, second = self._read(start, min(start + count, self.length), 2)
            yield first.tobytes(), second.tobytes()

    def _read(self, start: int, end: int, width: int | None) -> list[array[int]]:
        if self._columns is not None:
            return [column[start:end] for column in self._columns[:width]]
        found = []
        with Path(self._path).open("rb") as file:
            for number in range(width or self.width):
                column = array("q")
                file.seek(self._offset + (number * self.length + start) * _INTEGER_BYTES)
                column.fromfile(file, end - start)
                found.append(column)
        return found


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScratchError(
            f"{path}: cannot be written: {error.strerror or error}; what does not fit into memory is kept there"
        ) from error


class ScratchError(StorageError):
    """The temporary file cannot be written. No input is to blame, so none may be left out because of it."""


class Lookup:
    """Finds rows of a run by their first number; quick when asked for neighbours, as in a file in order of time."""

    __slots__ = ("_below", "_from", "_run", "_window")

    def __init__(self, run: Run) -> None:
        self._run = run
        # What lies from one number to below another is in the window, all of it.
        self._from = self._below = 0
        self._window: dict[int, int] = {}

    def get(self, key: int, default: int) -> int:
        """Return the second number of the row that begins with ``key``; no two rows do."""
        if not self._from <= key < self._below:
            self._load(key)
        return self._window.get(key, default)

    def _load(self, key: int) -> None:
        low, high = 0, self._run.length
        self._from, self._below = -_ENDLESS, _ENDLESS
        while high - low > _INLINE_ROWS:
            middle = (low + high) // 2
            at = self._run.rows(middle, middle + 1)[0][0]
            if at <= key:
                low, self._from = middle, at
            else:
                high, self._below = middle, at
        self._window = dict(self._run.rows(low, high))  # type: ignore[arg-type]


class RowSorter:
    """Takes rows in any order.

    Args:
        width: How many numbers a row has.
        path: The file for rows that are too many for memory; None keeps them all.
    """

    def __init__(self, width: int, path: str | None) -> None:
        self._width = width
        self._path = path
        self._rows: list[Row] = []
        self._runs: list[Run] = []

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= MAX_ROWS:
            self._settle()

    def runs(self) -> list[Run]:
        """Return all rows, as sorted runs."""
        if self._rows:
            self._settle()
        return self._runs

    def run(self) -> Run | None:
        """Return all rows as one sorted run, None when there are none."""
        runs = self.runs()
        if len(runs) < 2:
            return runs[0] if runs else None
        return Run.join(runs, self._path)

    def _settle(self) -> None:
        self._rows.sort()
        self._runs.append(Run(columns(self._rows)).store(self._path))
        self._rows = []


def columns(rows: list[Row]) -> list[array[int]]:
    """Return rows as columns."""
    return [array("q", column) for column in zip(*rows, strict=True)]


def window_rows(runs: int) -> int:
    """Return how many rows of each of so many runs are read at once."""
    return max(64, MAX_ROWS // max(runs, 1))


def merged(sources: list[Iterator[list[Row]]]) -> Iterator[list[Row]]:
    """Merge sources, each of which yields its rows in order, a list at a time; yields sorted lists.

    Sorting what is there is one call into C, and much faster than a heap that is asked row by row.
    """
    windows = [(window, source) for source in sources if (window := next(source, []))]
    while len(windows) > 1:
        # Beyond the end of the window that ends first, not all rows are known yet.
        limit = min(window[-1] for window, _ in windows)
        out: list[Row] = []
        left = []
        for window, source in windows:
            cut = bisect_right(window, limit)
            out += window[:cut]
            rest = window[cut:] or next(source, [])
            if rest:
                left.append((rest, source))
        windows = left
        out.sort()
        yield out
    for window, source in windows:
        yield window
        yield from source
