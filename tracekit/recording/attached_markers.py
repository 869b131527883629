"""AttachedMarkers: the markers of one profiler, and their current state under its schedule."""

# ruff: noqa: SLF001 - the test for open slices and the change to sleep are one step, on private attributes of a marker

from __future__ import annotations

import gc
import sys
from collections import Counter
from types import AsyncGeneratorType, BuiltinMethodType, CoroutineType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Final

from tracekit.recording.marker import Marker
from tracekit.recording.marker_state import MarkerState
from tracekit.recording.one_step import one_step
from tracekit.recording.recording_marker import AsleepMarker, marker_classes
from tracekit.recording.tasks import TaskTracks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.inline import InlineHandlers
    from tracekit.recording.lanes import OpenSlice
    from tracekit.recording.schedule import ProfilerAction

# Above this number of awake markers, the writer sends unused ones to sleep. Every flush visits all awake markers.
_MANY_AWAKE: Final = 1_000
# The writer does so at one in this many calls of `open_slices`. A marker in use is most likely used in between.
_LOOKS: Final = 16
# Stop searching after this many searches in a row that forget no slice. A search visits all objects (15 ms with torch).
# The program then most likely has generators that are suspended inside a `with`.
_SEARCHES: Final = 32
_EXITS: Final = ("__exit__", "__aexit__")

_SUSPENDED: Final = (GeneratorType, CoroutineType, AsyncGeneratorType)


