"""Where markers put their records: one flat list, the labels, and the track of every thread.

This is the recording half of a seam (fixed-width records in; bytes out in the handlers): with a compiled core, what keeps
the records looks like a list and is none, see `tracekit.recording.compiled`.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, COUNTER, COUNTER_BYTES, RECORD_BYTES, SERIES_BYTES, WIDTH, Label, Track, size_bytes
from tracekit.recording.compiled import BufferBase, forget_threads, new_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    OpenKey = tuple[int, int]  # start, track

__all__ = ["DETACHED", "LANE_TID", "NEVER_NS", "RecordBuffer"]

LANE_TID: Final = 1 << 30
"""Lanes get tids from here on. Linux's own are below 2**22; Perfetto takes up to 2**32 - 1."""

NEVER_NS: Final = 1 << 62
"""A monotonic time that no clock reaches."""


_COUNTER_ENTRIES: Final = COUNTER_BYTES * WIDTH // RECORD_BYTES + 1
_SERIES_ENTRIES: Final = SERIES_BYTES * WIDTH // RECORD_BYTES + 1


class RecordBuffer(BufferBase):
    """Records of one profiler, its labels and tracks.

    Thread-safe: every change is one operation of a list or dict, atomic under the interpreter lock; labels are made under a
    lock, off the recording path.

    Attributes:
        records: The flat list of records (see `tracekit.events`); markers call ``extend`` on it.
        labels: Label of every label number.
        tracks: Track of every track number.
        track_of_thread: Track number by ``threading.get_ident()``. A plain dict, the cheapest to look into; where a thread
            is missing, `thread_track` makes its track.
        due_ns: The monotonic time from which on recording threads call `look_after` at every event: when the writer should
            have emptied the buffer, or 0 while more comes than it can take.
        lock: Held while labels and tracks are made, and while markers pass from one state to another; never while one records.
        look_after: What they call then, with the time; set by the writer.
        free_async_tracks: Tracks of async slices on which none is open, by label.
        foreign_finishes: Names of markers that a thread has finished which had not started them.
        wake: What a marker that is asleep calls at its first use, with itself; see `AttachedMarkers`.
        forget_left: Forgets those of some open slices whose ``with`` was left; see `AttachedMarkers`.
        wait_for_room: What they call when the buffer is full: waits, or not, and returns whether there is room; set by the
            writer.
        max_entries: From how many entries on Python code takes the buffer for full. A compiled core looks by itself.
        keep_before: Slices that started before this monotonic time are always kept, since their start may be delivered.
        entries_by_bytes: How many their bytes allow, less what the values of counters take.
        refused_events: How many events Python code has refused for their number; see `refused`.
        refused_bytes: How many for their bytes.
        lost_events: How many events there was no memory for. May be short when two threads count at once.
        refused_values: How many counters were no mappings.
        refusals: The type of the first of them, by the marker's name.
    """

    __slots__ = (
        "_entries_by_bytes_alone",
        "_held_bytes",
        "_held_events",
        "_label_numbers",
        "_local",
        "_max_bytes",
        "_max_events",
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
        # Track 0 stands for "no track", so that a marker can use 0 for "not open".
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
        self.keep_before = 0
        self.refused_events = self.refused_bytes = 0
        self.lost_events = 0
        self.refused_values = 0
        self.refusals: dict[str, str] = {}
        self._local = threading.local()
        self._label_numbers: dict[Any, int] = {}
        # Re-entrant: a signal handler or a finaliser may make a marker while this thread makes one.
        self.lock = threading.RLock()

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
        """Make a track; without a tid it is a lane and gets a number that no thread has."""
        with self.lock:
            number = len(self.tracks)
            self.tracks.append(Track(LANE_TID + number if tid is None else tid, name, sort_index=number))
            return number

    def new_async_track(self, name: str) -> int:
        """Make a track for async slices, one at a time; it belongs to the process."""
        with self.lock:
            number = len(self.tracks)
            self.tracks.append(Track(os.getpid(), name, sort_index=number, async_id=LANE_TID + number))
            return number

    def thread_track(self) -> int:
        """Return the track of the thread that runs, making it at its first event.

        It is forgotten when the thread ends, which shows by its thread-local values being dropped: idents are used again at
        once, and a new thread must not record on a dead one's track.
        """
        ident = threading.get_ident()
        number = self.track_of_thread.get(ident)
        if number is None:
            number = self.new_track(_thread_name(ident), threading.get_native_id())
            # First what forgets it: Ctrl-C may come in between.
            self._local.farewell = _Farewell(self.track_of_thread, ident)
            self.track_of_thread[ident] = number
        return number

    # ---- limits -------------------------------------------------------------------------------------------------------

    def limit(self, events: int, in_bytes: int, wait: Callable[[], bool] | None) -> None:
        """Refuse and count events when so many, or so many bytes, wait here and in the hands of the writer.

        The compiled core refuses where it makes room for more rows, so that the limit costs nothing for each event.

        Args:
            events: How many events may wait.
            in_bytes: How many bytes they may take, about.
            wait: Waits for room and returns whether there is any, for ``on_full="block"``; None refuses.
        """
        self._max_events, self._max_bytes = events, in_bytes
        self.wait_for_room = wait or _no_room
        records: Any = self.records
        if not isinstance(records, list):
            records.max_rows, records.max_bytes, records.waits = events, in_bytes, wait is not None
        self.hold(0, 0)

    def hold(self, events: int, in_bytes: int) -> None:
        """Count events that the writer has taken and not passed on as waiting here. Called by the writer."""
        self._held_events, self._held_bytes = events, in_bytes
        records: Any = self.records
        if isinstance(records, list):
            value_entries = self._entries_by_bytes_alone - self.entries_by_bytes
            self._entries_by_bytes_alone = (self._max_bytes - in_bytes) // RECORD_BYTES * WIDTH
            self.entries_by_bytes = self._entries_by_bytes_alone - value_entries
            self.max_entries = min((self._max_events - events) * WIDTH, self.entries_by_bytes)
            return
        records.held_rows, records.held_bytes = events, in_bytes
        if records.waits:  # else it refuses by itself
            self.max_entries = (self._max_events - events) * WIDTH

    def keep(self, before_ns: int) -> None:
        """Keep slices that started before a monotonic time, also in a full buffer. Called by the writer before each cut."""
        self.keep_before = before_ns
        records: Any = self.records
        if not isinstance(records, list):
            records.keep_before = before_ns

    def is_full(self) -> bool:
        """Return whether another event would be refused, or has to wait."""
        records: Any = self.records
        if isinstance(records, list):
            return len(records) >= self.max_entries
        return bool(records.waits) and records.is_full()  # else it refuses by itself

    def has_room(self) -> bool:
        """Return whether another event fits; waits for that with ``on_full="block"``."""
        return not self.is_full() or self.wait_for_room()

    def refuse(self) -> None:
        """Count an event that does not fit."""
        if self.max_entries < self.entries_by_bytes:
            self.refused_events += 1
        else:
            self.refused_bytes += 1

    @property
    def refused(self) -> tuple[int, int]:
        """How many events were refused for the number of those that wait, and for their bytes."""
        records: Any = self.records
        if isinstance(records, list):
            return self.refused_events, self.refused_bytes
        return self.refused_events + records.refused_rows, self.refused_bytes + records.refused_bytes

    def add(self, label: int, time_ns: int, kind: int, what: Any) -> None:
        """Append a record where that need not be atomic, or count it. Raises nothing."""
        if not self.has_room() and not (kind >= 0 and time_ns < self.keep_before):
            self.refuse()
            return
        try:
            self.records.extend((label, time_ns, kind, what))
        except MemoryError:
            self.lost_events += 1
        else:
            if kind == COUNTER:
                self.count_values(what)

    def add_edge(self, label: int, time_ns: int, kind: int, what: Any) -> bool:
        """Append the start or the end of a slice that is recorded as two events.

        Returns:
            Whether it was recorded. The end always is, where there is memory: without it the start would stay open.
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

    def count_values(self, values: Mapping[str, Any]) -> None:
        """Count the memory of a counter's values. The compiled core does so by itself."""
        self.entries_by_bytes -= _COUNTER_ENTRIES + _SERIES_ENTRIES * len(values)
        self.max_entries = min(self.max_entries, self.entries_by_bytes)

    def take(self, count: int) -> list[Any]:
        """Remove and return the first ``count`` entries; markers may go on appending meanwhile."""
        if not isinstance(self.records, list):
            return self.records.take(count)
        taken = self.records[:count]
        self.entries_by_bytes = self._entries_by_bytes_alone  # the values of its counters go with them
        self.hold(self._held_events + count // WIDTH, self._held_bytes + size_bytes(taken))
        del self.records[:count]
        return taken


def _no_room() -> bool:
    """Refuse events that do not fit."""
    return False


def _nothing(_argument: object) -> None:
    """Stand in for the writer, or for what wakes markers, while there is none."""


def _none_of(_slices: Mapping[OpenKey, int]) -> Collection[OpenKey]:
    """Forget no slice: stands in for the markers while there are none."""
    return ()


DETACHED: Final = RecordBuffer()
"""The buffer of markers that have none: nothing is recorded into it."""
# An exit that was looked up while its marker recorded goes the slow way, which finds nothing to record.
DETACHED.due_ns = 0


class _Farewell:
    """Lives in a thread's local values; forgets the thread's track when they are dropped with the thread."""

    __slots__ = ("_ident", "_tracks")

    def __init__(self, tracks: dict[int, int], ident: int) -> None:
        self._tracks = tracks
        self._ident = ident

    def __del__(self) -> None:
        try:
            self._tracks.pop(self._ident, None)
            forget_threads()
        except (AttributeError, TypeError):
            pass  # Ctrl-C came while it was made; or this is the interpreter's end, and what would be called is gone


def _thread_name(ident: int) -> str:
    """Return a thread's name without making a dummy Thread for one that Python did not start."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]  # noqa: SLF001 - current_thread() would make one
    return str(thread.name) if thread is not None else f"thread {threading.get_native_id()}"
