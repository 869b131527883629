"""RecordBuffer: the records of all markers as one flat list, their labels, and the track of every thread.

Markers append fixed-width records here, and handlers turn them into bytes. The compiled core replaces the list by an
object that behaves like a list; see `tracekit.recording.compiled`.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, COUNTER, COUNTER_BYTES, RECORD_BYTES, SERIES_BYTES, WIDTH, Label, Track, size_bytes
from tracekit.recording.compiled import BufferBase, forget_threads, new_records
from tracekit.recording.one_step import in_steps, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    OpenKey = tuple[int, int]  # start, track

# The first tid of lanes. Linux assigns tids below 2**22; Perfetto accepts tids up to 2**32 - 1.
LANE_TID: Final = 1 << 30
NEVER_NS: Final = 1 << 62  # A monotonic time that no clock reaches
_COUNTER_ENTRIES: Final = COUNTER_BYTES * WIDTH // RECORD_BYTES + 1
_SERIES_ENTRIES: Final = SERIES_BYTES * WIDTH // RECORD_BYTES + 1


@in_steps
class RecordBuffer(BufferBase):
    """The records, labels and tracks of one profiler.

    Thread-safe: every change is a single list or dict operation, which the GIL makes atomic, or a step of
    `tracekit.recording.one_step`. Labels are made under a lock, off the recording path.

    Attributes:
        records: Flat list of records (see `tracekit.events`). Markers call ``extend`` on it.
        track_of_thread: Track number by ``threading.get_ident()``. A plain dict, because its lookup is the
            cheapest; `thread_track` adds the track of a new thread.
        due_ns: Monotonic deadline of the writer for emptying the buffer. Recording threads call `look_after`,
            with the current time, at every event after it. 0 while events arrive faster than the writer takes
            them.
        lock: Held while labels and tracks are made, and while markers change state; with the GIL, never while a
            marker records.
        free_async_tracks: Tracks for async slices without an open slice, by label number.
        foreign_finishes: Names of markers that were finished by a thread that had not started them.
        wake: Called by an asleep marker at its first use, with the marker; see `AttachedMarkers`.
        forget_left: Forgets slices that their ``with`` did not end; see `AttachedMarkers`.
        wait_for_room: Called by a recording thread when the buffer is full. Returns True if there is room,
            possibly after waiting for it.
        max_entries: Maximum number of list entries, for Python code. The core has its own test for a full buffer.
        keep_before: Slices that started before this monotonic time are always kept: their start may be delivered
            already.
        entries_by_bytes: Number of entries that the byte limit allows, without the values of counters.
        refused_events: Events that Python code refused because of the event limit; see `refused`.
        refused_bytes: Events that Python code refused because of the byte limit.
        lost_events: Events lost to a `MemoryError`. May be too low when two threads count at the same time.
        refused_values: Counter calls with a value that is not a mapping.
        refusals: Type of the first such value, by marker name.
    """

    __slots__ = (
        "_entries_by_bytes_alone",
        "_held_bytes",
        "_held_events",
        "_label_numbers",
        "_local",
        "_max_bytes",
        "_max_events",
        "_tests_room",
        "entries_by_bytes",
        "foreign_finishes",
        "forget_left",
        "free_async_tracks",
        "keep_before",
        "labels",
        "lock",
        "look_after",
        "max_entries",
        "refusals",
        "refused_bytes",
        "refused_events",
        "tracks",
        "wait_for_room",
        "wake",
    )

    def __init__(self) -> None:
        self.records: list[Any] = new_records()
        self.labels: list[Label] = []
        # Track 0 means "no track", so that a marker can use 0 for "not open".
        self.tracks: list[Track] = [Track(0, "")]
        self.track_of_thread: dict[int, int] = {}
        self.due_ns = NEVER_NS
        self.look_after: Callable[[int], None] = _nothing
        self.wake: Callable[[Any], None] = _nothing
        self.forget_left: Callable[[Mapping[OpenKey, int]], Collection[OpenKey]] = _none_of
        self.free_async_tracks: dict[int, list[int]] = {}
        self.foreign_finishes: set[str] = set()
        self.wait_for_room: Callable[[], bool] = _no_room
        self._max_events = self._max_bytes = self.max_entries = self.entries_by_bytes = NEVER_NS
        self._entries_by_bytes_alone = NEVER_NS
        self._held_events = self._held_bytes = 0
        self._tests_room = isinstance(self.records, list)
        self.keep_before = 0
        self.refused_events = self.refused_bytes = 0
        self.lost_events = 0
        self.refused_values = 0
        self.refusals: dict[str, str] = {}
        self._local = threading.local()
        self._label_numbers: dict[Any, int] = {}
        # Re-entrant: a signal handler or a finaliser may make a marker while this thread makes one.
        self.lock = new_lock()

    def label(self, name: str, categories: tuple[str, ...] = (), args: Mapping[str, str] | None = None) -> int:
        """Return the number of a label, making it when it is new."""
        key = (name, categories, tuple(args.items()) if args else None)
        number = self._label_numbers.get(key)
        if number is None:
            with self.lock:
                number = self._label_numbers.get(key)
                if number is None:
                    self.labels.append(Label(name, categories, dict(args or {})))
                    number = self._label_numbers[key] = len(self.labels) - 1
        return number

    def new_track(self, name: str, tid: int | None = None) -> int:
        """Make a track. Without a tid it is a lane, with a tid that no thread has."""
        with self.lock:
            number = len(self.tracks)
            self.tracks.append(Track(LANE_TID + number if tid is None else tid, name, sort_index=number))
            return number

    def new_async_track(self, name: str) -> int:
        """Make a track of the process for async slices. It shows one slice at a time."""
        with self.lock:
            number = len(self.tracks)
            self.tracks.append(Track(os.getpid(), name, sort_index=number, async_id=LANE_TID + number))
            return number

    def thread_track(self) -> int:
        """Return the track of the current thread. Make it at the thread's first event.

        The track is forgotten when the thread ends, because the system reuses thread idents immediately and a new
        thread must not record on the track of an ended one. The end of the thread drops its thread-local values, which
        triggers this.
        """
        ident = threading.get_ident()
        number = self.track_of_thread.get(ident)
        if number is None:
            number = self.new_track(_thread_name(ident), threading.get_native_id())
            # Install the exit hook first: Ctrl-C may come in between.
            self._local.exit_hook = _ThreadExitHook(self.track_of_thread, ident)
            self.track_of_thread[ident] = number
        return number

    # ---- limits -------------------------------------------------------------------------------------------------------

    def limit(self, events: int, in_bytes: int, wait: Callable[[], bool] | None) -> None:
        """Limit the events that wait here and in the writer. Events beyond a limit are refused and counted.

        The compiled core tests the limits when it allocates rows, so that they cost nothing per event. ``wait`` waits
        for room and returns True if there is any, for ``on_full="block"``.
        """
        self._max_events, self._max_bytes = events, in_bytes
        self.wait_for_room = wait or _no_room
        records: Any = self.records
        if not isinstance(records, list):
            records.max_rows, records.max_bytes, records.waits = events, in_bytes, wait is not None
            self._tests_room = records.waits  # otherwise the core refuses by itself
        self.hold(0, 0)

    def hold(self, events: int, in_bytes: int) -> None:
        """Set the number and bytes of events that the writer has taken, but not passed on. They count as waiting."""
        self._held_events, self._held_bytes = events, in_bytes
        records: Any = self.records
        if isinstance(records, list):
            value_entries = self._entries_by_bytes_alone - self.entries_by_bytes
            self._entries_by_bytes_alone = (self._max_bytes - in_bytes) // RECORD_BYTES * WIDTH
            self.entries_by_bytes = self._entries_by_bytes_alone - value_entries
            self.max_entries = min((self._max_events - events) * WIDTH, self.entries_by_bytes)
            return
        records.held_rows, records.held_bytes = events, in_bytes
        if records.waits:  # otherwise the core refuses by itself
            self.max_entries = (self._max_events - events) * WIDTH

    def keep(self, before_ns: int) -> None:
        """Always accept slices that started before a monotonic time. Called by the writer before each cut."""
        self.keep_before = before_ns
        records: Any = self.records
        if not isinstance(records, list):
            records.keep_before = before_ns

    def is_full(self) -> bool:
        """Return True if the next event would be refused, or has to wait."""
        records: Any = self.records
        if isinstance(records, list):
            return len(records) >= self.max_entries
        return self._tests_room and bool(records.is_full())

    def has_room(self) -> bool:
        """Return True if another event fits. With ``on_full="block"``, wait for room."""
        return not self.is_full() or self.wait_for_room()

    def refuse(self) -> None:
        """Count an event that does not fit."""
        if self.max_entries < self.entries_by_bytes:
            self.refused_events += 1
        else:
            self.refused_bytes += 1

    @property
    def refused(self) -> tuple[int, int]:
        """Numbers of events refused because of the event limit and because of the byte limit."""
        records: Any = self.records
        if isinstance(records, list):
            return self.refused_events, self.refused_bytes
        return self.refused_events + records.refused_rows, self.refused_bytes + records.refused_bytes

    def add(self, label: int, time_ns: int, kind: int, what: Any) -> None:
        """Append a record, or count it as refused or lost. Never raises. For callers that need no atomic append."""
        if self._tests_room and not self.has_room() and not (kind >= 0 and time_ns < self.keep_before):
            self.refuse()
            return
        try:
            self.records.extend((label, time_ns, kind, what))
        except MemoryError:
            self.lost_events += 1
        else:
            if kind == COUNTER:  # the compiled core does not use these
                self.entries_by_bytes -= _COUNTER_ENTRIES + _SERIES_ENTRIES * len(what)
                self.max_entries = min(self.max_entries, self.entries_by_bytes)

    def add_edge(self, label: int, time_ns: int, kind: int, what: Any) -> bool:
        """Append the start or the end of a slice that is recorded as two events.

        Returns:
            True if it was recorded. An end is refused only without memory: without its end, the slice would stay open.
        """
        records: Any = self.records
        if kind == BEGIN and not (self.has_room() and (isinstance(records, list) or not records.is_full())):
            self.refuse()
            return False
        try:
            records += [label, time_ns, kind, what]  # in place; unlike extend of a compiled core, it refuses nothing
        except MemoryError:
            self.lost_events += 1
            return False
        return True

    def take(self, count: int) -> list[Any]:
        """Remove and return the first ``count`` entries. Markers may append at the same time."""
        if not isinstance(self.records, list):
            return self.records.take(count)
        taken = self.records[:count]
        self.entries_by_bytes = self._entries_by_bytes_alone  # taking the records also takes their counter values
        self.hold(self._held_events + count // WIDTH, self._held_bytes + size_bytes(taken))
        del self.records[:count]
        return taken


def _no_room() -> bool:
    """Refuse events that do not fit."""
    return False


def _nothing(_argument: object) -> None:
    """Do nothing: the default of `look_after` and `wake`."""


def _none_of(_slices: Mapping[OpenKey, int]) -> Collection[OpenKey]:
    """Forget no slice: the default of `forget_left`."""
    return ()


DETACHED: Final = RecordBuffer()  # The buffer of detached markers. Nothing is recorded into it.
# An ``__exit__`` that was looked up while its marker recorded takes the slow path, which finds nothing to record.
DETACHED.due_ns = 0


class _ThreadExitHook:
    """A thread-local value that forgets the track of its thread when the thread ends and drops it."""

    __slots__ = ("_ident", "_tracks")

    def __init__(self, tracks: dict[int, int], ident: int) -> None:
        self._tracks = tracks
        self._ident = ident

    def __del__(self) -> None:
        try:
            self._tracks.pop(self._ident, None)
            forget_threads()
        except (AttributeError, TypeError):
            pass  # Ctrl-C came during __init__, or the interpreter exits and has cleared the module's globals


def _thread_name(ident: int) -> str:
    """Return the name of a thread. Make no dummy `threading.Thread` for a thread that Python did not start."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]  # noqa: SLF001 - current_thread() would make one
    return str(thread.name) if thread is not None else f"thread {threading.get_native_id()}"
