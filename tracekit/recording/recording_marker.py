"""The classes of a marker while it records: the code that runs for every event. See `tracekit.recording.marker`."""

# ruff: noqa: SLF001 - the clones of a shared marker are markers too

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from tracekit.events import COUNTER, INSTANT
from tracekit.recording.compiled import in_state, is_core_clock
from tracekit.recording.counter_values import finite_numbers
from tracekit.recording.marker import Marker, MarkerClasses, SliceHandle
from tracekit.recording.marker_state import FREE, STACKED, MarkerState
from tracekit.recording.one_step import in_steps, with_own_values
from tracekit.recording.tasks import current_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tracekit.recording.inline import InlineHandlers

_get_ident = threading.get_ident
_MANY_CLONES: Final = 64  # with this many clones, a shared marker drops the clones of ended threads


@in_steps
class _Shared(Marker):
    """A marker that several threads use at the same time. Each thread gets a clone, because a marker has one slot.

    A marker becomes shared when a thread finds the slice of another thread in its slot. It stays shared until it is
    detached, also while it is idle. Slices that are open at that moment end in the marker itself.
    """

    __slots__ = ()

    def __enter__(self) -> Marker:
        self._mine().__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end = self._clock()
        clone = self._clones.get(self._buffer.track_of_thread.get(_get_ident(), 0))
        if clone is not None and (clone._start or clone._skipped):
            clone.__exit__(exc_type, exc, traceback)
        else:
            self._exit_slow(exc_type, end)  # the slice began before the marker was shared

    async def __aenter__(self) -> Marker:
        await self._mine().__aenter__()
        return self

    def finish(self) -> None:
        """End the slice that this thread (or asyncio task) started last. Do nothing without an open slice."""
        clone = self._clones.get(self._buffer.thread_track())
        if clone is not None and (clone._start or clone._skipped) and not self._ends_task():
            clone.finish()
        else:
            if not self._start and any(other.open_slices() for other in list(self._clones.values())):
                self._report_foreign_finish()
            Marker.finish(self)  # not super(): the marker may have been detached, and its class is then `Marker`

    def begin(self) -> SliceHandle:
        """Begin a slice that any thread may end."""
        return self._mine().begin()

    def _ends_task(self) -> bool:
        task = current_task()
        clone = self._clones.get(self._buffer.thread_track())
        return bool(self._stacks.get(task)) and (clone is None or not clone._stacks.get(task))

    def instant(self) -> None:
        """Record that something happened now."""
        self._mine().instant()

    def counter(self, values: Mapping[str, float]) -> None:
        """Record the values of one or more series now."""
        self._mine().counter(values)

    def open_slices(self) -> list[tuple[int, int, int]]:
        """Return (label, start, track) of every open recorded slice, on any thread."""
        return Marker.open_slices(self) + [
            found for clone in list(self._clones.values()) for found in clone.open_slices()
        ]

    def forget_slice(self, start: int, track: int) -> bool:
        """Forget an abandoned slice, on any thread. Return True if it was still open."""
        return Marker.forget_slice(self, start, track) or any(
            clone.forget_slice(start, track) for clone in list(self._clones.values())
        )

    def set_recording(self, recording: bool, observer: InlineHandlers | None = None) -> None:
        """Change the clones to the recording or to the idle state."""
        self._recording, self._observer = recording, observer
        for clone in list(self._clones.values()):
            clone.set_recording(recording, observer)

    def detach(self) -> None:
        """Forget the profiler and the clones."""
        clones = list(self._clones.values())
        for clone in clones:
            clone.detach()
        self._unshare()
        Marker.detach(self)
        self._skipped += sum(clone._skipped for clone in clones)

    def abandon_in_child(self) -> None:
        """Forget the profiler in a forked child, and the clones of threads that do not exist in the child."""
        mine = self._clones.get(self._buffer.track_of_thread.get(_get_ident(), 0))
        self._unshare()
        Marker.abandon_in_child(self)
        if mine is not None:
            mine.abandon_in_child()
            self._skipped += mine._skipped

    def _unshare(self) -> None:
        self._clones = {}
        self.__class__ = cast("type[_Shared]", Marker)

    def _mine(self) -> Marker:
        return self._clones.get(self._buffer.thread_track()) or self._clone()

    def _clone(self) -> Marker:
        """Make the clone of this thread. Return the marker itself if it is no longer shared."""
        buffer = self._buffer
        with buffer.lock:  # the profiler may detach it in between
            if self._classes is None or buffer is not self._buffer or self.state is not MarkerState.SHARED:
                return self
            track = buffer.thread_track()
            if len(self._clones) >= _MANY_CLONES:
                alive = set(buffer.track_of_thread.values())
                for other, unused in list(self._clones.items()):
                    if other not in alive and not (unused._start or unused._skipped):
                        self._clones.pop(other, None)
            clone = Marker(self.name, self.categories, self.actions)
            clone.attach(buffer, self._classes, self._task_tracks)
            clone._track = track
            clone.set_recording(self._recording, self._observer)
            # A signal handler may have made a clone in between, and have an open slice in it. Then keep that clone.
            return self._clones.setdefault(track, clone)


