"""The output of a unit while it is made, and the slices that move once all are known: the plain version of the core's class.

A track holds slices that nest. Perfetto before v57 drops an ``X`` that begins inside another one and ends after it
(``slice_drop_overlapping_complete_event``), later versions move it aside. GPU streams, threads with rounded times, and a
marker and an operator measured by two clocks have such slices. They move to a lane, so that nothing is lost.

Every slice is written to its own track, and its times and its place in the output are logged. When all are known, the lanes
are assigned, and the log yields patches: bytes to be put over the output.
"""

from __future__ import annotations

import os
import sys
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import MAX_DEPTH
from tracekit.traces.external_sort import ExternalSort
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.core import _merge

    AnyRewriter: TypeAlias = "_merge.Rewriter | Rewriter"

FLOWS: Final = frozenset(map(ord, "stf"))

_BEGIN: Final = ord("B")
_END: Final = ord("E")
_TID_BYTES: Final = 10
"""Every thread id is written with so many characters, so that another one fits in its place."""
_SEPARATOR: Final = b",\n"
_NOWHERE: Final = -1
_HALF: Final = (1 << 31) - 1

# Rows of one track at one time are in this order, which is Perfetto's; of one kind the longer slices come first.
_WHOLE, _JOINED, _FLOW = range(3)

NEVER_ENDS: Final = 2**63 - 1

_MAX_SNAPPED_NS: Final = 2**57 - 1


def label(name: bytes, category: bytes) -> int:
    """Return a number for a name and a category as JSON, which matches the halves of a slice; 0 without both."""
    # Perfetto takes an empty name for none.
    first, second = (0 if text in (b"", b'""') else (hash(text) & _HALF) | 1 for text in (name, category))
    return first << 32 | second


