"""The part of a selection that needs a look at single events: a verdict on each event of an input, before it is rewritten.

The halves of a slice go together, and so do arrows and the slices that they join. Whether the first half of a slice belongs to
a selection shows at its second half, which comes later in the file, or earlier. So a file is judged as a whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from fnmatch import translate
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.json.reader import TraceReader
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
from tracekit.merge.scan.probe import probe
from tracekit.merge.selection.steps import FOREVER, spans_of_steps
from tracekit.structs import Struct, field
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.merge.align.placement import Placement
    from tracekit.merge.scan.input import Input
    from tracekit.merge.selection.selection import Selection
    from tracekit.merge.selection.steps import Spans

_Half = tuple[int, int, bool, bytes, bytes]
"""Half of a slice: time, place among the events, whether it begins the slice, name and category."""

_ON_TRACKS: Final = frozenset("XBiIR")
"""The phases of events that stand in a slice of their thread."""


class EventFilter:
    """The selection for one input. Can be pickled.

    Its verdicts are the reason to leave an event out ("time", "step", "category", "duration", "name" or "arrow"), or an empty
    text to keep it.

    Args:
        selection: What is wanted.
        item: The input.
        window: The time window in the file's own time; None for all of it.
        steps: For each rank of the input the spans of its wanted steps, in the file's own time; None when all are wanted.
    """

    def __init__(self, selection: Selection, item: Input, window: Spans | None, steps: dict[int, Spans] | None) -> None:
        self._selection = selection
        self._rank = item.rank
        self._ranks = item.rank_of_pid
        self._unwanted = item.unwanted_ranks
        self._window = window
        self._steps = steps
        self._path = item.path
        self._limit_bytes = item.stamp.limit_bytes
        names = selection.names
        self.names = None if names is None else re.compile("|".join(map(translate, sorted(names))))

    def of_ranks(self, run: list[Event]) -> list[Event]:
        """Return a run without the events of ranks that are not selected."""
        return [event for event in run if self.takes_rank_of(event.pid)] if self._unwanted else run

    def takes_rank_of(self, pid: Any) -> bool:
        """Return True if the rank of a process is selected."""
        return self._ranks.get(raw_number(pid)) not in self._unwanted

    def verdicts(self) -> Iterator[str]:
        """Yield the verdict on each event of the file but metadata and events of ranks that are not selected, in its order.

        Raises:
            KeyError: The file is not what it was when it was scanned.
        """
        judge = _FileJudge(self)
        if self.names is not None:
            for run in self._runs():
                judge.note_names(run)
        for run in self._runs():
            judge.take(run)
        verdicts = judge.finish()
        del judge  # its notes are large
        yield from verdicts

    def _runs(self) -> Iterator[list[Event]]:
        with TraceReader(self._path, limit_bytes=self._limit_bytes) as reader:
            yield from map(self.of_ranks, reader.runs())

    def judge(
        self, pid: Any, name: bytes, category: bytes, start: int, end: int, *, sliced: bool, wanted: Sequence[int] = ()
    ) -> str:
        """Judge a slice or an instant; ``wanted`` are the starts of the events of its track with a wanted name, in order."""
        selection = self._selection
        if why := self.judge_time(pid, start, end):
            return why
        if selection.categories is not None and _names(category).isdisjoint(selection.categories):
            return "category"
        if why := self.judge_arrow(category):
            return why
        if sliced and end - start < selection.min_duration_ns:
            return "duration"
        if self.names is None or _fits(self.names, name):
            return ""
        # Slices of a track are nested: it is enough to look at the first wanted event that begins within one.
        at = bisect_left(wanted, start)
        return "" if at < len(wanted) and wanted[at] < end else "name"

    def judge_counter(self, pid: Any, name: bytes, time: int) -> str:
        """Judge a counter without a category, which no category leaves out."""
        why = self.judge_time(pid, time, time)
        return why or ("" if self.names is None or _fits(self.names, name) else "name")

    def judge_arrow(self, category: bytes) -> str:
        """Judge one end of an arrow, without its slice and its time."""
        excluded = self._selection.exclude_categories
        return "category" if excluded and not _names(category).isdisjoint(excluded) else ""

    def judge_time(self, pid: Any, start: int, end: int) -> str:
        """Judge something of this time."""
        if self._window is not None and not _overlaps(self._window, start, end):
            return "time"
        if self._steps is None or _overlaps(self._steps[self._ranks.get(raw_number(pid), self._rank)], start, end):
            return ""
        return "step"


def _overlaps(spans: Spans, start: int, end: int) -> bool:
    at = bisect_right(spans, start, key=itemgetter(1))
    return at < len(spans) and spans[at][0] < max(end, start + 1)


@lru_cache(maxsize=4096)
def _names(category: bytes) -> frozenset[str]:
    text = decode_or_none(category) if category else ""  # type: ignore[arg-type]
    return frozenset(name.strip() for name in text.split(",")) if isinstance(text, str) else frozenset()


@lru_cache(maxsize=1 << 16)
def _fits(pattern: re.Pattern[str], name: bytes) -> bool:
    text = decode_or_none(Raw(name)) if name else ""
    return isinstance(text, str) and pattern.match(text) is not None


class _Track(Struct):
    spans: list[tuple[int, int, str]] = field(default_factory=list)  # of slices: start, -end, verdict
    halves: list[_Half] = field(default_factory=list)
    points: list[tuple[int, int, bool]] = field(default_factory=list)  # of arrows: time, place, whether it ends later
    wanted: list[int] = field(default_factory=list)  # starts of events with a wanted name


class _FileJudge:
    """Judges all events of a file. Call `take` for each run, then `finish`.

    An ``E`` goes with its ``B`` as in `OpenSlices`. An arrow ends at the innermost slice that is open at its time, or (``f``
    without ``bp``) at the next one that begins, as in Perfetto; it is left out with either of its slices.
    """

    def __init__(self, chosen: EventFilter) -> None:
        self._chosen = chosen
        self._verdicts: list[str] = []
        self._tracks: dict[tuple[Any, Any], _Track] = {}
        self._spelled: dict[tuple[Any, Any], _Track] = {}  # the same, by ids as JSON text
        self._asyncs: dict[tuple[Any, ...], list[_Half]] = defaultdict(list)
        self._flows: dict[tuple[bytes, bytes, bytes], list[tuple[int, str]]] = defaultdict(list)

    def note_names(self, run: list[Event]) -> None:
        """Record where the wanted names are, for the slices around them; to be called for all runs before `take`."""
        assert self._chosen.names is not None
        for event in run:
            time = time_field(event.ts)
            if time is None or event.name is UNSET or event.ph not in _ON_TRACKS:
                continue
            if _fits(self._chosen.names, bytes(event.name)):
                self._track(event).wanted.append(time)

    def take(self, run: list[Event]) -> None:
        """Judge the events of a run that stand alone, and note the others."""
        chosen = self._chosen
        if not self._verdicts:
            for track in self._tracks.values():
                track.wanted.sort()
        for event in run:
            if event.ph == "M":
                continue
            place = len(self._verdicts)
            self._verdicts.append("")
            time = time_field(event.ts)
            if time is None:  # nothing can show it, as the next step says
                continue
            phase = event.ph[:1] if type(event.ph) is str else ""
            name, category = raw_field(event.name), raw_field(event.cat)
            if phase in ("B", "E"):
                self._track(event).halves.append((time, place, phase == "B", *name_and_category(event)))
            elif phase in ("b", "e"):
                key = (raw_number(event.pid), category, *_async_id(event))
                self._asyncs[key].append((time, place, phase == "b", name, category))
            elif phase in ("s", "t", "f"):
                self._verdicts[place] = chosen.judge_arrow(category)
                self._track(event).points.append((time, place, phase == "f" and event.bp is UNSET))
                self._flows[category, name, raw_field(event.id)].append((place, phase))
            elif phase == "C" and category in (b"", b'""'):
                self._verdicts[place] = chosen.judge_counter(event.pid, name, time)
            else:
                end, sliced, track = time + duration_of(event), phase == "X", self._track(event)
                why = chosen.judge(event.pid, name, category, time, end, sliced=sliced, wanted=track.wanted)
                self._verdicts[place] = why
                if sliced:
                    track.spans.append((time, -end, why))

    def finish(self) -> list[str]:
        """Return the verdicts on all events taken."""
        for (pid, _), track in self._tracks.items():
            self._judge_halves(pid, track.halves, track)
            if track.points:
                self._bind(pid, track)
        for (pid, *_), halves in self._asyncs.items():
            self._judge_halves(pid, halves, None)
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

    def _judge_halves(self, pid: Any, halves: list[_Half], track: _Track | None) -> None:
        """Judge the slices of a track, or (None) the async slices of an id."""

        def judge(begin: _Half, end: int, *, sliced: bool = True) -> str:
            start, place, _, name, category = begin
            wanted = () if track is None else track.wanted
            why = self._chosen.judge(pid, name, category, start, end, sliced=sliced, wanted=wanted)
            if track is not None:
                track.spans.append((start, -end, why))
            self._verdicts[place] = why
            return why

        open_: OpenSlices[_Half] = OpenSlices(FOREVER)
        for half in sorted(halves):
            time, place, begins, name, category = half
            if begins:
                open_.begin(name, category, half)
                continue
            begin = open_.end(None, None) if track is None else open_.end(name, category)
            if begin is not None:
                self._verdicts[place] = judge(begin, time)
            elif track is None:
                judge(half, time, sliced=False)
        for begin in open_.slices:
            judge(begin, FOREVER)

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
                self._verdicts[place] = self._chosen.judge_time(pid, time, time)
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


def make_filters(selection: Selection, items: list[Input], placed: Placement) -> list[EventFilter | None]:
    """Return the filter of every input; None for one that is taken whole."""
    window = None
    if selection.time_window is not None:
        start_ns = min(placed.time_ns(number, _first_ns(item)) for number, item in enumerate(items))
        low, high = selection.window_ns(placed.base_ns, start_ns)
        window = -FOREVER if low is None else low, FOREVER if high is None else high
    steps = None if selection.steps is None else spans_of_steps(items, placed, selection.steps)

    def make(number: int, item: Input) -> EventFilter | None:
        if not selection.of_events and not item.unwanted_ranks:
            return None
        shift = placed.shifts_ns[number]
        own = steps and {rank: [(start - shift, end - shift) for start, end in steps[rank]] for rank in item.ranks}
        file_window = window and [(placed.file_ns(number, window[0]), placed.file_ns(number, window[1]))]
        return EventFilter(selection, item, file_window, own)

    return [make(number, item) for number, item in enumerate(items)]


def _first_ns(item: Input) -> int:
    """Return when the first event of an input is, in the file's own time."""
    whole = item if item.whole else probe(item.path, whole=True)  # the first event may be anywhere
    return whole.first_ns or 0
