"""Keeps the slices of every track properly nested, and shows slices that are still open.

Viewers draw a track as a stack: two slices on it either nest or do not touch (Trace Event Format; Perfetto before v57 drops
what overlaps). Threads give that by themselves as long as markers are closed in the order they were opened. Interleaved asyncio
tasks, generators and free use of ``start`` and ``finish`` break it; what would overlap then gets a lane of its own. So does an
interrupt that leaves a ``with`` before its slice could end; such a slice ends here, with what is around it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, END, WIDTH

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tracekit.recording.buffer import RecordBuffer

__all__ = ["Lanes", "OpenSlice"]

OpenSlice = tuple[int, int, int]
"""(label, start in monotonic ns, track)"""

_STILL_OPEN: Final = sys.maxsize

_ASK_TIMES: Final = 8
"""How often it is asked whether the ``with`` of an open slice was left, once what was around it has ended."""


class Lanes:
    """Arranges the records of each flush; used by one thread, the writer's.

    Attributes:
        left: How many slices it has ended because their ``with`` was left.
    """

    __slots__ = ("_announced", "_asked", "_buffer", "_lanes", "_twins", "left")

    def __init__(self, buffer: RecordBuffer) -> None:
        self.left = 0
        self._buffer = buffer
        # Open slices that may outlive what was around them: its label, and how often it was asked whether they were left.
        self._asked: dict[tuple[int, int], tuple[int, int]] = {}
        self._announced: dict[tuple[int, int], tuple[int, int]] = {}  # (start, track): (label, lane) of a begun slice
        self._lanes: dict[int, list[int]] = {}  # track: the lanes beside it
        self._twins: set[tuple[int, int]] = (
            set()
        )  # slices of one start: a clock may stand still. One is announced at a time

    def arrange(self, records: list[Any], opened: Sequence[OpenSlice], cut_ns: int) -> list[Any]:
        """Return the records, with starts of open slices added and nothing overlapping on any track.

        Args:
            records: Whole slices that ended up to the cut, instants and counters up to it. Slices of one track are in the
                order in which they ended. Changed in place.
            opened: The slices that are open at the cut.
            cut_ns: The monotonic time of this flush.
        """
        open_now = {slice_[1:]: slice_ for slice_ in opened}
        if len(open_now) < len(opened):
            count = Counter(slice_[1:] for slice_ in opened)
            self._twins.update(key for key in count if count[key] > 1)
            opened = list(open_now.values())
        ended = [key for key in self._announced if key not in open_now or key in self._twins]
        finished = _find_all(records, ended)
        lost = sorted((key for key, index in finished if index is None and key not in open_now), reverse=True)
        if lost:
            # Neither open nor ended: an end that there was no memory for, or that Ctrl-C took. It ends here, the inner first.
            for start, track in lost:
                records += (self._announced[start, track][0], start, cut_ns, track)
            finished = _find_all(records, ended)
        cut_short: list[Any] = []
        tangled = self._look(records, opened)
        if self._asked:
            self._asked = {key: asked for key, asked in self._asked.items() if key in open_now}
        left = self._end_left(tangled, records, opened, cut_ns) if tangled or self._asked else ()
        if left:
            return self.arrange(records, [slice_ for slice_ in opened if slice_[1:] not in left], cut_ns)
        for track in tangled:
            # In front, since what is cut short ends at the same time as what was around it, and must end first.
            cut_short[:0] = self._untangle(track, records, opened)
        for key, index in finished:
            if index is not None:
                position = index * WIDTH
                announced = self._announced.pop(key, None)
                if announced is not None:  # else it goes on on another lane, as a whole slice
                    records[position + 1 : position + WIDTH] = (records[position + 2], END, announced[1])
        for label, start, track in opened:
            if (start, track) not in self._announced:
                self._announced[start, track] = (label, track)
                records += (label, start, BEGIN, track)
        return cut_short + records if cut_short else records

    def _end_left(
        self, tangled: set[int], records: list[Any], opened: Sequence[OpenSlice], cut_ns: int
    ) -> Collection[tuple[int, int]]:
        """End the slices whose ``with`` was left without their end, with the innermost that was around each.

        One that may still be ended is asked for again at the next flush: its marker may just have been in use.

        Returns:
            Which (start, track) these were.
        """
        around = {  # end of what was around, its label, how often it was asked for
            key: (cut_ns, label, times) for key, (label, times) in self._asked.items() if times < _ASK_TIMES
        }
        labels = {slice_[1:]: slice_[0] for slice_ in opened}
        starts: dict[int, list[int]] = {}
        for start, track in sorted(labels):
            if track in tangled and (start, track) not in self._asked:
                starts.setdefault(track, []).append(start)
        columns = (records[column::WIDTH] for column in range(WIDTH))
        for label, start, end, track in zip(*columns, strict=True) if starts else ():
            inside = starts.get(track) if end > start else None  # else it is no slice, and may have no track
            if inside is None or start >= inside[-1]:
                continue
            for number in range(bisect_right(inside, start), bisect_left(inside, end)):
                key = inside[number], track
                around[key] = min(around.get(key, (end, label, 0)), (end, label, 0))
        if not around:
            return ()
        left = self._buffer.forget_left({key: label for key, (_, label, _) in around.items()})
        for key in sorted(left, reverse=True):  # an inner one ends before what is around it
            records += (labels[key], key[0], around[key][0], key[1])
        self._asked.update({key: (label, times + 1) for key, (_, label, times) in around.items() if key not in left})
        self.left += len(left)
        return left

    def _look(self, records: list[Any], opened: Sequence[OpenSlice]) -> set[int]:
        """Find the tracks on which slices overlap. This is a part of what every slice costs.

        Slices come in the order of their ends, so that one is nested if those it does not contain ended before it started.
        """
        still_open = sorted(opened, key=_start, reverse=True)
        if not isinstance(records, list):
            return records.overlapping(
                [entry for _, start, track in still_open for entry in (0, start, _STILL_OPEN, track)]
            )
        tangled: set[int] = set()
        # By track, the starts and the ends of slices that nothing contains yet, but for the last of them: that is in `last_...`.
        stacks: dict[int, tuple[list[int], list[int]]] = {}
        around_starts, around_ends = [], []  # those of the track of the last slice
        last_track = last_start = last_end = -1
        columns = records[1::WIDTH], records[2::WIDTH], records[3::WIDTH]
        slices: Iterable[tuple[int, int, Any]] = zip(*columns, strict=True)
        if opened:
            slices = chain(slices, ((start, _STILL_OPEN, track) for _, start, track in still_open))
        for start, end, track in slices:
            if end < 0:
                continue  # no slice
            if track != last_track:
                around_starts.append(last_start)
                around_ends.append(last_end)
                last_track = track
                around_starts, around_ends = stacks.setdefault(track, ([-1], [-1]))
                last_start, last_end = around_starts.pop(), around_ends.pop()
            if start < last_end:
                while last_start >= start:
                    last_start, last_end = around_starts.pop(), around_ends.pop()
                if last_end > start:
                    tangled.add(track)
            around_starts.append(last_start)
            around_ends.append(last_end)
            last_start, last_end = start, end
        return tangled

    def _untangle(self, track: int, records: list[Any], opened: Sequence[OpenSlice]) -> list[Any]:
        """Give the slices of one track lanes on which they nest, the outer and the earlier first.

        Returns:
            Ends of slices whose start is out already, and which cannot stay on their lane to their end; innermost first.
        """
        slices: list[tuple[int, int, int, int]] = [  # start, -end, position (-1: open), label
            (records[position + 1], -records[position + 2], position, records[position])
            for position in range(0, len(records), WIDTH)
            if records[position + 3] == track and records[position + 2] >= 0
        ]
        slices += [(start, -_STILL_OPEN, -1, label) for label, start, where in opened if where == track]
        slices.sort()
        cut_short: list[Any] = []
        ends: dict[int, list[int]] = {}  # lane: ends of the slices that are open on it at the time looked at
        to_place: list[tuple[int, int, int, int, int]] = []  # start on its lane, -end, position, label, true start
        # First those whose start is out: all of them were open at the last flush, each inside the one before on its lane.
        for start, minus_end, position, label in slices:
            announced = self._announced.get((start, track))
            if announced is None:
                to_place.append((start, minus_end, position, label, start))
                continue
            lane = announced[1]
            around = ends.setdefault(lane, [])
            if around and around[-1] < -minus_end:
                # What is around it ends first: end it there as well, and go on beside it.
                cut_short[:0] = (label, around[-1], END, lane)
                to_place.append((around[-1], minus_end, position, label, start))
                around.append(around[-1])
            else:
                around.append(-minus_end)
        to_place.sort()
        begun: set[tuple[int, int]] = set()  # (lane, start)
        for start, minus_end, position, label, true_start in to_place:
            lane = self._free_lane(track, ends, begun, start, -minus_end)
            if position >= 0:
                self._announced.pop((true_start, track), None)
                records[position + 1] = start
                records[position + 3] = lane
            else:
                self._announced[true_start, track] = (label, lane)
                records += (label, start, BEGIN, lane)
        return cut_short

    def _free_lane(
        self, track: int, ends: dict[int, list[int]], begun: set[tuple[int, int]], start: int, end: int
    ) -> int:
        """Return the first lane of a track on which (start, end) nests, and take it.

        What goes on from one moment gets a lane each: of a start (B) and a whole slice (X) at one time, viewers take the whole
        slice for the outer one.
        """
        lanes = self._lanes.setdefault(track, [])
        for lane in (track, *lanes):
            taken = ends.setdefault(lane, [])
            while taken and taken[-1] <= start:
                taken.pop()
            if (lane, start) not in begun and (not taken or taken[-1] >= end):
                taken.append(end)
                begun.add((lane, start))
                return lane
        name = f"{self._buffer.tracks[track].name} · overlap {len(lanes) + 1}"
        lane = self._buffer.new_track(name)
        lanes.append(lane)
        ends[lane] = [end]
        begun.add((lane, start))
        return lane


def _find_all(records: list[Any], keys: Iterable[tuple[int, int]]) -> list[tuple[tuple[int, int], int | None]]:
    """Return each key, (start, track), with the index of its slice, or None where it is not among the records."""
    if not isinstance(records, list):
        return [(key, records.find(*key)) for key in keys]
    starts, tracks = records[1::WIDTH], records[3::WIDTH]
    return [(key, _find(starts, tracks, *key)) for key in keys]


def _find(starts: list[int], tracks: list[Any], start: int, track: int) -> int | None:
    """Return the index of the slice that started at this time on this track, or None."""
    index = -1
    try:
        while True:
            index = starts.index(start, index + 1)
            if tracks[index] == track:
                return index
    except ValueError:
        return None


def _start(slice_: OpenSlice) -> int:
    return slice_[1]