class AttachedMarkers:
    """Attaches markers to a buffer, and changes the state of all of them together.

    A change of the schedule reaches open markers immediately. Every other marker is asleep until its next use, and
    changes then. The cost of a change therefore grows with the markers in use, not with the markers that exist. Any
    thread may add markers, also during a change of state. ``observer`` receives every event synchronously; set before
    the first `pass_to`.
    """

    def __init__(self, buffer: RecordBuffer, clock: Callable[[], int]) -> None:
        self.observer: InlineHandlers | None = None
        self._buffer = buffer
        self._classes = marker_classes(clock)
        self._task_tracks = TaskTracks(buffer)
        self._markers: dict[int, Marker] = {}  # by id(): two threads may add the same marker
        self._awake: dict[int, Marker] = {}
        self._looks = 0
        self._searches = _SEARCHES
        self._action: ProfilerAction | None = None  # nothing is recorded
        buffer.wake = self._wake
        buffer.forget_left = self._forget_left

    def add(self, marker: Marker) -> None:
        """Attach a marker to the buffer."""
        with self._buffer.lock:
            if marker.attached and not self._has(marker):
                marker.detach()  # by another thread, to another profiler: the tracks of its open slices are those of that one
            marker.attach(self._buffer, self._classes, self._task_tracks)
            self._markers[id(marker)] = marker
            self._put(marker)

    def let_go(self, markers: Iterable[Marker]) -> None:
        """Detach some markers, so that another profiler can adopt them."""
        with self._buffer.lock:
            for marker in markers:
                if self._markers.pop(id(marker), None) is not None:
                    self._awake.pop(id(marker), None)
                    if self._has(marker):
                        marker.detach()

    def pass_to(self, action: ProfilerAction | None) -> None:
        """Set the state of every marker for an action of the schedule, or to idle for None."""
        with self._buffer.lock:
            self._action = action
            for marker in list(self._awake.values()):
                if self._has(marker) and not self._send_to_sleep(marker):
                    self._put(marker)

    def open_slices(self) -> list[OpenSlice]:
        """Return the slices that are being recorded now."""
        awake = list(self._awake.values())
        in_use = [marker for marker in awake if marker._start or marker._contended or marker._clones]
        found = [slice_ for marker in in_use for slice_ in self._opened(marker)]
        self._looks += 1
        if len(self._awake) > _MANY_AWAKE and self._looks % _LOOKS == 0:
            self._send_unused_to_sleep()
        return found

    def detach(self) -> None:
        """Detach all markers. Called after the last records are taken."""
        with self._buffer.lock:
            for marker in list(self._markers.values()):
                if self._has(marker):
                    marker.detach()

    def _has(self, marker: Marker) -> bool:
        """Return False for a marker that another thread has attached to another profiler in the meantime."""
        return marker._buffer is self._buffer

    @one_step
    def _opened(self, marker: Marker) -> list[OpenSlice]:
        return marker.open_slices() if self._has(marker) else []

    def abandon_in_child(self) -> None:
        """Drop the parent's recording from all markers in a forked child."""
        for marker in list(self._markers.values()):
            marker.abandon_in_child()

    def _forget_left(self, slices: Mapping[tuple[int, int], int]) -> Collection[tuple[int, int]]:
        """Forget slices that their ``with`` did not end, and return them.

        An interrupt can leave a ``with`` before its slice ends. A generator that is suspended inside its ``with`` looks
        the same, so proof is needed: a ``with`` statement refers to the bound ``__exit__`` that it will call. If the
        marker has fewer such references than open slices, nothing will end the given slices.

        Args:
            slices: Candidates: (start, track) of an open slice, mapped to the label number of an ended slice around it.
        """
        by_hand = {(marker.name, marker.categories) for marker in list(self._markers.values()) if marker.by_hand}
        labels = self._buffer.labels
        wanted = {
            key for key, number in slices.items() if (labels[number].name, labels[number].categories) not in by_hand
        }
        asked: list[tuple[Marker, int, list[tuple[int, int]]]] = []  # marker, its number of open slices, the candidates
        for marker in list(self._awake.values()):
            opened = [] if marker.by_hand else marker.open_slices()
            left = [slice_[1:] for slice_ in opened if slice_[1:] in wanted]
            if left:
                asked.append((marker, len(opened), left))
        if not asked or not self._searches:
            return ()
        to_come = _exits_to_come([marker for marker, _, _ in asked])
        forgotten: set[tuple[int, int]] = set()
        with self._buffer.lock:  # the profiler may change the state of a marker in between
            for marker, count, left in asked:
                if to_come[id(marker)] + len(left) <= min(count, len(marker.open_slices())) and not marker.by_hand:
                    forgotten.update(slice_ for slice_ in left if marker.forget_slice(*slice_))
        self._searches = _SEARCHES if forgotten else self._searches - 1
        return forgotten

    def _put(self, marker: Marker) -> None:
        self._awake[id(marker)] = marker
        marker.set_recording(self._action is not None and self._action in marker.actions, self.observer)

    def _wake(self, marker: Marker) -> None:
        with self._buffer.lock:
            if marker.state is MarkerState.ASLEEP:  # no other thread has woken it in between
                # The class changes in one step. Until then, threads and signal handlers that use the marker come here.
                if id(marker) in self._markers:
                    self._put(marker)
                else:
                    marker.__class__ = Marker

    def _send_to_sleep(self, marker: Marker) -> bool:
        """Send a marker to sleep unless a slice is open in it or several threads use it. Return True if it sleeps."""
        key = id(marker)
        is_free = not (marker._start or marker._skipped or marker._contended or marker._clones)
        if is_free:
            marker.__class__ = AsleepMarker  # atomic with the lines above and below
            self._awake.pop(key, None)  # missing if a signal handler has just changed the schedule
        return is_free

    def _send_unused_to_sleep(self) -> None:
        with self._buffer.lock:
            for marker in list(self._awake.values()):
                # A slice sets the track. If it is still 0 at the next call, the marker was not used in between.
                if not marker.forget_track():
                    self._send_to_sleep(marker)


def _exits_to_come(markers: list[Marker]) -> Counter[int]:
    """Return the minimum number of ``with`` statements that will still end a slice of each marker, by its id."""
    found: Counter[int] = Counter()
    wanted = {id(marker): marker for marker in markers}
    own_references = 0  # to each holder, here
    for holder in [object(), *gc.get_referrers(*markers)]:
        references = sys.getrefcount(holder)
        own_references = own_references or references  # of the object in front, which nothing else refers to
        if isinstance(holder, (MethodType, BuiltinMethodType)):
            if holder.__name__ in _EXITS:
                # Methods of the core are bound once, and kept in the marker: each ``with`` refers to the same object.
                is_kept = any(held is holder for held in gc.get_referents(holder.__self__))
                uses = references - own_references - is_kept if isinstance(holder, BuiltinMethodType) else 1
                found[id(holder.__self__)] += uses
        elif sys.version_info >= (3, 14) and isinstance(holder, _SUSPENDED):
            # A suspended frame refers to the marker itself. The frames of running functions are not visible to gc.
            for held in gc.get_referents(holder):
                found[id(held)] += len(wanted[id(held)].open_slices()) if id(held) in wanted else 0
    return found
