"""Which events of a file go together: the halves of slices, and the arrows with the slices that they join.

A selection needs that before it writes: whether the first half of a slice belongs to it shows at its second half, which comes
later in the file, or earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.formats.event_fields import raw_field, raw_number
from tracekit.formats.trace_event import UNSET, Event, decode_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.merge.selection.names import TrackId

__all__ = ["PAIRED", "Judge", "judge_pairs"]

PAIRED: Final = frozenset("BEbestf")
"""The phases of events that are judged together with others."""

_FOREVER: Final = 2**63 - 1

_AsyncHalf = tuple[int, int, bool, bytes, bytes]
"""Time, place among the paired events, whether it begins, category and name of a ``b`` or an ``e``."""


class Judge(Protocol):
    """Decides about single events."""

    def times_of(self, run: list[Event]) -> tuple[list[int | None], list[int]]:
        """Return the time and the duration of every event of a run."""

    def judge(self, track: TrackId, name: bytes, category: bytes, start: int, end: int, *, sliced: bool) -> str:
        """Return why something is left out; empty when it is not."""

    def judge_time(self, pid: Any, start: int, end: int) -> str:
        """Do the same for the time alone."""

    def judge_arrow(self, category: bytes) -> str:
        """Do the same for one end of an arrow, without a look at its slice and its time."""


@dataclass(slots=True)
class _Half:
    """A ``B`` or an ``E``."""

    time: int
    place: int  # among the paired events
    begins: bool
    name: bytes
    category: bytes


@dataclass(slots=True)
class _Track:
    spans: list[tuple[int, int, str]] = field(default_factory=list)  # start, -end, why it is left out
    halves: list[_Half] = field(default_factory=list)
    points: list[tuple[int, int, bool]] = field(
        default_factory=list
    )  # of arrows: time, place, whether the next slice counts


def judge_pairs(runs: Iterable[list[Event]], judge: Judge, *, arrows: bool) -> list[str]:
    """Judge all events of a file that go together with others.

    An ``E`` goes with its ``B`` as in `tracekit.merge.lanes`. An arrow ends at the innermost slice that is open at its time, or
    (``f`` without ``bp``) at the next one that begins, as in Perfetto; it is left out with either of its slices.

    Args:
        runs: The events of the file.
        judge: What decides about a slice, an instant and an arrow's end.
        arrows: Whether there are any; without, slices that are one event need not be remembered.

    Returns:
        For every event of the phases `PAIRED`, in the order of the file, why it is left out; empty when it is not.
    """
    survey = _Survey(judge, arrows=arrows)
    for run in runs:
        survey.take(run)
    return survey.finish()


class _Survey:
    def __init__(self, judge: Judge, *, arrows: bool) -> None:
        self._judge = judge
        self._arrows = arrows
        self._verdicts: list[str] = []
        self._tracks: dict[tuple[Any, Any], _Track] = {}
        self._spelled: dict[tuple[Any, Any], _Track] = {}  # the same, by ids as they stand in the file
        self._asyncs: dict[tuple[Any, ...], list[_AsyncHalf]] = {}
        self._flows: dict[tuple[bytes, bytes, bytes], list[tuple[int, str]]] = {}

    def take(self, run: list[Event]) -> None:
        """Look at a run of events."""
        times, durations = self._judge.times_of(run)
        for event, time, duration in zip(run, times, durations, strict=True):
            phase = event.ph[:1] if type(event.ph) is str else ""
            if phase == "X":
                if self._arrows and time is not None:
                    track, name = (event.pid, event.tid), raw_field(event.name)
                    why = self._judge.judge(track, name, raw_field(event.cat), time, time + duration, sliced=True)
                    self._track(event).spans.append((time, -time - duration, why))
                continue
            if phase not in PAIRED:
                continue
            place = len(self._verdicts)
            self._verdicts.append("")
            if time is None:
                continue
            if phase in "BE":
                half = _Half(time, place, phase == "B", _label(event.name), _label(event.cat))
                self._track(event).halves.append(half)
            elif phase in "be":
                key = (raw_number(event.pid), raw_field(event.cat), *_async_id(event))
                half_of_async = (time, place, phase == "b", raw_field(event.cat), raw_field(event.name))
                self._asyncs.setdefault(key, []).append(half_of_async)
            else:
                self._verdicts[place] = self._judge.judge_arrow(raw_field(event.cat))
                following = phase == "f" and event.bp is UNSET
                self._track(event).points.append((time, place, following))
                flow = (raw_field(event.cat), raw_field(event.name), raw_field(event.id))
                self._flows.setdefault(flow, []).append((place, phase))

    def finish(self) -> list[str]:
        """Return the verdicts, after the last run."""
        for track_id, track in self._tracks.items():
            self._judge_track(track_id, track)
        for (pid, *_), halves in self._asyncs.items():
            self._judge_async(pid, halves)
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

    def _judge_track(self, track_id: TrackId, track: _Track) -> None:
        open_: list[_Half] = []
        for half in sorted(track.halves, key=_when):
            if half.begins:
                open_.append(half)
                continue
            begin = next((other for other in reversed(open_) if _ends(half, other)), None)
            if begin is not None:
                open_.remove(begin)
                self._judge_halves(track_id, track, begin, half)
        for begin in open_:
            self._judge_halves(track_id, track, begin, None)
        if track.points:
            self._bind(track_id[0], track)

    def _judge_halves(self, track_id: TrackId, track: _Track, begin: _Half, end: _Half | None) -> None:
        until = _FOREVER if end is None else end.time
        why = self._judge.judge(track_id, begin.name, begin.category, begin.time, until, sliced=True)
        track.spans.append((begin.time, -until, why))
        for half in (begin, end):
            if half is not None:
                self._verdicts[half.place] = why

    def _bind(self, pid: Any, track: _Track) -> None:
        """Leave out the ends of arrows whose slice is left out."""
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
                self._verdicts[place] = self._judge.judge_time(pid, time, time)
            elif found:
                self._verdicts[place] = "arrow"

    def _judge_async(self, pid: Any, halves: list[_AsyncHalf]) -> None:
        open_: list[tuple[int, int, bytes, bytes]] = []
        for time, place, begins, category, name in sorted(halves):
            if begins:
                open_.append((time, place, category, name))
                continue
            start, begin, *of_begin = open_.pop() if open_ else (time, place, category, name)
            why = self._judge.judge((pid, None), of_begin[1], of_begin[0], start, time, sliced=begin != place)
            self._verdicts[place] = self._verdicts[begin] = why
        for time, place, category, name in open_:
            self._verdicts[place] = self._judge.judge((pid, None), name, category, time, _FOREVER, sliced=True)

    def _judge_flow(self, ends: list[tuple[int, str]]) -> None:
        """Leave out an arrow that has lost all its starts, or all its ends."""
        kept = [(place, phase) for place, phase in ends if not self._verdicts[place]]
        for side in ("st", "tf"):
            if any(phase in side for _, phase in ends) and not any(phase in side for _, phase in kept):
                for place, _ in kept:
                    self._verdicts[place] = "arrow"


def _when(half: _Half) -> tuple[int, int]:
    return half.time, half.place


def _ends(end: _Half, begin: _Half) -> bool:
    return end.name in (b"", begin.name) and end.category in (b"", begin.category)


def _label(raw: Any) -> bytes:
    """Return a name or category as text; an empty one is none, as for Perfetto."""
    text = raw_field(raw)
    return b"" if text == b'""' else text


def _async_id(event: Event) -> tuple[bytes, str]:
    found = decode_or_none(event.id2)
    scoped = found.get("local", found.get("global")) if isinstance(found, dict) else None
    return (raw_field(event.id), "") if scoped is None else (b"", str(scoped))
