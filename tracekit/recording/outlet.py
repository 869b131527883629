"""Outlet: one trace handler, its thread, and the calls that wait for it."""

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
    from tracekit.recording.signal import Signal

__all__ = ["ON_FULL", "Outlet"]

logger = logging.getLogger("tracekit")

ON_FULL: Final = ("drop_newest", "drop_oldest", "block")
"""What happens to events that do not fit, because a handler does not keep up."""

_GIVE_UP_AFTER: Final = 10
_ROOM_CHECK_S: Final = 0.01


class Outlet:
    """Calls the methods of one handler in the order of posting, on a thread of its own.

    So a handler that blocks holds up neither the recording nor another handler. Calls are posted by one thread at a time.

    Args:
        handler: The handler.
        failures: Where its failures are reported.
        summary: Gives the counts for the handler's ``summary``, from how many events it has missed.
        limit_events: How many events may wait.
        on_full: One of `ON_FULL`.

    Attributes:
        waiting_events: How many events wait, those that the handler has been given and not returned included.
        dropped_events: How many did not fit.
        busy_since_s: Since when the handler is in the call that it is in (``time.monotonic``); 0 when it is in none.
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
        self.busy_since_s = 0.0
        self._name = type(handler).__name__
        self._failures = failures
        self._summary = summary
        self._limit = limit_events
        self._on_full = on_full
        self._calls: deque[list[Any]] = deque()  # [method, args]
        self._lock = threading.Lock()  # of the queue; held for moments only
        self._wake = threading.Event()
        self._closing = False
        self._waits_for_room = True
        self._left_out = False
        self._failed_in_a_row = 0
        self._thread = threading.Thread(target=self._run, name=f"tracekit-writer {self._name}", daemon=True)

    def __repr__(self) -> str:
        return f"<Outlet {self._name}>"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_mine(self) -> bool:
        """Whether the thread that asks is the one that calls the handler."""
        return self._thread.ident == threading.get_ident()

    # ---- posting ------------------------------------------------------------------------------------------------------

    def post(self, method: str, *args: Any) -> None:
        """Have a method of the handler called. Never waits."""
        self._calls.append([method, args])
        self._wake.set()

    def post_events(self, batch: EventBatch) -> None:
        """Have a batch given to the handler. If there is no room for it, waits only if that was asked for (``block``).

        Starts and ends of slices that are longer than a flush are never dropped: one without the other would break the nesting
        of what is written, and they are few.
        """
        if self.waiting_events and self.waiting_events + len(batch) > self._limit:
            batch = self._make_room(batch)
        with self._lock:
            self.waiting_events += len(batch)
            self._calls.append(["process_events", (batch,)])
        self._wake.set()

    def post_signal(self, event: Signal) -> None:
        """Have an event set when everything that was posted before has been delivered."""
        self.post("", event)

    def _make_room(self, batch: EventBatch) -> EventBatch:
        """Return what of a batch there is room for, after making room as was asked for."""
        if self._on_full == "drop_newest":
            return self._thinned(batch, keep=self._limit - self.waiting_events)
        if self._on_full == "drop_oldest":
            with self._lock:
                for call in self._calls:
                    if call[0] == "process_events" and self.waiting_events + len(batch) > self._limit:
                        thinned = self._thinned(call[1][0], keep=0)
                        self.waiting_events += len(thinned) - len(call[1][0])
                        call[1] = (thinned,)
            return batch
        while self._waits_for_room and self.waiting_events and self.waiting_events + len(batch) > self._limit:
            time.sleep(_ROOM_CHECK_S)
        return batch

    def _thinned(self, batch: EventBatch, keep: int) -> EventBatch:
        """Return the first events of a batch, and of the rest what may not be dropped; count what is."""
        position = max(0, keep) * WIDTH
        items = iter(batch.records[position:])
        kept = list(batch.records[:position])
        for record in zip(items, items, items, items, strict=True):
            if record[2] in (BEGIN, END):
                kept += record
        count = len(batch) - len(kept) // WIDTH
        if not self.dropped_events and count:
            logger.warning(
                "tracekit: %s does not keep up; events beyond max_buffered_events are dropped (%s) and counted",
                self._name,
                self._on_full,
            )
        self.dropped_events += count
        return dataclasses.replace(batch, records=kept)

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            while self._calls:
                with self._lock:
                    method, args = self._calls.popleft()
                self.busy_since_s = time.monotonic()
                self._call(method, args)
            self.busy_since_s = 0.0
            if closing:
                return

    def _call(self, method: str, args: tuple[Any, ...]) -> None:
        if not method:
            args[0].set()
            return
        try:
            if not self._left_out or method == "close":
                getattr(self.handler, method)(*((self._summary(self.dropped_events),) if method == "summary" else args))
        except BaseException as error:  # noqa: BLE001 - a handler's failure must not end this thread
            self._failures.report(f"{self._name}.{method}", error)
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= _GIVE_UP_AFTER and method != "close":
                logger.warning(
                    "tracekit: %s failed %d times in a row and is left out", self._name, self._failed_in_a_row
                )
                self._left_out = True
        else:
            if method == "process_events":
                self._failed_in_a_row = 0
        finally:
            if method == "process_events":
                with self._lock:
                    self.waiting_events -= len(args[0])

    # ---- the end ------------------------------------------------------------------------------------------------------

    def wait_no_more(self) -> None:
        """Wait for room no more: the profiler has given the handler up. What it cannot take stays in memory."""
        self._waits_for_room = False

    def finish(self) -> None:
        """End the thread when it has delivered what waits."""
        self._closing = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Returns whether it has."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()
