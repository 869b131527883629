"""Marker: names a piece of code, and records a slice each time it runs.

The recording path is measured in nanoseconds, and three things follow:

* A marker has a class for each of its states (`Marker` when nothing is recorded, those of `MarkerStates` else); the profiler
  sets ``__class__`` when the schedule passes from one action to the next, so that no state is asked for on the way in or out.
* The start of the one open slice stands in the marker's own slots. Only recursion, a second thread or a second task takes
  the slow way, with a stack per thread and task.
* There is no lock. CPython changes threads, and runs signal handlers, at the start of Python functions, after calls and at
  backward jumps only, so a test and the store after it, with no call in between, are one step. The comments "atomic" mark
  where that is used. A slice is therefore either open or recorded, and never both, whenever the writer looks or Ctrl-C comes.

After `RecordBuffer.due_ns` a recording thread looks after the buffer: that is the one comparison with which a writer that is
kept from running, or does not keep up, is noticed.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast, overload

from tracekit.events import BEGIN, END, INSTANT
from tracekit.recording.buffer import DETACHED
from tracekit.recording.compiled import MarkerBase, compiled
from tracekit.recording.decorate import decorate
from tracekit.recording.tasks import TaskTracks, current_owner, current_task

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from types import TracebackType

    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.schedule import ProfilerAction

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Marker", "MarkerObserver", "MarkerStates", "SliceHandle"]

logger = logging.getLogger("tracekit")
_get_ident = threading.get_ident
_NO_TASKS: Final = TaskTracks(DETACHED)


class MarkerObserver:
    """What is told of a marker's events at once, on the recording thread; stands in front of inline handlers."""

    def is_idle(self) -> bool:
        """Tell whether nobody is to be told of a slice that starts now, nor of its end."""
        return False

    def begin(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """A slice starts."""

    def end(self, marker: Marker, track: int, start_ns: int, monotonic_ns: int, exception: str | None) -> None:
        """The slice that started at ``start_ns`` on this track ends; by an exception, if its type is named."""

    def instant(self, marker: Marker, track: int, monotonic_ns: int) -> None:
        """An instant was recorded."""

    def counter(self, marker: Marker, monotonic_ns: int, values: Mapping[str, float]) -> None:
        """A counter was recorded."""


class MarkerStates(NamedTuple):
    """The classes that a marker passes to while it records; `tracekit.recording.recording_marker` makes them.

    Attributes:
        clock: The monotonic clock that they read.
        recording: It records.
        observed: It records, and somebody is to be told at once.
        shared: Several threads use it at once.
    """

    clock: Callable[[], int]
    recording: type[Marker]
    observed: type[Marker]
    shared: type[Marker]


@compiled("idle")
class Marker(MarkerBase):
    """Records slices, instants and counters under one name. Made by `Profiler.marker` or `tracekit.marker`.

    Use it as ``with marker:``, ``async with marker:``, a decorator (of functions, generators, coroutines and async
    generators), by `start` and `finish`, or by `begin` where another thread ends the slice. One marker may be open any number
    of times at once: recursively, in many threads, in many asyncio tasks. Whether a slice is recorded is decided at its start;
    the finish of one that is not recorded does nothing. An exception in the body is not swallowed; it closes the slice and its
    type is kept as the slice's argument ``exception``.

    Ctrl-C may leave a ``with`` before the marker could end its slice. Such a slice ends with the innermost slice around it of
    its thread; without one around it, it stays open. A slice of `start` is never ended for you. Neither is one whose ``with``
    waits in a generator, a coroutine or an `contextlib.ExitStack`. Use `start` rather than to call ``__enter__`` yourself.

    After a fork the child's markers record nothing until a profiler starts there, and then into that; a slice that was open
    at the fork belongs to the parent. A pickled marker records into the profiler that is active where it is unpickled.

    Attributes:
        name: What the slice is called.
        categories: Categories of its events.
        actions: The schedule's actions during which it records.
        by_hand: Whether `start`, or a timer, has opened slices of it, so that none of them is taken for one that was left.
    """

    # This class is the idle state: `_skipped` counts slices that are open and not recorded, so that their finish, which
    # may come when the marker records again, is not taken for the finish of a recorded one.
    __slots__ = (
        "__weakref__",
        "_carried",
        "_clock",
        "_observer",
        "_recording",
        "_stacks",
        "_states",
        "_task_tracks",
        "actions",
        "by_hand",
        "categories",
        "name",
        "record_instant_on_finish",
        "record_instant_on_start",
    )

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
        self._carried = 0  # how many of the skipped ones were open when recording began
        # The slot: when its slice started, and on which track. 0 is free; 2 keeps it from being taken while there is anything
        # on the stacks.
        self._start = 0
        self._track = 0
        self._contended = 0  # how many slices are on the stacks, plus _carried
        self._stacks: dict[Hashable, list[tuple[int, int]]] = {}  # (start, track) by ident of the thread, or by task
        self._label = 0
        self._observer: MarkerObserver | None = None
        self._recording = True  # whether the clones of a marker that is shared do
        self._buffer: RecordBuffer = DETACHED
        self._states: MarkerStates | None = None
        self._clones: dict[int, Marker] = {}  # of a marker that is shared, by track of the thread
        self._clock: Callable[[], int] = time.perf_counter_ns
        self._task_tracks = _NO_TASKS

    def __repr__(self) -> str:
        return f"<Marker {self.name!r}>"

    # ---- slices -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Marker:
        if self._start:
            self._push(0, 0)  # inside a slice that is recorded: its finish must find this one on top
        else:
            self._skipped += 1  # atomic
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._start:
            self._exit_slow(exc_type, self._clock())  # some slice started while this was recording
        else:
            self._skipped -= 1

    def start(self) -> None:
        """Start a slice; `finish` ends it."""
        self.by_hand = True
        self.__enter__()

    def finish(self) -> None:
        """End the slice that this thread (or asyncio task) started last. Without one it does nothing."""
        if self._skipped or self._start:
            self._exit_slow(None, self._clock())  # which looks whose slice it is

    def _report_foreign_finish(self) -> None:
        """Log once that a slice is lost which another thread or task has started."""
        if self.name not in self._buffer.foreign_finishes:
            self._buffer.foreign_finishes.add(self.name)
            logger.warning(
                "tracekit: marker %r was finished by a thread or task that had not started it; the slice stays open. "
                "Use handle = marker.begin() and handle.end() across threads; this is logged once for each marker.",
                self.name,
            )

    def begin(self) -> SliceHandle:
        """Begin a slice that any thread may end, with the `SliceHandle.end` of what this returns.

        For work that one thread starts and another completes, such as a request or a copy. It is drawn as an async slice::

            handle = marker.begin()
            ...
            handle.end()  # or: with marker.begin(): ...
        """
        return SliceHandle(self, None, None)

    def now(self) -> int:
        """Return the monotonic time by which it records, ns."""
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
        """Whether the slice that the task which runs ends is open here, not in a marker behind this one.

        Of a thread, what began before this marker was shared ends last; its tasks end in any order.
        """
        return bool(self._stacks.get(current_task()))

    def _push(self, start: int, track: int) -> None:
        owner = current_owner()
        self._contended += 1
        if not self._start:
            self._start = 2  # atomic with the lines above and below: from now on every start goes the slow way
        try:
            self._stacks[owner].append((start, track))
        except KeyError:
            self._stacks[owner] = [(start, track)]

    def _enter_slow(self, track: int = 0) -> None:
        """Start a slice while another of this marker is open, or on a track of its own."""
        buffer = self._buffer
        track = track or buffer.thread_track()
        start = self._clock()
        if buffer is not self._buffer:  # it has passed to another profiler, with other tracks
            self.__enter__()
            return
        self._push(start, track)
        if self.record_instant_on_start:
            buffer.add(self._label, start, INSTANT, track)
        if self._observer is not None:
            self._observer.begin(self, track, start)

    def _exit_slow(self, exc_type: type[BaseException] | None, end: int) -> None:
        """End a slice when more than the one in the slot is open: the newest of this thread and task."""
        label, buffer = self._label, self._buffer
        if exc_type is not None:
            label = buffer.label(self.name, self.categories, {"exception": exc_type.__qualname__})
        has_room = buffer.has_room()
        owner = current_owner()
        stack = self._stacks.get(owner)
        mine = not stack and self._start > 2 and self._track == buffer.track_of_thread.get(_get_ident())
        if not stack and not mine:
            owner, stack = self._left_behind()
        start = track = 0
        is_foreign = False
        try:
            # Atomic from here to the end of ``extend``: a slice is either open or recorded, whenever the writer looks.
            if stack:
                start, track = stack[-1]
                del stack[-1]
                if not stack and owner.__class__ is not int:
                    del self._stacks[owner]  # a task does not come again, and a thread most probably does
                self._contended -= 1
            elif mine:
                start, track = self._start, self._track
                self._start = 2
            else:  # it was not recorded, or never started
                if self._carried:
                    self._carried -= 1
                    self._contended -= 1
                if self._skipped:
                    self._skipped -= 1
                elif self._start:
                    is_foreign = True
            if self._start == 2 and not self._contended:
                self._start = 0
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
        """Find a slice that nobody else can end any more: of a task that is done, or of a thread that has ended.

        An async generator that its consumer has left is closed by another task, and a generator by whichever thread drops it.
        """
        for owner, stack in list(self._stacks.items()):
            if not stack:
                continue
            is_thread = isinstance(owner, int)
            if owner not in self._buffer.track_of_thread if is_thread else owner.done():  # type: ignore[attr-defined]
                return owner, stack
        return 0, None

    def _mine(self) -> Marker:
        return self  # it was shared a moment ago

    def _clone(self) -> Marker:
        return self

    def _share(self) -> None:
        """Pass to the state of a marker that several threads use at once."""
        with self._buffer.lock:  # or the profiler could pass it to another state meanwhile
            if self._states is not None and self.__class__ is self._states.recording:
                self._recording = True
                self.__class__ = self._states.shared

    def open_slices(self) -> list[tuple[int, int, int]]:
        """Return (label, start, track) of every slice that is being recorded now; for the writer."""
        stacks = list(self._stacks.values())
        found = [(self._label, start, track) for stack in stacks for start, track in list(stack) if start]
        start, track = self._start, self._track
        if start > 2:
            found.append((self._label, start, track))
        return found

    def forget_slice(self, start: int, track: int) -> bool:
        """Forget a slice that nobody will end; for the writer. Return whether it was still open."""
        if self._start == start and self._track == track:
            self._start = 2 if self._contended else 0  # atomic
            return True
        for stack in list(self._stacks.values()):
            try:
                stack.remove((start, track))
            except ValueError:
                continue
            self._contended -= 1
            if self._start == 2 and not self._contended:
                self._start = 0
            return True
        return False

    # ---- instants and counters ----------------------------------------------------------------------------------------

    def instant(self) -> None:
        """Record that something happened now."""

    def counter(self, values: Mapping[str, float]) -> None:
        """Record the values of one or more series now.

        Args:
            values: Number by series name: int, float, `decimal.Decimal`, NumPy scalars and arrays without dimensions. Such
                an array is read later, within the flush interval; pass its ``item()`` if it changes in place. Anything
                else, a tensor included, is left out and counted, and logged once for each marker and reason.
        """

    def _refuse(self, values: object) -> None:
        """Count what was given as the values of a counter and is no mapping."""
        self._buffer.refused_values += 1
        self._buffer.refusals.setdefault(self.name, type(values).__name__)

    # ---- decorator ----------------------------------------------------------------------------------------------------

    @overload
    def __call__(self, function: F) -> F: ...
    @overload
    def __call__(self, function: None = None) -> Callable[[F], F]: ...
    def __call__(self, function: F | None = None) -> F | Callable[[F], F]:
        """Decorate a function: each call is a slice. Return values, exceptions and signatures stay as they are.

        A generator gets a slice for each time it runs (from being asked for a value to giving it), since between those
        its caller runs; an async generator likewise. ``@marker`` and ``@marker()`` are the same.
        """
        if function is None:
            return cast("Callable[[F], F]", self)
        return cast("F", decorate(self, function))

    # ---- attached to a profiler ---------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether a profiler has adopted it."""
        return self._buffer is not DETACHED

    def attach(self, buffer: RecordBuffer, states: MarkerStates, task_tracks: TaskTracks) -> None:
        """Record into a buffer from now on; still idle until `set_recording`."""
        self._buffer = buffer
        self._states = states
        self._label = buffer.label(self.name, self.categories)
        self._clock = states.clock
        self._task_tracks = task_tracks

    def set_recording(self, recording: bool, observer: MarkerObserver | None = None) -> None:
        """Pass to the recording or to the idle state. Slices that are open stay what they were at their start."""
        self._observer = observer
        if not recording:
            self.__class__ = Marker
            self._contended -= self._carried
            self._carried = 0
            if self._start == 2 and not self._contended:
                self._start = 0
            return
        if self.__class__ is Marker and self._skipped:
            # Their finishes must not be taken for those of recorded slices: send every finish the slow way.
            self._carried = self._skipped
            self._contended += self._carried
            self._start = self._start or 2
        observed = observer is not None or self.record_instant_on_start or self.record_instant_on_finish
        assert self._states is not None, "only an attached marker can record"
        self.__class__ = self._states.observed if observed else self._states.recording

    def forget_track(self) -> bool:
        """Forget the track of the last slice, if nothing is open. Return True if there was one since the last call."""
        was_used = self._track != 0
        if not self._start:
            self._track = 0  # atomic
        return was_used

    def detach(self) -> None:
        """Forget the profiler; its slices that are open become unrecorded ones. Called when its last records are taken."""
        self.set_recording(recording=False)
        self._skipped += sum(map(len, self._stacks.values())) + (self._start > 2)
        self._buffer = DETACHED
        self._task_tracks = _NO_TASKS  # or a module-level marker would keep the profiler
        self._start = self._contended = 0
        self._stacks.clear()

    def abandon_in_child(self) -> None:
        """Forget the profiler in a forked child, and the slices of the threads that the child does not have."""
        ident = _get_ident()
        # A task is taken for one of this thread, which forks: it is the one that runs.
        mine = sum(len(stack) for owner, stack in self._stacks.items() if owner == ident or not isinstance(owner, int))
        mine += self._start > 2 and self._track == self._buffer.track_of_thread.get(ident)
        open_here = self._skipped + mine
        self.detach()
        self._skipped = open_here


class SliceHandle:
    """One slice that `Marker.begin` has begun. `end` ends it, on any thread and in any order; so does leaving a ``with``.

    It is drawn as an async slice, on a track that belongs to no thread, since it may overlap every other slice.
    """

    __slots__ = ("_marker", "_observer", "_opened")

    def __init__(self, marker: Marker, buffer: RecordBuffer | None, observer: MarkerObserver | None) -> None:
        self._marker = marker
        self._observer = observer
        # (buffer, label, track, start) of the slice: whoever takes it ends it. Empty for one that is not recorded.
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
            observer.begin(marker, track, start)
        if start > buffer.due_ns:
            buffer.look_after(start)

    def end(self) -> None:
        """End the slice. A second call does nothing."""
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
        if buffer.add_edge(label, end, END, track):  # else its track is not used again
            buffer.free_async_tracks[buffer.label(self._marker.name, self._marker.categories)].append(track)
        if self._observer is not None:
            self._observer.end(self._marker, track, start, end, exception)
        if end > buffer.due_ns:
            buffer.look_after(end)
