"""Lanes: keeps the slices of every track nested, and adds the starts of open slices.

Viewers draw a track as a stack: two slices on it nest or do not touch (Trace Event Format; Perfetto before v57 drops
slices that overlap). The slices of a thread nest if its markers close in reverse order of opening. Interleaved asyncio
tasks, generators and unordered ``start`` and ``finish`` calls break this rule. A slice that would overlap moves to a
separate track, a lane.

An interrupt such as Ctrl-C can leave a ``with`` before the slice ends. Such an abandoned slice ends with the slice
around it.
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

OpenSlice = tuple[int, int, int]  # (label, start in monotonic ns, track)
_STILL_OPEN: Final = sys.maxsize
# Number of flushes that test whether an open slice was abandoned, after the slice around it has ended
_ASK_TIMES: Final = 8


class Lanes:
    """Arranges the records of each flush; counts in ``left`` the abandoned slices that it has ended. For the writer thread."""

    __slots__ = ("_announced", "_asked", "_buffer", "_lanes", "_twins", "left")

    def __init__(self, buffer: RecordBuffer) -> None:
        self.left = 0
        self._buffer = buffer
        # Open slices that outlived the slice around them: the label of that slice, and the number of tests so far.
        self._asked: dict[tuple[int, int], tuple[int, int]] = {}
        # Slices with a delivered start: (label, lane) by (start, track).
        self._announced: dict[tuple[int, int], tuple[int, int]] = {}
        self._lanes: dict[int, list[int]] = {}  # track: its additional lanes
        # Keys of several slices, if the clock is frozen. Their starts are delivered one at a time.
        self._twins: set[tuple[int, int]] = set()

    def arrange(self, records: list[Any], opened: Sequence[OpenSlice], cut_ns: int) -> list[Any]:
        """Return the records with the starts of open slices added, and without overlaps on any track.

        The records up to the cut are changed in place; slices of one track are sorted by their ends. ``opened`` are
        the open slices at the cut.
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
            # Neither open nor ended: the end was lost to a lack of memory or to Ctrl-C. End them here, the innermost
            # first.
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
            # In front: a slice that is cut short ends at the same time as the slice around it, and must end first.
            cut_short[:0] = self._untangle(track, records, opened)
        for key, index in finished:
            if index is not None:
                position = index * WIDTH
                announced = self._announced.pop(key, None)
                if announced is not None:  # otherwise it continues on another lane, as a whole slice
                    records[position + 1 : position + WIDTH] = (records[position + 2], END, announced[1])
        for label, start, track in opened:
            if (start, track) not in self._announced:
                self._announced[start, track] = (label, track)
                records += (label, start, BEGIN, track)
        return cut_short + records if cut_short else records

    def _end_left(
        self, tangled: set[int], records: list[Any], opened: Sequence[OpenSlice], cut_ns: int
    ) -> Collection[tuple[int, int]]:
        """End abandoned slices at the end of the innermost slice around each; return (start, track) of the ended ones.

        A slice that its ``with`` may still end is tested again at the next flush, because its marker may have been in
        use.
        """
        around = {  # end and label of the slice around it, number of tests so far
            key: (cut_ns, label, times) for key, (label, times) in self._asked.items() if times < _ASK_TIMES
        }
        labels = {slice_[1:]: slice_[0] for slice_ in opened}
        starts: dict[int, list[int]] = {}
        for start, track in sorted(labels):
            if track in tangled and (start, track) not in self._asked:
                starts.setdefault(track, []).append(start)
        columns = (records[column::WIDTH] for column in range(WIDTH))
        for label, start, end, track in zip(*columns, strict=True) if starts else ():
            inside = starts.get(track) if end > start else None  # otherwise not a slice, perhaps without a track
            if inside is None or start >= inside[-1]:
                continue
            for number in range(bisect_right(inside, start), bisect_left(inside, end)):
                key = inside[number], track
                around[key] = min(around.get(key, (end, label, 0)), (end, label, 0))
        if not around:
            return ()
        left = self._buffer.forget_left({key: label for key, (_, label, _) in around.items()})
        for key in sorted(left, reverse=True):  # an inner slice ends before the slice around it
            records += (labels[key], key[0], around[key][0], key[1])
        self._asked.update({key: (label, times + 1) for key, (_, label, times) in around.items() if key not in left})
        self.left += len(left)
        return left

    def _look(self, records: list[Any], opened: Sequence[OpenSlice]) -> set[int]:
        """Return the tracks with overlapping slices: an earlier slice that is not inside must end before the next starts."""
        still_open = sorted(opened, key=_start, reverse=True)
        if not isinstance(records, list):
            return records.overlapping(
                [entry for _, start, track in still_open for entry in (0, start, _STILL_OPEN, track)]
            )
        tangled: set[int] = set()
        outermost: dict[int, list[tuple[int, int]]] = {}  # by track: (start, end) of the slices that none contains yet
        columns = records[1::WIDTH], records[2::WIDTH], records[3::WIDTH]
        slices = chain(zip(*columns, strict=True), ((start, _STILL_OPEN, track) for _, start, track in still_open))
        for start, end, track in slices:
            if end < 0:
                continue  # not a slice
            before = outermost.setdefault(track, [])
            while before and before[-1][0] >= start:
                before.pop()
            if before and before[-1][1] > start:
                tangled.add(track)
            before.append((start, end))
        return tangled

    def _untangle(self, track: int, records: list[Any], opened: Sequence[OpenSlice]) -> list[Any]:
        """Distribute the slices of one track over lanes so that they nest. Outer and earlier slices are placed first.

        Return records that end a slice before its real end, innermost first: its start is delivered and it cannot
        stay on its lane.
        """
        slices: list[tuple[int, int, int, int]] = [  # start, -end, position (-1: open), label
            (records[position + 1], -records[position + 2], position, records[position])
            for position in range(0, len(records), WIDTH)
            if records[position + 3] == track and records[position + 2] >= 0
        ]
        slices += [(start, -_STILL_OPEN, -1, label) for label, start, where in opened if where == track]
        slices.sort()
        cut_short: list[Any] = []
        ends: dict[int, list[int]] = {}  # lane: ends of the slices that are open on it at the current start
        to_place: list[tuple[int, int, int, int, int]] = []  # start on its lane, -end, position, label, true start
        # First the slices with a delivered start. All were open at the last flush, each inside the previous one on its
        # lane.
        for start, minus_end, position, label in slices:
            announced = self._announced.get((start, track))
            if announced is None:
                to_place.append((start, minus_end, position, label, start))
                continue
            lane = announced[1]
            around = ends.setdefault(lane, [])
            if around and around[-1] < -minus_end:
                # The slice around it ends first. End this one at the same time, and continue it on another lane.
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
        """Return the first lane of a track where (start, end) nests, and reserve it for this slice.

        Slices with the same start get different lanes: viewers draw a whole slice (X) outside a start (B) of the same
        time.
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
    """Return each key (start, track) with the index of its slice in the records, or None if there is no such slice."""
    if not isinstance(records, list):
        return [(key, records.find(*key)) for key in keys]
    starts, ends, tracks = records[1::WIDTH], records[2::WIDTH], records[3::WIDTH]
    return [(key, _find(starts, ends, tracks, *key)) for key in keys]


def _find(starts: list[int], ends: list[int], tracks: list[Any], start: int, track: int) -> int | None:
    """Return the index of the slice that started at this time on this track, or None. An instant may mark its start."""
    index = -1
    try:
        while True:
            index = starts.index(start, index + 1)
            if ends[index] >= 0 and tracks[index] == track:
                return index
    except ValueError:
        return None


def _start(slice_: OpenSlice) -> int:
    return slice_[1]
