"""Judge slices, instants and the ends of arrows of one input, alone and with the events that go with them.

The halves of a slice go together, and so do arrows and the slices that they join. Whether the first half of a slice belongs to
a selection shows at its second half, which comes later in the file, or earlier.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracekit.formats.trace_event import (
    UNSET,
    Event,
    Raw,
    decode_dict,
    decode_or_none,
    duration_of,
    name_and_category,
    raw_field,
    raw_number,
    time_field,
)
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.merge.scan.input import Input
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


PAIRED: Final = frozenset("BEbestf")
"""The phases of events that are judged together with others."""

_FOREVER: Final = 2**63 - 1

_Half = tuple[int, int, bool, bytes, bytes]
"""Half of a slice: time, place among the paired events, whether it begins the slice, name and category."""


@dataclass(slots=True)
class _Track:
    spans: list[tuple[int, int, str]] = field(default_factory=list)  # start, -end, why it is left out
    halves: list[_Half] = field(default_factory=list)
    points: list[tuple[int, int, bool]] = field(default_factory=list)  # of arrows: time, place, whether it ends later


class PairJudge:
    """Judges all events of a file that go together with others. Call `take` for each run, then `finish`.

    An ``E`` goes with its ``B`` as in `OpenSlices`. An arrow ends at the innermost slice that is open at its time, or (``f``
    without ``bp``) at the next one that begins, as in Perfetto; it is left out with either of its slices.
    """

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        self._verdicts: list[str] = []
        self._tracks: dict[tuple[Any, Any], _Track] = {}
        self._spelled: dict[tuple[Any, Any], _Track] = {}  # the same, by ids as JSON text
        self._asyncs: dict[tuple[Any, ...], list[_Half]] = {}
        self._flows: dict[tuple[bytes, bytes, bytes], list[tuple[int, str]]] = {}

    def take(self, run: list[Event]) -> None:
        """Look at a run of events."""
        for event in run:
            time = time_field(event.ts)
            phase = event.ph[:1] if type(event.ph) is str else ""
            if phase == "X" and time is not None:
                track, name, category = (event.pid, event.tid), raw_field(event.name), raw_field(event.cat)
                end = time + duration_of(event)
                why = self._criteria.judge(track, name, category, time, end, sliced=True)
                self._track(event).spans.append((time, -end, why))
            if phase not in PAIRED:
                continue
            place = len(self._verdicts)
            self._verdicts.append("")
            if time is None:
                continue
            if phase in "BE":
                self._track(event).halves.append((time, place, phase == "B", *name_and_category(event)))
            elif phase in "be":
                key = (raw_number(event.pid), raw_field(event.cat), *_async_id(event))
                half = (time, place, phase == "b", raw_field(event.name), raw_field(event.cat))
                self._asyncs.setdefault(key, []).append(half)
            else:
                self._verdicts[place] = self._criteria.judge_arrow(raw_field(event.cat))
                self._track(event).points.append((time, place, phase == "f" and event.bp is UNSET))
                flow = (raw_field(event.cat), raw_field(event.name), raw_field(event.id))
                self._flows.setdefault(flow, []).append((place, phase))

    def finish(self) -> list[str]:
        """Return the reason to leave out each event of the phases `PAIRED`, in the order of the file; empty keeps it."""
        for track_id, track in self._tracks.items():
            self._judge_halves(track_id, track.halves, track)
            if track.points:
                self._bind(track_id[0], track)
        for (pid, *_), halves in self._asyncs.items():
            self._judge_halves((pid, None), halves, _Track())
        for ends in self._flows.values():
            self._judge_flow(ends)
        return self._verdicts

    def _track(self, event: Event) -> _Track:
        try:
            return self._spelled[event.pid, event.tid]
        except KeyError:
            track = self._tracks.setdefault((raw_number(event.pid), raw_number(event.tid)), _Track())
            self._spelled[event.pid, event.tid] = track
            return track

    def _judge_halves(self, track_id: TrackId, halves: list[_Half], track: _Track) -> None:
        is_async = track_id[1] is None

        def judge(begin: _Half, end: int, *, sliced: bool = True) -> str:
            start, place, _, name, category = begin
            why = self._criteria.judge(track_id, name, category, start, end, sliced=sliced)
            track.spans.append((start, -end, why))
            self._verdicts[place] = why
            return why

        open_: OpenSlices[_Half] = OpenSlices(_FOREVER)
        for half in sorted(halves):
            time, place, begins, name, category = half
            if begins:
                open_.begin(name, category, half)
                continue
            begin = open_.end(None, None) if is_async else open_.end(name, category)
            if begin is not None:
                self._verdicts[place] = judge(begin, time)
            elif is_async:
                judge(half, time, sliced=False)
        for begin in open_.slices:
            judge(begin, _FOREVER)

    def _bind(self, pid: Any, track: _Track) -> None:
        """Leave out the ends of arrows at slices that are left out."""
        spans = sorted(track.spans)
        starts = [start for start, _, _ in spans]
        begun = 0
        open_: list[tuple[int, str]] = []
        for time, place, following in sorted(track.points):
            while begun < len(spans) and spans[begun][0] <= time:
                open_.append((-spans[begun][1], spans[begun][2]))
                begun += 1
            while open_ and open_[-1][0] < time:
                open_.pop()
            if following:
                at = bisect_left(starts, time)
                found = spans[at][2] if at < len(spans) else None
            else:
                found = next((why for end, why in reversed(open_) if end >= time), None)
            if self._verdicts[place]:
                continue
            if found is None:
                self._verdicts[place] = self._criteria.judge_time(pid, time, time)
            elif found:
                self._verdicts[place] = "arrow"

    def _judge_flow(self, ends: list[tuple[int, str]]) -> None:
        """Leave out an arrow that has lost all its starts, or all its ends."""
        kept = [(place, phase) for place, phase in ends if not self._verdicts[place]]
        for side in ("st", "tf"):
            if any(phase in side for _, phase in ends) and not any(phase in side for _, phase in kept):
                for place, _ in kept:
                    self._verdicts[place] = "arrow"


def _async_id(event: Event) -> tuple[bytes, str]:
    found = decode_dict(event.id2)
    scoped = found.get("local", found.get("global"))
    return (raw_field(event.id), "") if scoped is None else (b"", str(scoped))
