"""Outlet: one trace handler, its thread, and the calls that wait for it."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import HandlerError, TracekitError
from tracekit.events import BEGIN, END, WIDTH
from tracekit.recording.failures import FailureLimit
from tracekit.recording.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, Summary, TraceHandler
    from tracekit.recording.failures import Failures

__all__ = ["ON_FULL", "Outlet"]

logger = logging.getLogger("tracekit")

ON_FULL: Final = ("drop_newest", "drop_oldest", "block")
"""What happens to events that do not fit, because a handler does not keep up."""

_ROOM_CHECK_S: Final = 0.01
_IDLE_S: Final = 3600.0
"""How long a thread that has nothing to do sleeps before it looks again; it is woken when there is something."""


class Outlet:
    """Calls all methods of one handler, from `open` to `close`, in the order of posting on one thread.

    A handler that blocks holds up neither the recording nor another handler. Events of inline handlers are skipped: they get
    them on the recording threads.

    Args:
        handler: The handler.
        failures: Where its failures are reported.
        summary: Returns the counts for the ``summary`` of the outlet's handler.
        limit_events: How many events may wait.
        on_full: One of `ON_FULL`.

    Attributes:
        waiting_events: How many events wait, those that the handler has been given and not returned included.
        dropped_events: How many did not fit.
        losses: What the handler said last of its own losses. It is asked on its thread, after each flush and at the end.
        busy_since_s: Since when the handler is in the call that it is in (``time.monotonic``); 0 when it is in none.
    """

    def __init__(
        self,
        handler: TraceHandler,
        failures: Failures,
        summary: Callable[[Outlet], Summary],
        *,
        limit_events: int,
        on_full: str,
    ) -> None:
        self.handler = handler
        self.waiting_events = 0
        self.dropped_events = 0
        self.busy_since_s = 0.0
        self.losses: Mapping[str, int] = {}
        self._name = type(handler).__name__
        self._failure_limit = FailureLimit(self._name, failures)
        self._summary = summary
        self._limit = limit_events
        self._on_full = on_full
        self._calls: deque[list[Any]] = deque()  # [method of the handler, or a function, args]
        self._lock = threading.Lock()  # of the queue; held for moments only
        self._wake = Signal()
        self._closing = False
        self._waits_for_room = True
        self._thread = threading.Thread(target=self._run, name=f"tracekit-writer {self._name}", daemon=True)

    def __repr__(self) -> str:
        return f"<Outlet {self._name}>"

    def open(self, recording: Recording) -> None:
        """Start the thread, open the handler on it, and wait for that.

        Raises:
            TracekitError: The handler cannot be opened.
        """
        opened, errors = Signal(), list[BaseException]()

        def open_handler() -> None:
            try:
                self.handler.open(recording)
            except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
                errors.append(error)
            opened.set()

        self._thread.start()
        self.post(open_handler)
        while not opened.wait(_IDLE_S):
            pass
        if not errors:
            return
        error = errors[0]
        if isinstance(error, TracekitError) or not isinstance(error, Exception):
            raise error
        raise HandlerError(f"{self._name} cannot be opened: {error}") from error

    def discard(self) -> None:
        """Close the handler of a profiler that does not start, quietly, and end the thread."""

        def close_handler() -> None:
            with suppress(BaseException):
                self.handler.close()

        self.post(close_handler)
        self.finish()

    @property
    def is_mine(self) -> bool:
        """Whether the thread that asks is the one that calls the handler."""
        return self._thread.ident == threading.get_ident()

    # ---- posting ------------------------------------------------------------------------------------------------------

    def post(self, method: str | Callable[..., object], *args: Any) -> None:
        """Have a method of the handler, or a function, called. Never waits."""
        self._calls.append([method, args])
        self._wake.set()

    def post_events(self, batch: EventBatch) -> None:
        """Have a batch given to the handler. If there is no room for it, waits only if that was asked for (``block``).

        Starts and ends of slices that are longer than a flush are never dropped: one without the other would break the nesting
        of what is written, and they are few.
        """
        if self.handler.inline:
            return
        if self.waiting_events and self.waiting_events + len(batch) > self._limit:
            batch = self._make_room(batch)
        with self._lock:
            self.waiting_events += len(batch)
            self._calls.append(["process_events", (batch,)])
        self._wake.set()

    def post_end(self, deadline_s: float) -> None:
        """Have the handler told how much time is left for the end of the recording.

        Args:
            deadline_s: When it must have closed (``time.monotonic``).
        """
        self.post(lambda: self._call("ending", (max(0.0, deadline_s - time.monotonic()),)))

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
            self._wake.wait(_IDLE_S)
            closing = self._closing
            while self._calls:
                with self._lock:
                    method, args = self._calls.popleft()
                self.busy_since_s = time.monotonic()
                self._call(method, args)
            self.busy_since_s = 0.0
            if closing:
                return

    def _call(self, method: str | Callable[..., object], args: tuple[Any, ...]) -> None:
        if not isinstance(method, str):
            method(*args)
            return
        try:
            if not self._failure_limit.is_reached or method == "close":
                if method == "summary":
                    self._ask_losses()
                    args = (self._summary(self),)
                getattr(self.handler, method)(*args)
        except BaseException as error:  # noqa: BLE001 - a handler's failure must not end this thread
            self._failure_limit.failed(method, error)
        else:
            if method == "process_events":
                self._failure_limit.succeeded()
        finally:
            if method == "process_events":
                with self._lock:
                    self.waiting_events -= len(args[0])
        if method in ("flush", "close"):
            self._ask_losses()

    def _ask_losses(self) -> None:
        with suppress(BaseException):  # a user's handler must not make asking fail
            self.losses = dict(self.handler.losses())

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
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()