def _waking(name: str) -> Any:
    """Return a method that wakes the marker, and calls the method of its new class."""

    def method(self: Marker, *args: Any, **named: Any) -> Any:
        self._buffer.wake(self)
        return getattr(self, name)(*args, **named)

    return functools.update_wrapper(method, getattr(Marker, name))


@in_state(MarkerState.ASLEEP, in_c=False)
class AsleepMarker(Marker):
    """A marker that has not been used since the schedule changed. Its first use wakes it and sets its current state.

    So a change of the schedule costs time only for markers in use, not for every name of the run. It has no open
    slices.
    """

    __slots__ = ()

    __enter__ = _waking("__enter__")
    __aenter__ = _waking("__aenter__")
    begin = _waking("begin")
    instant = _waking("instant")
    counter = _waking("counter")

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.state is MarkerState.ASLEEP:
            self._buffer.wake(self)
        self.__exit__(exc_type, exc, traceback)  # that of its new class: ``with`` looked up this one before it woke


@functools.cache
def marker_classes(clock: Callable[[], int]) -> MarkerClasses:
    """Return the marker classes for a clock.

    The classes read the clock as a closure variable, which takes half the time of an attribute, twice per slice. All
    profilers except those of tests have the same clock, and share the classes.
    """

    def record_instant(marker: Marker) -> None:
        now, buffer, label = clock(), marker._buffer, marker._label
        track = buffer.thread_track()
        buffer.add(label, now, INSTANT, track)
        if marker._observer is not None:
            marker._observer.instant(marker, track, now)
        if now > buffer.due_ns:
            buffer.look_after(now)

    def record_counter(marker: Marker, values: Mapping[str, float]) -> None:
        now, buffer, label = clock(), marker._buffer, marker._label
        try:
            kept = {**values}
        except MemoryError:
            buffer.lost_events += 1
        except Exception:  # noqa: BLE001 - not a mapping, or its methods raise: must not disturb the training
            marker._refuse(values)
        else:
            buffer.add(label, now, COUNTER, kept)
            if marker._observer is not None:
                marker._observer.counter(marker, now, finite_numbers(kept))
        if now > buffer.due_ns:
            buffer.look_after(now)

    @in_state(MarkerState.RECORDING, in_c=is_core_clock(clock))
    class RecordingMarker(Marker):
        """A marker while it records."""

        __slots__ = ()

        def __enter__(self) -> Marker:
            ident = _get_ident()
            start = clock()
            # Atomic from here on (on 3.10 because the branches taken here do not jump). Otherwise another profiler,
            # with other tracks, could adopt the marker after the read of the buffer.
            buffer = self._buffer
            try:
                track = buffer.track_of_thread[ident]
            except KeyError:
                buffer.thread_track()
                # ``with`` looks up the exit before it calls the enter, so this class's exit will run, even if shared by
                # now.
                return RecordingMarker.__enter__(self) if buffer is self._buffer else self.__enter__()
            if not self._start:
                self._track = track
                self._start = start
            else:
                if self._start > STACKED and self._track != track:
                    self._share()  # another thread has a slice in the slot; from the next slice on, each has a clone
                self._push(start, track)
            if start > buffer.due_ns:
                buffer.look_after(start)
            return self

        def __exit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None:
            end = clock()
            buffer = self._buffer
            is_full = len(buffer.records) >= buffer.max_entries
            start = self._start
            # Without a start, the slice began for another profiler, or while nothing was recorded.
            if start and exc_type is None and not self._contended and not is_full and end < buffer.due_ns:
                self._start = FREE
                try:
                    # Atomic with the test and the lines above: CPython switches threads after this call at the
                    # earliest.
                    buffer.records.extend((self._label, start, end, self._track))
                except MemoryError:
                    buffer.lost_events += 1
                return
            self._exit_slow(exc_type, end)

        def begin(self) -> SliceHandle:
            return SliceHandle(self, self._buffer, self._observer)

        async def __aenter__(self) -> Marker:
            self._enter_slow(self._task_tracks.track())
            return self

        instant = record_instant
        counter = with_own_values(record_counter)

    @in_state(MarkerState.OBSERVED, in_c=False)
    class ObservedMarker(RecordingMarker):
        """A marker that also records instants at the edges of its slices, or that has an observer."""

        __slots__ = ()

        def __enter__(self) -> Marker:
            observer = self._observer
            if (
                observer is not None
                and not self.record_instant_on_start
                and not self._start  # mirrors match the end of a slice inside another one by its start
                and observer.is_idle()
            ):
                return RecordingMarker.__enter__(self)
            self._enter_slow()
            return self

        def __exit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None:
            if self._contended or self.record_instant_on_finish:
                self._exit_slow(exc_type, clock())
            else:
                RecordingMarker.__exit__(self, exc_type, exc, traceback)  # the slice began while the observer was idle

        instant = record_instant  # not those of C, which know no observer
        counter = with_own_values(record_counter)

    @in_state(MarkerState.SHARED, in_c=is_core_clock(clock))
    class SharedMarker(_Shared):
        """A marker that several threads use at the same time. The core's methods read its own clock."""

        __slots__ = ()

    return MarkerClasses(clock, RecordingMarker, ObservedMarker, SharedMarker)


MARKER_TYPES = (Marker, AsleepMarker, *marker_classes(time.perf_counter_ns)[1:])
"""All classes that a marker can have."""
