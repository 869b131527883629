"""AttachedMarkers: the markers that record into one profiler, and what the schedule lets them do now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.recording.recording_marker import marker_states
from tracekit.recording.tasks import TaskTracks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.lanes import OpenSlice
    from tracekit.recording.marker import Marker, MarkerObserver
    from tracekit.recording.schedule import ProfilerAction

__all__ = ["AttachedMarkers"]


class AttachedMarkers:
    """Attaches markers to a buffer, and has all of them pass from one state to the next together.

    Markers may be added from any thread, also while others pass to another state.

    Args:
        buffer: Where they record.
        clock: The monotonic clock that they read, ns.

    Attributes:
        observer: Who is told of every event at once, where there are inline handlers. Set before the first `pass_to`.
    """

    def __init__(self, buffer: RecordBuffer, clock: Callable[[], int]) -> None:
        self.observer: MarkerObserver | None = None
        self._buffer = buffer
        self._states = marker_states(clock)
        self._task_tracks = TaskTracks(buffer)
        self._markers: dict[int, Marker] = {}  # by identity: two threads may add one at once
        self._action: ProfilerAction | None = None  # nothing is recorded

    def add(self, marker: Marker) -> None:
        """Have a marker record into the buffer."""
        marker.attach(self._buffer, self._states, self._task_tracks)
        self._markers[id(marker)] = marker
        if self._action is not None:
            marker.set_recording(self._action in marker.actions, self.observer)

    def let_go(self, markers: Iterable[Marker]) -> None:
        """Detach some markers, so that another profiler can have them."""
        with self._buffer.lock:
            for marker in markers:
                if self._markers.pop(id(marker), None) is not None:
                    marker.detach()

    def pass_to(self, action: ProfilerAction | None) -> None:
        """Have every marker do what it does during an action of the schedule; None: record nothing."""
        self._action = action
        with self._buffer.lock:
            for marker in self._all():
                marker.set_recording(action in marker.actions, self.observer)

    def open_slices(self) -> list[OpenSlice]:
        """Return the slices that are being recorded now."""
        return [slice_ for marker in self._all() for slice_ in marker.open_slices()]

    def detach(self) -> None:
        """Detach all; when the last records have been taken."""
        with self._buffer.lock:
            for marker in self._all():
                marker.detach()

    def abandon_in_child(self) -> None:
        """Have all forget the parent's recording in a forked child."""
        for marker in self._all():
            marker.abandon_in_child()

    def _all(self) -> list[Marker]:
        return list(self._markers.values())
