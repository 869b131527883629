"""Batches: the batches of the training loop, their training time, and the handlers' hooks for their starts and ends."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracekit.events import Timestamps
from tracekit.recording.compiled import BatchesBase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.lanes import OpenSlice
    from tracekit.timestamp import Timestamp


class Batches(BatchesBase):
    """The batches of one profiler.

    A batch begins at its first event, which the writer detects when it delivers it, or at `begin`. So the start costs the
    training thread nothing, and the hooks of a batch that never begins are never called.

    Only the training thread ends batches and expects new ones. The writer posts the start hooks of the expected batch.

    Attributes:
        timestamp: The current training time.
        timestamps: The training time by monotonic time, for the events.
        log: The entries of ``timestamps``.
        start_ns: Monotonic time of the start of the running batch.
        label: Label of the slices of batches.
        track: Their track.
        is_recorded: True if the end of the running batch records a slice.
        has_begun: True if the running batch has begun and its slice is not recorded yet.
        expected: The batch that has not begun, at most one: the time from which its first event counts, the thread ident of
            that event, and the hooks to call then.
        posted: The calls of hooks that the writer takes: (time of a cut, time of the call, method, arguments).
        is_posting: True while the writer posts the start hooks of the expected batch.
        is_plain: True while a step only ends a batch and expects the next one: `end_plain` may do it.
    """

    __slots__ = ("_lock", "timestamps")

    def __init__(self, buffer: RecordBuffer, timestamp: Timestamp) -> None:
        self.buffer = buffer
        self.label = buffer.label("batch", ("training loop",))
        self.track = buffer.new_track("training loop")
        self.posted: deque[tuple[int | None, int | None, str, tuple[Any, ...]]] = deque()
        self.expected: list[tuple[int, int, tuple[tuple[str, Timestamp], ...]]] = []
        self.is_plain = self.is_recorded = self.has_begun = self.is_posting = False
        # Ensures that a start hook is posted before the hooks that follow it. Re-entrant, for signal handlers. The
        # writer never waits for it, because Ctrl-C may come while the training thread holds it.
        self._lock = threading.RLock()
        self.restart(timestamp, 0, 0)

    def restart(self, timestamp: Timestamp, since_ns: int, start_ns: int) -> None:
        """Begin to count: a training time since a moment, and the start of the first batch."""
        self.timestamp, self.start_ns = timestamp, start_ns
        self.timestamps = Timestamps(timestamp, since_ns)
        self.log = self.timestamps.log

    def abandon_in_child(self) -> None:
        """Forget the parent's loop in a forked child, where the writer that may have held the lock does not exist."""
        self._lock = threading.RLock()
        self.is_plain = False
        self.expected.clear()

    def running(self) -> OpenSlice | None:
        """Return (label, start, track) of the slice that the end of the running batch will record, or None."""
        return (self.label, self.start_ns, self.track) if self.is_recorded else None

    def move_to(self, timestamp: Timestamp, now_ns: int) -> None:
        """Set the training time from a moment on."""
        self.timestamp = timestamp
        self.timestamps.append(now_ns, timestamp)

    # ---- starts -------------------------------------------------------------------------------------------------------

    def expect_start(self, since_ns: int, *, new_epoch: bool = False) -> None:
        """Call the start hooks when the batch begins: at the first event of this thread since a time, or at `begin`."""
        epoch = (("epoch_start", self.timestamp),) if new_epoch else ()
        self.expected.append((since_ns, threading.get_ident(), (*epoch, ("batch_start", self.timestamp))))

    def expect_no_start(self, *, own: bool = False) -> tuple[tuple[str, Timestamp], ...]:
        """Cancel `expect_start`, or only a call of it on this thread (``own``). Return the calls that were not made."""
        with self._lock:
            if not self.expected or (own and self.expected[-1][1] != threading.get_ident()):
                return ()
            return self.expected.pop()[2]

    def begin(self) -> None:
        """Call the start hooks, if they were not called yet."""
        with self._lock:
            if self.expected:
                self.post_start(self.expected.pop()[2])

    def post_start(self, calls: tuple[tuple[str, Timestamp], ...], at_ns: int | None = None) -> None:
        """Queue the start hooks of a batch, and deliver its slice as running from now on.

        Without a time they come directly after the previous hook, which is the end of the last batch, and before
        every event of the batch.
        """
        for method, timestamp in calls:
            self.posted.append((None, at_ns, method, (timestamp,)))
        self.has_begun = True

    @contextmanager
    def posting(self) -> Iterator[bool]:
        """Let the writer post start hooks, unless the training thread is about to do so: False."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        self.is_posting = True
        try:
            yield True
        finally:
            self.is_posting = False
            self._lock.release()

    # ---- ends ---------------------------------------------------------------------------------------------------------

    def end(self, timestamp: Timestamp, now_ns: int) -> None:
        """End the running batch: record its slice, and queue ``batch_end``. The next one begins now.

        Args:
            timestamp: The training time from now on.
            now_ns: Monotonic time of the end.
        """
        self.begin()
        self.has_begun = False  # before the slice is recorded
        if self.is_recorded:
            self.buffer.add(self.label, self.start_ns, now_ns, self.track)
        self.move_to(timestamp, now_ns)
        self.posted.append((None, now_ns, "batch_end", (timestamp,)))
        self.start_ns = now_ns
