"""Criteria: select slices, instants and ends of arrows of one input."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from fnmatch import translate
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.formats.trace_event import Raw, decode_or_none, raw_number

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.merge.input import Input
    from tracekit.merge.selection.selection import Selection

TrackId = tuple[Any, Any]
"""``pid`` and ``tid`` of an event, as they stand in the file; the ``tid`` of an async slice is None."""

Spans = list[tuple[int, int]]
"""Spans of time in order, in ns; the ends are not part of them."""


class Criteria:
    """The selection for one input. Every method returns the reason to leave an event out; an empty text keeps it.

    The reasons are "time", "step", "category", "duration" and "name".

    Args:
        selection: What is wanted.
        item: The input.
        window: The time window in the file's own time.
        steps: For each rank of the input the spans of its wanted steps, in the file's own time; None when all are wanted.
    """

    def __init__(self, selection: Selection, item: Input, window: Spans, steps: dict[int, Spans] | None) -> None:
        self._selection = selection
        self._rank = item.rank
        self._ranks = item.rank_of_pid
        self._window = window
        self._steps = steps
        self._timed = selection.time_window is not None or steps is not None
        self._sorted = selection.categories is not None or bool(selection.exclude_categories)
        self.names = None if selection.names is None else WantedNames(selection.names)

    def judge(self, track: TrackId, name: bytes, category: bytes, start: int, end: int, *, sliced: bool) -> str:
        """Judge a slice or an instant."""
        why = self.judge_time(track[0], start, end) if self._timed else ""
        if why:
            return why
        if self._sorted and not self._wants_category(category):
            return "category"
        if sliced and end - start < self._selection.min_duration_ns:
            return "duration"
        return "" if self.names is None or self.names.wants(track, name, start, end) else "name"

    def judge_counter(self, pid: Any, name: bytes, time: int) -> str:
        """Judge a counter without a category, which no category leaves out."""
        why = self.judge_time(pid, time, time)
        return why or ("" if self.names is None or self.names.fits(name) else "name")

    def judge_arrow(self, category: bytes) -> str:
        """Judge one end of an arrow, without its slice and its time."""
        return "" if _names(category).isdisjoint(self._selection.exclude_categories) else "category"

    def judge_time(self, pid: Any, start: int, end: int) -> str:
        """Judge something of this time."""
        if not _overlaps(self._window, start, end):
            return "time"
        if self._steps is None or _overlaps(self._steps[self._ranks.get(raw_number(pid), self._rank)], start, end):
            return ""
        return "step"

    def _wants_category(self, category: bytes) -> bool:
        names, selection = _names(category), self._selection
        wanted = selection.categories is None or not names.isdisjoint(selection.categories)
        return wanted and names.isdisjoint(selection.exclude_categories)


class WantedNames:
    """Wanted names, and the slices that hold an event of such a name once `note` was called for every event.

    Slices of a track are nested, so it is enough to look at the first wanted event that begins within one.

    Attributes:
        patterns: Names, with ``*``, ``?`` and ``[...]`` as in a shell; case counts.
    """

    ON_TRACKS: ClassVar = frozenset("XBiIR")
    """The phases of events that stand in a slice of their thread."""

    def __init__(self, patterns: Collection[str]) -> None:
        self.patterns = patterns
        self._pattern = re.compile("|".join(map(translate, sorted(patterns))))
        self._fitting: dict[bytes, bool] = {}
        self._starts: dict[TrackId, list[int]] = {}
        self._sorted = False

    def fits(self, name: bytes) -> bool:
        """Return True if a name, as JSON text, is wanted."""
        known = self._fitting.get(name)
        if known is None:
            text = decode_or_none(Raw(name)) if name else ""
            known = self._fitting[name] = isinstance(text, str) and self._pattern.match(text) is not None
        return known

    def note(self, track: TrackId, name: bytes, start: int) -> None:
        """Note where an event begins, if its name is wanted."""
        if self.fits(name):
            self._starts.setdefault(_plain(track), []).append(start)

    def wants(self, track: TrackId, name: bytes, start: int, end: int) -> bool:
        """Return True if an event is wanted for its name, or for that of one within it."""
        if self.fits(name):
            return True
        if not self._sorted:
            for starts in self._starts.values():
                starts.sort()
            self._sorted = True
        starts = self._starts.get(_plain(track), [])
        at = bisect_left(starts, start)
        return at < len(starts) and starts[at] < end


def _plain(track: TrackId) -> TrackId:
    pid, tid = track
    return raw_number(pid), None if tid is None else raw_number(tid)


def _overlaps(spans: Spans, start: int, end: int) -> bool:
    at = bisect_right(spans, start, key=itemgetter(1))
    return at < len(spans) and spans[at][0] < max(end, start + 1)


@lru_cache(maxsize=4096)
def _names(category: bytes) -> frozenset[str]:
    text = decode_or_none(category) if category else ""  # type: ignore[arg-type]
    return frozenset(name.strip() for name in text.split(",")) if isinstance(text, str) else frozenset()
