"""Slices that overlap without nesting, moved to lanes of their own.

A track holds slices that nest. Perfetto before v57 drops an ``X`` that begins inside another one and ends after
it (``slice_drop_overlapping_complete_event``), later versions move it aside; GPU streams, threads with rounded times, and
a marker and an operator measured by two clocks have such slices. They go to a second track, so that nothing is lost.

Times are kept as columns of 64-bit integers, in a file when there are many (`tracekit.spill`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tracekit import core
from tracekit.formats.event_fields import MAX_DEPTH
from tracekit.spill import RowSorter, Run, columns, merged, window_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.spill import Row

__all__ = ["ANY", "BEGIN", "DROPPED", "END", "INVALID", "Moves", "Slices", "all_stay", "assign_lanes"]

BEGIN: Final = -1
"""The event is a ``B``."""
END: Final = -2
"""The event is an ``E``."""
INVALID: Final = ()
"""In place of a row: the event has no usable time and is not written."""

ANY: Final = -1
"""In place of a name or category: there is none, so an ``E`` ends whatever is open."""

DROPPED: Final = -1
"""In place of a lane: an ``E`` without its ``B``."""

_NEVER_ENDS: Final = 2**63 - 1
_ENDLESS: Final = 2**64
"""Later than any time."""

_NEVER: Final = -(2**63)

_WHOLE: Final = -1
"""In place of the index of an ``E``: the slice is an ``X``."""
_UNCLOSED: Final = -2
"""The same: it is a ``B`` without an ``E``."""


class Slices:
    """The slice events (``X``, ``B``, ``E``) of one track of one file, in the order of the file.

    Events are appended to ``rows``, or given to `take` as columns; `settle` takes them from there.

    Attributes:
        rows: An ``X`` as (start, -end), ns in the file's own time. A ``B`` or ``E`` as (time, name, category, `BEGIN` or
            `END`), where a number stands for a name or category, `ANY` for none. One without a usable time as `INVALID`.
        mixed: Whether there is anything but ``X`` in ``rows``.
        low: The earliest start, ns.
        high: The latest end, ns.
        nest: Whether all slices are known to nest; known after `finish`, and never of ``B`` and ``E``.
        whole: Each ``X``, as (start, -end, index); in order after `sort`.
        pairs: Each ``B`` and ``E``, as (time, index, BEGIN or END, name, category).
    """

    __slots__ = (
        "_columns", "_count", "_in_order", "_last", "_open", "high", "low", "mixed", "nest", "pairs", "rows", "whole"
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows: list[Row] = []
        # Starts and negated ends that come before `rows`, in pieces.
        self._columns: tuple[list[bytes], list[bytes]] = [], []
        self.mixed = False
        self.low = _NEVER_ENDS
        self.high = _NEVER
        self.nest = True
        self.whole: list[Run] = []
        self.pairs: list[Run] = []
        self._count = 0
        self._in_order = True
        self._last: Row = (_NEVER, _NEVER)
        # Ends of what is open, negated; the first never ends.
        self._open = [-_ENDLESS]

    def __reduce__(self) -> tuple[Callable[..., Slices], tuple[Any, ...]]:
        # Pickled when they are finished, for another process or a shelf: the rest is of no use any more.
        return _finished, (self.low, self.high, self.nest, self.whole, self.pairs)

    def take(self, starts: bytes, minus_ends: bytes) -> None:
        """Append ``X`` events as columns of 64-bit integers; only where there is a compiled core."""
        if self.rows:
            self.rows += zip(array("q", starts), array("q", minus_ends), strict=True)
            return
        self._columns[0].append(starts)
        self._columns[1].append(minus_ends)

    def settle(self, path: str | None = None) -> None:
        """Take over what was appended, sorted, to a file where a path is given."""
        rows = self.rows
        if self._columns[0]:
            starts, minus_ends = (b"".join(pieces) for pieces in self._columns)
            self._columns = [], []
            if not rows:
                self._settle_columns(starts, minus_ends, path)
                return
            rows[:0] = zip(array("q", starts), array("q", minus_ends), strict=True)
        if not rows:
            return
        first, self._count = self._count, self._count + len(rows)
        if self.mixed:
            rows = self._settle_mixed(first, path)
        else:
            ordered = sorted(rows)
            self.whole.append(Run(columns(rows), first, ordered=ordered == rows).store(path))
            rows = ordered
        if rows:
            self.low = min(self.low, rows[0][0])
            self.high = max(self.high, -min([minus_end for _, minus_end in rows]))
            self._in_order = self._in_order and rows[0] >= self._last
            self._last = rows[-1]
            if self.nest and self._in_order:
                self.nest = _nest(rows, self._open)
        self.mixed = False
        self.rows.clear()

    def _settle_columns(self, starts: bytes, minus_ends: bytes, path: str | None) -> None:
        """Do the same for columns of nothing but ``X``, without an object for each number."""
        assert core.merge is not None
        first, self._count = self._count, self._count + len(starts) // 8
        found = core.merge.sort_rows(starts, minus_ends, first)
        if found is not None:
            starts, minus_ends = found[:2]
        lowest, latest = array("q", starts[:8] + minus_ends[:8]), array("q", starts[-8:] + minus_ends[-8:])
        self._in_order = self._in_order and tuple(lowest) >= self._last
        self._last = tuple(latest)
        self.low = min(self.low, lowest[0])
        if self.nest and self._in_order:
            open_ = core.merge.nest(starts, minus_ends, array("q", self._open[1:]).tobytes())
            self.nest = open_ is not None
            self._open = [-_ENDLESS, *array("q", open_ or b"")]
        values = [array("q", column) for column in found or (starts, minus_ends)]
        self.high = max(self.high, -core.merge.least(minus_ends))
        self.whole.append(Run(values, first if found is None else None).store(path))

    def _settle_mixed(self, first: int, path: str | None) -> list[Row]:
        """Do the same where not all is ``X``; returns what is, in order."""
        rows: list[Row] = []
        pairs: list[Row] = []
        for index, row in enumerate(self.rows, first):
            if len(row) == 2:  # (start, -end)
                rows.append((*row, index))
            elif row is not INVALID:
                time, name, category, phase = row
                pairs.append((time, index, phase, name, category))
        if rows:
            rows.sort()
            self.whole.append(Run(columns(rows)).store(path))
        if pairs:
            pairs.sort()
            self.nest = False
            self.pairs.append(Run(columns(pairs)).store(path))
        return [row[:2] for row in rows]

    def finish(self, path: str | None = None) -> None:
        """Settle, and find out whether all slices nest where that could not be seen on the way."""
        self.settle(path)
        if self.nest and not self._in_order:
            self.sort(path)
            self.nest = self._nest_compiled() if core.merge is not None else self._nest_all()
        self._open = []

    def _nest_all(self) -> bool:
        """Tell whether the rows of all runs, which are in order, nest."""
        open_ = [-_ENDLESS]
        count = window_rows(len(self.whole))
        windows = merged([run.windows(count, width=2) for run in self.whole])
        return all(_nest(rows, open_) for rows in windows)

    def _nest_compiled(self) -> bool:
        """Do the same without an object for each number."""
        assert core.merge is not None
        count = window_rows(len(self.whole))
        sources = [run.column_windows(count) for run in self.whole]
        windows = [(*next(source), 0) for source in sources]
        open_: bytes | None = b""
        while windows:
            places, open_ = core.merge.nest_merged(windows, open_)
            if open_ is None:
                return False
            for number in range(len(windows) - 1, -1, -1):
                starts, minus_ends, _ = windows[number]
                windows[number] = (starts, minus_ends, places[number])
                if places[number] * 8 == len(starts):
                    following = next(sources[number], None)
                    if following is None:
                        del windows[number], sources[number]
                    else:
                        windows[number] = (*following, 0)
        return True

    def sort(self, path: str | None = None) -> None:
        """Bring the rows of each run in order."""
        self.whole = [run.in_order().store(path) for run in self.whole]


def _finished(low: int, high: int, nest: bool, whole: list[Run], pairs: list[Run]) -> Slices:
    slices = Slices()
    slices.low, slices.high, slices.nest, slices.whole, slices.pairs = low, high, nest, whole, pairs
    return slices


def _nest(spans: Iterable[Row], open_: list[int]) -> bool:
    """Tell whether (start, -end) in order nest, in each other and in what is open before them."""
    pop, push = open_.pop, open_.append
    top = open_[-1]
    for start, minus_end in spans:
        while -top <= start:
            pop()
            top = open_[-1]
        if minus_end < top or len(open_) > MAX_DEPTH:  # with what never ends
            return False
        push(minus_end)
        top = minus_end
    return True


@dataclass(frozen=True, slots=True)
class Moves:
    """The slices of one file that leave their track.

    Attributes:
        events: (index of the event, its lane or `DROPPED`), in order.
        starts: (start, lane) of those that begin when none begins that stays; ns in the file's own time, in order.
        lanes: The lanes in use.
        count: How many slices move.
    """

    events: Run | None
    starts: Run | None
    lanes: frozenset[int]
    count: int


class _Sorter:
    """Collects the moves of one file while its slices come in order of time."""

    def __init__(self, path: str | None) -> None:
        self.events = RowSorter(2, path)
        self._starts = RowSorter(2, path)
        self._lanes: set[int] = set()
        self._count = 0
        self._at: int | None = None
        self._lane = 0
        self._stays = False

    def take(self, start: int, lane: int, index: int, closing: int) -> None:
        """Note where a slice goes; 0 is the track itself."""
        if start != self._at:
            self._end()
            self._at, self._lane, self._stays = start, 0, False
        if not lane:
            self._stays = True
            return
        self._lane = lane
        self._lanes.add(lane)
        self._count += 1
        self.events.add((index, lane))
        if closing >= 0:
            self._count += 1
            self.events.add((closing, lane))

    def _end(self) -> None:
        if self._lane and not self._stays:
            self._starts.add((self._at or 0, self._lane))

    def moves(self) -> Moves:
        """Return what was noted."""
        self._end()
        return Moves(self.events.run(), self._starts.run(), frozenset(self._lanes), self._count)


def assign_lanes(parts: list[tuple[Slices, int]], path: str | None = None) -> list[Moves | None]:
    """Find the slices of one track that must leave it.

    The order is Perfetto's: by start, at the same start each ``X`` before any ``B``, then the longer first, then the order of
    the input. A slice belongs on the first lane on which it lies inside, or after, what is open there, and at most
    `MAX_DEPTH` deep.

    Args:
        parts: The slices of the track, finished, one part for each file, with the ns to add to that file's times.
        path: A file for what is too large for memory; None keeps all in memory.

    Returns:
        For each part what leaves the track, None when nothing does.
    """
    if all_stay(parts):
        return [None for _ in parts]
    sorters = [_Sorter(path) for _ in parts]
    runs: list[tuple[Run, int, int]] = []
    for number, (slices, shift) in enumerate(parts):
        slices.sort(path)
        runs += [(run, number, shift) for run in slices.whole]
    paired = RowSorter(5, path)
    for number, (slices, shift) in enumerate(parts):
        _pair(slices, shift, number, paired, sorters[number].events)
    count = window_rows(len(runs) + len(paired.runs()))
    sources = [_spans(run, number, shift, count) for run, number, shift in runs]
    sources += [run.windows(count) for run in paired.runs()]
    lanes: list[list[int]] = [[]]
    base = lanes[0]
    for start, minus_end, number, index, closing in _begins_last(merged(sources)):
        while base and base[-1] <= start:
            base.pop()
        if not base or (-minus_end <= base[-1] and len(base) < MAX_DEPTH):
            base.append(-minus_end)
            lane = 0
        else:
            lane = _find_lane(lanes, start, -minus_end)
        sorters[number].take(start - parts[number][1], lane, index, closing)
    found = [sorter.moves() for sorter in sorters]
    return [moves if moves.events is not None else None for moves in found]


def all_stay(parts: list[tuple[Slices, int]]) -> bool:
    """Tell whether it is known, without a look at single slices, that none of a track leaves it."""
    return _apart(parts) and all(slices.nest for slices, _ in parts)


def _apart(parts: list[tuple[Slices, int]]) -> bool:
    """Tell whether each part ends before the next begins."""
    spans = sorted((slices.low + shift, slices.high + shift) for slices, shift in parts if slices.whole or slices.pairs)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _begins_last(windows: Iterable[list[Row]]) -> Iterator[Row]:
    """Yield the rows of all windows, of those with one start each ``X`` before any ``B``."""
    held: list[Row] = []
    for rows in windows:
        for row in rows:
            if held and row[0] != held[0][0]:
                yield from held
                held.clear()
            if row[4] == _WHOLE:
                yield row
            else:
                held.append(row)
    yield from held


def _spans(run: Run, number: int, shift: int, count: int) -> Iterator[list[Row]]:
    """Yield the ``X`` of a run as (start, -end, part, index, `_WHOLE`) in the time of the merge."""
    for rows in run.windows(count):
        yield [(start + shift, minus_end - shift, number, index, _WHOLE) for start, minus_end, index in rows]


def _pair(slices: Slices, shift: int, number: int, spans: RowSorter, moves: RowSorter) -> None:
    """Add (start, -end, part, index, index of its ``E`` or `_UNCLOSED`) of every pair of ``B`` and ``E``."""
    # An E ends the innermost open B of its name and category, as in Perfetto (slice_tracker.cc); time decides, then the
    # order of the file.
    open_: list[tuple[int, int, int, int]] = []
    count = window_rows(len(slices.pairs))
    for rows in merged([run.windows(count) for run in slices.pairs]):
        for time, index, phase, name, category in rows:
            if phase == BEGIN:
                open_.append((time, index, name, category))
                continue
            for position in range(len(open_) - 1, -1, -1):
                start, begin, begin_name, begin_category = open_[position]
                if name in (ANY, begin_name) and category in (ANY, begin_category):
                    del open_[position]
                    if start + shift < 0:
                        # Such a B has no place in the merged trace, so its E has none.
                        moves.add((index, DROPPED))
                        break
                    spans.add((_held(start + shift), -_held(time + shift), number, begin, index))
                    break
            else:
                moves.add((index, DROPPED))
    for start, begin, _, _ in open_:
        spans.add((_held(start + shift), -_NEVER_ENDS, number, begin, _UNCLOSED))


def _held(time: int) -> int:
    """Return a time, or the nearest one that a column holds."""
    return max(-_NEVER_ENDS, min(time, _NEVER_ENDS))


def _find_lane(lanes: list[list[int]], start: int, end: int) -> int:
    for number, stack in enumerate(lanes[1:], 1):
        while stack and stack[-1] <= start:
            stack.pop()
        if not stack or (end <= stack[-1] and len(stack) < MAX_DEPTH):
            stack.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1