class Rewriter:
    """Collects the events of one unit as text, with `,` and a line break behind each."""

    def __init__(self, folder: str | None = None, snap_ns: int = 0) -> None:
        self._snap_ns = snap_ns
        self._out: list[bytes] = []
        self._position = 0
        # log, start, kind, -end, position of the tid, of the tid of its E, of its duration
        self._rows = ExternalSort(folder)
        # log, time, position of the event, B or E, label, place of the tid, length
        self._halves = ExternalSort(folder)
        # position, length, thread id, or -duration, or 0 for white space
        self._patches = ExternalSort(folder)
        self._left: Iterator[tuple[int, bytes]] = iter(())
        self._next: tuple[int, bytes] | None = None

    label = staticmethod(label)

    def append(
        self,
        text: bytes,
        log: int = -1,
        kind: int = 0,
        time_ns: int = 0,
        end_ns: int = 0,
        tid_at: int = 0,
        found: int = 0,
        dur_at: int = 0,
        dur_size: int = 0,
    ) -> None:
        """Add an event, without a separator.

        Args:
            text: The event; empty adds nothing.
            log: The number of its track; -1 where it is on none that slices can leave.
            kind: Its phase as a number: X, B, E, s, t or f.
            time_ns: When it begins, in the merged trace.
            end_ns: When it ends.
            tid_at: The place of its thread id in the text.
            found: The `label` of a B or E.
            dur_at: The place of its duration in the text.
            dur_size: The number of characters of the duration.
        """
        if not text:
            return
        position = self._position
        if log >= 0 and kind in (_BEGIN, _END):
            self._halves.add((log, time_ns, position, kind, found, tid_at, len(text) + 1))
        elif log >= 0 and kind in FLOWS:
            self._rows.add((log, time_ns, _FLOW, 0, position + tid_at, _NOWHERE, 0))
        elif log >= 0:
            duration = (position + dur_at) << 8 | dur_size if dur_size else 0
            self._rows.add((log, time_ns, _WHOLE, -end_ns, position + tid_at, _NOWHERE, duration))
        self._out.append(text)
        self._position = position + len(text) + len(_SEPARATOR)

    def take(self) -> bytes:
        """Return the output since the last take."""
        if not self._out:
            return b""
        self._out.append(b"")
        text = _SEPARATOR.join(self._out)
        self._out.clear()
        return text

    def write(self, descriptor: int, offset: int) -> int:
        """Write the output since the last take into a file in which the output begins at an offset; return its size."""
        text = self.take()
        size_bytes = len(text)
        offset += self._position - size_bytes
        while text:
            size = os.pwrite(descriptor, text, offset)
            text, offset = text[size:], offset + size
        return size_bytes

    def overlaps(self) -> bool:
        """Return False: before `finish`, no slices are known to overlap."""
        return False

    def finish(
        self, allot: Callable[[int, int], int], snaps: Callable[[int], bool] | None = None
    ) -> tuple[int, int, int, int]:
        """Find the slices that must leave their tracks.

        Args:
            allot: Returns the thread id for a lane of the track with a number.
            snaps: Returns True for the number of a track if its small overlaps are to be removed.

        Returns:
            The numbers of events that move, of removed ends without a begin and of shortened slices; the longest cut of
            a slice in ns.
        """
        lost = sum(self._pair(log, halves) for log, halves in groupby(self._halves, itemgetter(0)))
        moved = snapped = largest_ns = 0
        for log, rows in groupby(self._rows, itemgetter(0)):
            snap_ns = self._snap_ns if snaps is not None and snaps(log) else 0
            found = self._assign(rows, lambda lane, log=log: allot(log, lane), snap_ns)  # type: ignore[misc]
            moved, snapped, largest_ns = moved + found[0], snapped + found[1], max(largest_ns, found[2])
        self._halves.close()
        self._rows.close()
        self._left = self._patches_in_order()
        self._next = next(self._left, None)
        return moved, lost, snapped, largest_ns

    def _pair(self, log: int, halves: Iterable[tuple[Any, ...]]) -> int:
        """Join the halves of the slices of a track; return the number of ends without a begin, which become white space."""
        open_: OpenSlices[tuple[int, int]] = OpenSlices(sys.maxsize)
        lost = 0
        for _, time, position, kind, found, tid_at, length in halves:
            if kind == _BEGIN:
                open_.begin(found >> 32, found & _HALF, (time, position + tid_at))
            elif begun := open_.end(found >> 32, found & _HALF):
                self._rows.add((log, begun[0], _JOINED, -time, begun[1], position + tid_at, 0))
            else:
                lost += 1
                self._patches.add((position, length, 0))
        for start, begin in open_.slices:
            self._rows.add((log, start, _JOINED, -NEVER_ENDS, begin, _NOWHERE, 0))
        return lost

    def _assign(
        self, rows: Iterable[tuple[Any, ...]], allot: Callable[[int], int], snap_ns: int
    ) -> tuple[int, int, int]:
        """Put the slices of a track on lanes; return how many events move, how many slices are shortened, and the maximum."""
        lanes, tids = Lanes(), [0]
        moved = snapped = largest_ns = 0
        last_start, goes, stays = None, 0, False  # the last start of a slice, and where the slices go that start then
        for _, start, kind, minus_end, position, closing, duration in rows:
            if kind == _FLOW:
                # The end of an arrow goes with the slice that begins at its time.
                if start == last_start and goes and not stays:
                    self._patches.add((position, _TID_BYTES, goes))
                continue
            if snap_ns and kind == _WHOLE:
                for place, shortened, overlap in lanes.shorten(start, -minus_end, snap_ns):
                    self._patches.add((place >> 8, place & 255, -shortened))
                    snapped, largest_ns = snapped + 1, max(largest_ns, overlap)
            lane = lanes.take(start, -minus_end, duration)
            if lane == len(tids):
                tids.append(allot(lane))
            if start != last_start:
                last_start, goes, stays = start, 0, False
            if not lane:
                stays = True
                continue
            goes = tids[lane]
            for place in (position, closing):
                if place != _NOWHERE:
                    moved += 1
                    self._patches.add((place, _TID_BYTES, goes))
        return moved, snapped, largest_ns

    def first_patch(self) -> int:
        """Return the position of the next patch, behind all output if there is none."""
        return self._position if self._next is None else self._next[0]

    def write_patches(self, descriptor: int, offset: int) -> None:
        """Write the remaining patches over a file in which the output begins at an offset, which may be negative."""
        while self._next is not None:
            position, patch = self._next
            os.pwrite(descriptor, patch, offset + position)
            self._next = next(self._left, None)

    def lay(self, text: bytes, position: int) -> bytes:
        """Return a stretch of output with the patches laid over it. Call it for the stretches in their order."""
        changed = bytearray(text)
        while self._next is not None and self._next[0] < position + len(text):
            at, patch = self._next
            changed[at - position : at - position + len(patch)] = patch
            self._next = next(self._left, None)
        return bytes(changed)

    def _patches_in_order(self) -> Iterator[tuple[int, bytes]]:
        for position, length, tid in self._patches:
            patch = b"%d" % tid if tid > 0 else format_us(-tid) if tid else b""
            yield position, patch.ljust(length)


