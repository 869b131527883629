"""Marker: names a piece of code, and records a slice each time it runs.

The recording path takes nanoseconds. Three design decisions make that possible:

* A marker has a class for each `MarkerState`. The profiler sets ``__class__`` when the action of the schedule changes.
  So neither the enter nor the exit of a slice tests the state.
* The marker's slots hold the start of the one open slice. Only recursion, a second thread or a second task takes the
  slow path, with a stack per thread and task.
* Markers use no lock. CPython switches threads and runs signal handlers only at the start of Python functions, after
  calls and at backward jumps. A test and a store without a call in between are therefore one step. The comments
  "atomic" mark the lines that rely on this. So the writer, and a signal handler such as that of Ctrl-C, find each slice
  either open or recorded, never both. A CPython without the GIL takes a lock instead; see `tracekit.recording.one_step`.

Each event compares its time with `RecordBuffer.due_ns`. An event after that time calls the buffer's ``look_after``.
This one comparison detects a writer that cannot run or does not keep up.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, cast, overload

from tracekit.events import BEGIN, END, INSTANT
from tracekit.recording.buffer import DETACHED
from tracekit.recording.compiled import MarkerBase, in_state
from tracekit.recording.decorate import decorate
from tracekit.recording.marker_state import FREE, STACKED, MarkerState
from tracekit.recording.one_step import outside_step
from tracekit.recording.tasks import TaskTracks, current_owner, current_task

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from types import TracebackType

    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.inline import InlineHandlers
    from tracekit.recording.schedule import ProfilerAction

    F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("tracekit")
_get_ident = threading.get_ident
_NO_TASKS: Final = TaskTracks(DETACHED)


class MarkerClasses(NamedTuple):
    """The classes of a marker while it records, for one clock. `tracekit.recording.recording_marker` makes them."""

    clock: Callable[[], int]
    recording: type[Marker]
    observed: type[Marker]
    shared: type[Marker]


@in_state(MarkerState.IDLE)
class Marker(MarkerBase):
    """Records slices, instants and counters under one name. Made by `Profiler.marker` or `tracekit.marker`.

    Use it as ``with marker:``, ``async with marker:`` or as a decorator of functions, generators, coroutines and async
    generators. Or call `start` and `finish`, or `begin` if another thread ends the slice. Slices of one marker may be
    open at the same time: recursively, in many threads, in many asyncio tasks. The start of a slice decides whether it
    is recorded. The finish of an unrecorded slice does nothing. An exception in the body propagates. It ends the slice,
    and its type becomes the argument ``exception`` of the slice.

    Ctrl-C may leave a ``with`` before the marker ends its slice. Such a slice ends with the innermost slice around it
    on its thread. Without a slice around it, it stays open. Only `finish` ends a slice of `start`. A slice also stays
    open while its ``with`` is suspended in a generator, a coroutine or a `contextlib.ExitStack`. Call `start` instead
    of ``__enter__``.

    After a fork, the child's markers record nothing until a profiler starts in the child. Then they record into that
    profiler. A slice that was open at the fork belongs to the parent. A pickled marker records into the profiler that
    is active where it is unpickled.

    Attributes:
        name: Name of the slices.
        categories: Categories of the events.
        actions: Actions of the schedule during which it records.
        by_hand: True if `start` or a timer has opened slices of it. None of its slices is then treated as abandoned.
    """

    # This class is the state IDLE. `_skipped` counts open slices that are not recorded. Their finish may come when the
    # marker records again, and must not end a recorded slice.
    __slots__ = (
        "__weakref__",
        "_carried",
        "_classes",
        "_clock",
        "_observer",
        "_recording",
        "_stacks",
        "_task_tracks",
        "actions",
        "by_hand",
        "categories",
        "name",
        "record_instant_on_finish",
        "record_instant_on_start",
    )
    state: ClassVar[MarkerState]

    def __init__(
        self,
        name: str,
        categories: tuple[str, ...],
        actions: frozenset[ProfilerAction],
        *,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
    ) -> None:
        self.name = name
        self.categories = categories
        self.actions = actions
        self.record_instant_on_start = record_instant_on_start
        self.record_instant_on_finish = record_instant_on_finish
        self.by_hand = False
        self._skipped = 0
        self._carried = 0  # number of skipped slices that were open when recording began
        self._start: int = FREE  # the slot: start and track of its slice
        self._track = 0
        self._contended = 0  # number of slices on the stacks, plus _carried
        self._stacks: dict[Hashable, list[tuple[int, int]]] = {}  # (start, track) by ident of the thread, or by task
        self._label = 0
        self._observer: InlineHandlers | None = None
        self._recording = True  # for a shared marker: True if its clones record
        self._buffer: RecordBuffer = DETACHED
        self._classes: MarkerClasses | None = None
        self._clones: dict[int, Marker] = {}  # for a shared marker: its clone for each thread, by track
        self._clock: Callable[[], int] = time.perf_counter_ns
        self._task_tracks = _NO_TASKS

    def __repr__(self) -> str:
        return f"<Marker {self.name!r}>"

    # ---- slices -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Marker:
        if self._start:
            self._push(0, 0)  # inside a recorded slice: the next finish must find this one on top
        else:
            self._skipped += 1  # atomic
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._start:
            self._exit_slow(exc_type, self._clock())  # a slice is open that started while the marker recorded
        else:
            self._skipped -= 1

    def start(self) -> None:
        """Start a slice; `finish` ends it."""
        self.by_hand = True
        self.__enter__()

    def finish(self) -> None:
        """End the slice that this thread (or asyncio task) started last. Do nothing without an open slice."""
        if self._skipped or self._start:
            self._exit_slow(None, self._clock())  # finds the slice of this thread or task

    @outside_step
    def _report_foreign_finish(self) -> None:
        """Log once per marker that a thread or task has finished a slice that it had not started."""
        if self.name not in self._buffer.foreign_finishes:
            self._buffer.foreign_finishes.add(self.name)
            logger.warning(
                "tracekit: marker %r was finished by a thread or task that had not started it; the slice stays open. "
                "Use handle = marker.begin() and handle.end() across threads; this is logged once for each marker.",
                self.name,
            )

    def begin(self) -> SliceHandle:
        """Begin a slice, and return its handle. Any thread may end the slice with `SliceHandle.end`.

        For work that one thread starts and another completes, such as a request or a copy. Viewers draw an async
        slice::

            handle = marker.begin()
            ...
            handle.end()  # or: with marker.begin(): ...
        """
        return SliceHandle(self, None, None)

    def now(self) -> int:
        """Return the time of the marker's monotonic clock, in ns."""
        return self._clock()

    async def __aenter__(self) -> Marker:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends_task():
            self._exit_slow(exc_type, self._clock())
        else:
            self.__exit__(exc_type, exc, traceback)

    def _ends_task(self) -> bool:
        """Return True if the slice that the current task ends is open in this marker, and not in a clone.

        On a thread, slices from before this marker was shared end last. Slices of tasks end in any order.
        """
        return bool(self._stacks.get(current_task()))

    def _push(self, start: int, track: int) -> None:
        owner = current_owner()
        self._contended += 1
        if not self._start:
            self._start = STACKED  # atomic with the lines above and below: from now on every start takes the slow path
        try:
            self._stacks[owner].append((start, track))
        except KeyError:
            self._stacks[owner] = [(start, track)]

    def _enter_slow(self, track: int = 0) -> None:
        """Start a slice while another slice of this marker is open, or on the track of a task."""
        buffer, observer = self._buffer, self._observer
        track = track or buffer.thread_track()
        prepared = {} if observer is None else observer.prepare(self)
        start = self._clock()
        if buffer is not self._buffer:  # another profiler, with other tracks, has adopted the marker
            if observer is not None:
                observer.cancel(prepared)
            self.__enter__()
            return
        self._push(start, track)
        if self.record_instant_on_start:
            buffer.add(self._label, start, INSTANT, track)
        if observer is not None:
            observer.begin(self, track, start, prepared)

    def _exit_slow(self, exc_type: type[BaseException] | None, end: int) -> None:
        """End the newest slice of this thread and task. Handles every case that the fast path does not."""
        label, buffer = self._label, self._buffer
        if exc_type is not None:
            label = buffer.label(self.name, self.categories, {"exception": exc_type.__qualname__})
        has_room = buffer.has_room()
        owner = current_owner()
        stack = self._stacks.get(owner)
        mine = not stack and self._start > STACKED and self._track == buffer.track_of_thread.get(_get_ident())
        if not stack and not mine:
            owner, stack = self._left_behind()
        start = track = 0
        is_foreign = False
        try:
            # Atomic from here to the end of ``extend``: the writer finds a slice either open or recorded.
            if stack:
                start, track = stack[-1]
                del stack[-1]
                if not stack and owner.__class__ is not int:
                    del self._stacks[owner]  # a task hardly uses the marker again, a thread most likely does
                self._contended -= 1
            elif mine:
                start, track = self._start, self._track
                self._start = STACKED
            else:  # an unrecorded slice, or a finish without a start
                if self._carried:
                    self._carried -= 1
                    self._contended -= 1
                if self._skipped:
                    self._skipped -= 1
                elif self._start:
                    is_foreign = True
            if self._start == STACKED and not self._contended:
                self._start = FREE
            if not start:
                if is_foreign and self.open_slices():
                    self._report_foreign_finish()
                return
            if has_room or start < buffer.keep_before:
                buffer.records.extend((label, start, end, track))
            else:
                buffer.refuse()
            if self.record_instant_on_finish:
                buffer.add(self._label, end, INSTANT, track)
        except MemoryError:
            buffer.lost_events += 1
        if self._observer is not None:
            self._observer.end(self, track, start, end, None if exc_type is None else exc_type.__qualname__)
        if end > buffer.due_ns:
            buffer.look_after(end)

    def _left_behind(self) -> tuple[Hashable, list[tuple[int, int]] | None]:
        """Find a slice that its owner can no longer end, because the task is done or the thread has ended.

        Another task closes an async generator that its consumer has abandoned. The thread that drops a generator closes
        it.
        """
        for owner, stack in list(self._stacks.items()):
            if not stack:
                continue
            is_thread = isinstance(owner, int)
            if owner not in self._buffer.track_of_thread if is_thread else owner.done():  # type: ignore[attr-defined]
                return owner, stack
        return 0, None

    def _mine(self) -> Marker:
        return self  # the marker was shared until a moment ago

    def _clone(self) -> Marker:
        return self

    def _share(self) -> None:
        """Change to the state of a marker that several threads use at the same time."""
        with self._buffer.lock:  # the profiler may change the state in between
            if self._classes is not None and self.state is MarkerState.RECORDING:
                self._recording = True
                self.__class__ = self._classes.shared

    def open_slices(self) -> list[tuple[int, int, int]]:
        """Return (label, start, track) of every open recorded slice. Called by the writer."""
        stacks = list(self._stacks.values())
        found = [(self._label, start, track) for stack in stacks for start, track in list(stack) if start]
        start, track = self._start, self._track
        if start > STACKED:
            found.append((self._label, start, track))
        return found

    def forget_slice(self, start: int, track: int) -> bool:
        """Forget an abandoned slice. Return True if it was still open. Called by the writer."""
        if self._start == start and self._track == track:
            self._start = STACKED if self._contended else FREE  # atomic
            return True
        for stack in list(self._stacks.values()):
            try:
                stack.remove((start, track))
            except ValueError:
                continue
            self._contended -= 1
            if self._start == STACKED and not self._contended:
                self._start = FREE
            return True
        return False

    # ---- instants and counters ----------------------------------------------------------------------------------------

    def instant(self) -> None:
        """Record that something happened now."""

    def counter(self, values: Mapping[str, float]) -> None:
        """Record the values of one or more series now.

        Args:
            values: Number by series name. A number is an int, float, `decimal.Decimal`, NumPy scalar or NumPy array
                without dimensions. Such an array is read later, within the flush interval; pass its ``item()`` if it
                changes in place. Other values, including tensors, are discarded, counted, and logged once for each
                marker and reason.
        """

    def _refuse(self, values: object) -> None:
        """Count the values of a counter that are not a mapping."""
        self._buffer.refused_values += 1
        self._buffer.refusals.setdefault(self.name, type(values).__name__)

    # ---- decorator ----------------------------------------------------------------------------------------------------

    @overload
    def __call__(self, function: F) -> F: ...
    @overload
    def __call__(self, function: None = None) -> Callable[[F], F]: ...
    def __call__(self, function: F | None = None) -> F | Callable[[F], F]:
        """Decorate a function: each call is a slice. Return values, exceptions and signatures do not change.

        A generator or an async generator gets one slice per value, from the request to the yield, because its caller
        runs in between. ``@marker`` and ``@marker()`` are the same.
        """
        if function is None:
            return cast("Callable[[F], F]", self)
        return cast("F", decorate(self, function))

    # ---- attached to a profiler ---------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """True if a profiler has adopted the marker."""
        return self._buffer is not DETACHED

    def attach(self, buffer: RecordBuffer, classes: MarkerClasses, task_tracks: TaskTracks) -> None:
        """Set the buffer to record into. The marker stays idle until `set_recording`."""
        self._buffer = buffer
        self._classes = classes
        self._label = buffer.label(self.name, self.categories)
        self._clock = classes.clock
        self._task_tracks = task_tracks

    def set_recording(self, recording: bool, observer: InlineHandlers | None = None) -> None:
        """Change to the recording or to the idle state. Open slices stay recorded or unrecorded, as they started."""
        self._observer = observer
        if not recording:
            self.__class__ = Marker
            self._contended -= self._carried
            self._carried = 0
            if self._start == STACKED and not self._contended:
                self._start = FREE
            return
        if self.state is MarkerState.IDLE and self._skipped:
            # Route finishes through the slow path, so that those of unrecorded slices do not end recorded ones.
            self._carried = self._skipped
            self._contended += self._carried
            self._start = self._start or STACKED
        observed = observer is not None or self.record_instant_on_start or self.record_instant_on_finish
        assert self._classes is not None, "only an attached marker can record"
        self.__class__ = self._classes.observed if observed else self._classes.recording

    def forget_track(self) -> bool:
        """Forget the last slice's track if no slice is open. Return True if there was a slice since the last call."""
        was_used = self._track != 0
        if not self._start:
            self._track = 0  # atomic
        return was_used

    def detach(self) -> None:
        """Forget the profiler. Open slices become unrecorded. Called after the profiler's last records are taken."""
        self.set_recording(recording=False)
        self._skipped += sum(map(len, self._stacks.values())) + (self._start > STACKED)
        self._buffer = DETACHED
        self._task_tracks = _NO_TASKS  # so that a module-level marker does not keep the profiler alive
        self._start = self._contended = FREE
        self._stacks.clear()

    def abandon_in_child(self) -> None:
        """Forget the profiler in a forked child, and the slices of threads that do not exist in the child."""
        ident = _get_ident()
        # Count all tasks for the current thread, because the running task is one of its tasks.
        mine = sum(len(stack) for owner, stack in self._stacks.items() if owner == ident or not isinstance(owner, int))
        mine += self._start > STACKED and self._track == self._buffer.track_of_thread.get(ident)
        open_here = self._skipped + mine
        self.detach()
        self._skipped = open_here


