"""Begins and ends made into slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import raw_field, raw_number
from tracekit.formats.trace_event import UNSET

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.analysis.markers import Marker, Markers
    from tracekit.analysis.ordered_rows import OrderedRows, Scratch
    from tracekit.formats.trace_event import Event
    from tracekit.spill import Row

__all__ = ["AsyncPairs", "pair_marks"]

MOST_OPEN: Final = 10_000
"""So many slices may be open at once on a track; what begins beyond that counts as never ended."""
_MOST_OPEN_ASYNC: Final = 200_000
_FAR: Final = 100
"""So far back the begin of an end is looked for, so that no file can make that take for ever."""


def pair_marks(
    marks: OrderedRows, slices: OrderedRows, markers: Markers, scratch: Scratch, closed: Callable[[Row], None]
) -> int:
    """Pair the ``B`` and ``E`` of a track in the order of time, at the same time in the order of the file.

    An end without a name ends the slice that began last; one with a name the last of that name, as Perfetto has it.

    Args:
        marks: Rows (time, number of the event, twice the marker + is end).
        slices: Where the slices go, as rows (start, -end, number of the event, marker).
        markers: The names.
        scratch: What both belong to.
        closed: Called with each slice.

    Returns:
        How many begin and never end.
    """
    open_: list[tuple[int, int, int]] = []
    never = 0
    for window in marks.windows():
        before = len(slices.rows)
        for time, order, code in window:
            if not code & 1:
                if len(open_) < MOST_OPEN:
                    open_.append((time, code >> 1, order))
                else:
                    never += 1
                continue
            at = _matching(open_, markers.table, code >> 1)
            if at is not None:
                start, number, order = open_.pop(at)  # noqa: PLW2901 - of the begin
                slices.rows.append((start, -time, order, number))
                closed(slices.rows[-1])
        scratch.added(len(slices.rows) - before)
    scratch.forget(marks)
    return never + len(open_)


def _matching(open_: list[tuple[int, int, int]], table: list[Marker], number: int) -> int | None:
    """Return which of the open slices an end with this marker ends."""
    end = table[number]
    for at in range(len(open_) - 1, max(-1, len(open_) - 1 - _FAR), -1):
        begun = table[open_[at][1]]
        if (not end.name or end.name == begun.name) and (not end.category or end.category == begun.category):
            return at
    return None


class AsyncPairs:
    """Pairs the ``b`` and ``e`` of a file, in the order of the file: those with one category and id."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        self._count = 0
        self._never = 0

    @property
    def unfinished(self) -> int:
        """How many have begun and have not ended."""
        return self._never + self._count

    def take(self, event: Event, number: int, time: int, order: int, *, is_end: bool) -> Row | None:
        """Take the next begin or end; returns the slice that it ends, as a row like those of a track."""
        category = raw_field(event.cat)
        identity = event.id2 if event.id is UNSET else event.id
        # Of an id2, {"local": 5} is the process's own and {"global": 5} is not; the text tells them apart.
        key = (raw_number(event.pid), category, raw_field(identity))
        if not is_end:
            if self._count >= _MOST_OPEN_ASYNC:
                self._never += 1
                return None
            self._open.setdefault(key, []).append((time, number))
            self._count += 1
            return None
        waiting = self._open.get(key)
        if not waiting:
            return None
        last = len(waiting) - 1
        same = (at for at in range(last, max(-1, last - _FAR), -1) if waiting[at][1] == number)
        start, begun = waiting.pop(next(same, last))
        if not waiting:
            del self._open[key]
        self._count -= 1
        return (start, -time, order, begun) if time >= start else None