class Lanes:
    """The lanes of a track, while its slices come in the order of their starts. Takes n log n time for n slices.

    A slice belongs on the first lane where it is inside, or after, the open slices, and at most `MAX_DEPTH` deep.
    Lane 0 is the track itself.
    """

    def __init__(self) -> None:
        self._track: list[tuple[int, int, int]] = []  # end, start and place of the duration of each open slice
        self._stacks: list[list[int]] = []  # ends of the open slices of lane 1 and so on
        self._ends: list[tuple[int, int]] = []  # a heap of them, each with its place in `_stacks`
        # For each lane from 1 the latest end of a slice that fits on it, and above them the latest of two neighbours.
        self._fits = [NEVER_ENDS, NEVER_ENDS]
        self._size = 1

    def shorten(self, start: int, end: int, snap_ns: int) -> list[tuple[int, int, int]]:
        """End slices of the track that reach into a slice that comes now, if none reaches farther than ``snap_ns``.

        Returns:
            For each the place of its duration, the new duration, and by how much it is shorter.
        """
        track = self._track
        while track and track[-1][0] <= start:
            track.pop()
        kept = len(track)
        while kept and track[kept - 1][0] < end:
            kept -= 1
            old, begin, place = track[kept]
            if not place or old - start > snap_ns or not 0 < start - begin <= _MAX_SNAPPED_NS:
                return []
        found = [(place, start - begin, old - start) for old, begin, place in track[kept:]]
        del track[kept:]
        return found

    def take(self, start: int, end: int, place: int = 0) -> int:
        """Put a slice on the first lane where it fits; return the lane. ``place`` is that of its duration."""
        track = self._track
        while track and track[-1][0] <= start:
            track.pop()
        if (not track or end <= track[-1][0]) and len(track) < MAX_DEPTH:
            track.append((end, start, place))
            return 0
        while self._ends and self._ends[0][0] <= start:
            _, number = heappop(self._ends)
            self._stacks[number].pop()
            self._update(number)
        number = self._find(end)
        if number == len(self._stacks):
            self._stacks.append([])
        self._stacks[number].append(end)
        heappush(self._ends, (end, number))
        self._update(number)
        return number + 1

    def _find(self, end: int) -> int:
        if self._fits[1] < end:
            self._size *= 2
            self._fits = [NEVER_ENDS] * (2 * self._size)
            for number in range(len(self._stacks)):
                self._update(number)
        node = 1
        while node < self._size:
            node = 2 * node if self._fits[2 * node] >= end else 2 * node + 1
        return node - self._size

    def _update(self, number: int) -> None:
        stack = self._stacks[number]
        value = NEVER_ENDS if not stack else stack[-1] if len(stack) < MAX_DEPTH else -NEVER_ENDS
        node = self._size + number
        self._fits[node] = value
        while node > 1:
            node //= 2
            self._fits[node] = max(self._fits[2 * node], self._fits[2 * node + 1])