class SliceHandle:
    """A slice begun by `Marker.begin`. `end` or leaving a ``with`` ends it, on any thread and in any order.

    Viewers draw it as an async slice. Its track belongs to no thread, because it may overlap every other slice.
    """

    __slots__ = ("_marker", "_observer", "_opened")

    def __init__(self, marker: Marker, buffer: RecordBuffer | None, observer: InlineHandlers | None) -> None:
        self._marker = marker
        self._observer = observer
        # (buffer, label, track, start) of the slice. The thread that pops it ends the slice. Empty for an unrecorded
        # slice.
        self._opened: list[tuple[RecordBuffer, int, int, int]] = []
        if buffer is None:
            return
        label = buffer.label(marker.name, marker.categories)
        free = buffer.free_async_tracks.setdefault(label, [])
        try:
            track = free.pop()  # atomic
        except IndexError:
            track = buffer.new_async_track(marker.name)
        start = marker.now()
        if not buffer.add_edge(label, start, BEGIN, track):
            free.append(track)
            return
        self._opened.append((buffer, label, track, start))
        if observer is not None:
            observer.begin(marker, track, start, observer.prepare(marker))
        if start > buffer.due_ns:
            buffer.look_after(start)

    def end(self) -> None:
        """End the slice. Further calls do nothing."""
        self._end(None)

    def __enter__(self) -> SliceHandle:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(exc_type)

    def _end(self, exc_type: type[BaseException] | None) -> None:
        try:
            buffer, label, track, start = self._opened.pop()  # atomic: one thread ends it
        except IndexError:
            return
        end = self._marker.now()
        exception = None if exc_type is None else exc_type.__qualname__
        if exception is not None:
            label = buffer.label(self._marker.name, self._marker.categories, {"exception": exception})
        if buffer.add_edge(label, end, END, track):  # without an end, the track is not reused
            buffer.free_async_tracks[buffer.label(self._marker.name, self._marker.categories)].append(track)
        if self._observer is not None:
            self._observer.end(self._marker, track, start, end, exception)
        if end > buffer.due_ns:
            buffer.look_after(end)
