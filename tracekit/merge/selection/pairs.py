"""Which events of a file go together: the halves of slices, and the arrows with the slices that they join.

A selection needs that before it writes: whether the first half of a slice belongs to it shows at its second half, which comes
later in the file, or earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.trace_event import (
    UNSET,
    Event,
    decode_dict,
    duration_of,
    name_and_category,
    raw_field,
    raw_number,
    time_field,
)
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from tracekit.merge.selection.criteria import Criteria, TrackId

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
