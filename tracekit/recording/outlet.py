"""Outlet: one trace handler, and the calls that wait for it."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import BEGIN, END, WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Summary, TraceHandler
    from tracekit.recording.failures import Failures

__all__ = ["ON_FULL", "Outlet"]

logger = logging.getLogger("tracekit")

ON_FULL: Final = ("drop_newest", "drop_oldest", "block")
"""What happens to events that do not fit, because a handler does not keep up."""

_GIVE_UP_AFTER: Final = 10
_ROOM_CHECK_S: Final = 0.05


class Outlet:
    """Calls the methods of one handler in the order of posting, one at a time, on whichever thread delivers.

    A profiler with one handler delivers on its writer thread. With several, each handler has a thread of its own, so that one
    that blocks holds up no other. A recording thread may deliver too, when the thread that should is late. Thread-safe.

    Args:
        handler: The handler.
        failures: Where its failures are reported.
        summary: Gives the counts for the handler's ``summary``, from how many events it has missed.
        limit_events: How many events may wait.
        on_full: One of `ON_FULL`.

    Attributes:
        waiting_events: How many events wait, those that the handler has been given and not returned included.
        dropped_events: How many did not fit.
        progress: How often the handler has returned; it stands still while the handler blocks.
    """

    def __init__(
        self,
        handler: TraceHandler,
        failures: Failures,
        summary: Callable[[int], Summary],
        *,
        limit_events: int,
        on_full: str,
    ) -> None:
        self.handler = handler
        self.waiting_events = 0
        self.dropped_events = 0
        self.progress = 0
        self._failures = failures
        self._summary = summary
        self._limit = limit_events
        self._on_full = on_full
        self._calls: deque[list[Any]] = deque()  # [method, args]
        # Of the queue; re-entrant, since a signal handler may record while this thread posts.
        self._queue_lock = threading.RLock()
        self._lock = threading.Lock()  # held by the thread that delivers
        self._deliverer = 0  # its ident
        self._wake = threading.Event()
        self._closed = False
        self._left_out = False
        self._failed_in_a_row = 0
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Outlet {type(self.handler).__name__}>"

    # ---- posting ------------------------------------------------------------------------------------------------------

    def post(self, method: str, *args: Any) -> None:
        """Have a method of the handler called. Never waits."""
        if not self._left_out or method == "close":
            self._calls.append([method, args])
            self._wake.set()

    def post_events(self, batch: EventBatch) -> None:
        """Have a batch given to the handler. If there is no room for it, waits only if that was asked for (``block``).

        Starts and ends of slices that are longer than a flush are never dropped: one without the other would break the nesting
        of what is written, and they are few.
        """
        if self._left_out:
            return
        if self.waiting_events and self.waiting_events + len(batch) > self._limit and not self._make_room(len(batch)):
            batch = self._thinned(batch)
        with self._queue_lock:
            self.waiting_events += len(batch)
            self.post("process_events", batch)

    def post_signal(self, event: threading.Event) -> None:
        """Have an event set when everything that was posted before has been delivered."""
        self._calls.append(["", (event,)])
        self._wake.set()

    def _make_room(self, count: int) -> bool:
        if self._on_full == "drop_oldest":
            with self._queue_lock:
                for call in self._calls:
                    method, args = call
                    if method == "process_events" and self.waiting_events + count > self._limit:
                        thinned = self._thinned(args[0])
                        self.waiting_events += len(thinned) - len(args[0])
                        call[1] = (thinned,)
            return True
        if self._on_full == "block" and not self.is_delivering:
            while self.waiting_events and self.waiting_events + count > self._limit and not self._closed:
                self.deliver(blocking=False)
                time.sleep(_ROOM_CHECK_S)
            return True
        return False

    def _thinned(self, batch: EventBatch) -> EventBatch:
        """Return a batch without what may be dropped, and count that."""
        items = iter(batch.records)
        kept = [
            entry
            for record in zip(items, items, items, items, strict=True)
            if record[2] in (BEGIN, END)
            for entry in record
        ]
        count = len(batch) - len(kept) // WIDTH
        if not self.dropped_events and count:
            logger.warning(
                "tracekit: %s does not keep up; events beyond max_buffered_events are dropped (%s) and counted",
                type(self.handler).__name__,
                self._on_full,
            )
        self.dropped_events += count
        return dataclasses.replace(batch, records=kept)

    # ---- delivering ---------------------------------------------------------------------------------------------------

    @property
    def is_delivering(self) -> bool:
        """Whether the thread that asks is inside a call of the handler."""
        return self._deliverer == threading.get_ident()

    def deliver(self, *, blocking: bool = True) -> bool:
        """Make the calls that wait. Returns False if another thread is at it (or this one, further up its stack)."""
        if self.is_delivering or not self._lock.acquire(blocking=blocking):
            return False
        self._deliverer = threading.get_ident()
        try:
            while self._calls:
                with self._queue_lock:
                    method, args = self._calls.popleft()
                self._call(method, args)
                self.progress += 1
        finally:
            self._deliverer = 0
            self._lock.release()
        return True

    def _call(self, method: str, args: tuple[Any, ...]) -> None:
        if not method:
            for event in args:
                event.set()
            return
        try:
            if not self._left_out or method == "close":
                getattr(self.handler, method)(*((self._summary(self.dropped_events),) if method == "summary" else args))
        except BaseException as error:  # a handler's failure must not reach training or other handlers
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C while the main thread delivers
            self._failures.report(f"{type(self.handler).__name__}.{method}", error)
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= _GIVE_UP_AFTER and method != "close":
                logger.warning(
                    "tracekit: %s failed %d times in a row and is left out",
                    type(self.handler).__name__,
                    self._failed_in_a_row,
                )
                self._left_out = True
        else:
            if method == "process_events":
                self._failed_in_a_row = 0
        finally:
            if method == "process_events":
                with self._queue_lock:
                    self.waiting_events -= len(args[0])

    # ---- a thread of its own ------------------------------------------------------------------------------------------

    def start_thread(self) -> None:
        """Deliver on a thread of this outlet from now on."""
        self._thread = threading.Thread(
            target=self._run, name=f"tracekit-writer {type(self.handler).__name__}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self.deliver()
        self.deliver()

    def finish(self) -> None:
        """End the thread, if there is one, when it has delivered what waits; without one deliver it now."""
        self._closed = True
        self._wake.set()
        if self._thread is None:
            self.deliver()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Returns whether it has."""
        if self._thread is not None:
            self._thread.join(max(0.0, timeout_s))
        return self._thread is None or not self._thread.is_alive()

    def abandon(self) -> None:
        """Forget everything in a forked child."""
        self._left_out = True
        self._calls.clear()
        self._lock = threading.Lock()
        self._deliverer = 0
