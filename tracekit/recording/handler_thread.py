"""HandlerThread: calls one trace handler on a thread, from a queue."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from tracekit.errors import ConfigError, HandlerError, TracekitError
from tracekit.events import BEGIN, END, WIDTH, count_kinds, size_bytes
from tracekit.handlers.base import TraceHandler, process_event
from tracekit.recording.event_order import EventOrder
from tracekit.recording.failures import FailureLimit
from tracekit.recording.one_step import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, Summary
    from tracekit.recording.failures import Failures

# The policies for events that do not fit because a handler does not keep up
ON_FULL: Final = ("drop_newest", "drop_oldest", "block")
BEYOND_EVENTS: Final = "events beyond max_buffered_events"
BEYOND_BYTES: Final = "events beyond max_buffered_bytes"
FAILED: Final = "events on which the trace handler failed"
LEFT_OUT: Final = "events after the trace handler was left out"
LEFT_BEHIND: Final = "events left behind when the profiler stopped"
_HELD_BYTES: Final = 400  # approximate memory of an event that is held for its order
_PER_STEP: Final = ("batch_start", "batch_end")
# With more waiting calls, hooks of every step are skipped, because a handler may block without end
_MOST_CALLS: Final = 20_000
_ROOM_CHECK_S: Final = 0.01
_IDLE_S: Final = 3600.0  # Maximum sleep of an idle thread. A new call wakes it earlier.
# The handlers that threads call, by id. In a forked child, those of the parent, until they are freed.
_in_use: Final[WeakValueDictionary[int, TraceHandler]] = WeakValueDictionary()


class Signal:
    """An auto-reset event: any thread sets it, one thread waits for it, and `wait` resets it.

    `threading.Event` holds a lock in Python code. A KeyboardInterrupt after the lock is taken, but before the ``try``
    block that releases it, leaves it locked, and the next `set` hangs. Here each step is one call of C code.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next thread that waits."""
        if self._lock.locked():
            with suppress(RuntimeError):  # set by another thread in between
                self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set. Return False on a timeout."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))


logger = logging.getLogger("tracekit")


class _Call:
    """A waiting call of a handler's method, or of a function; of a batch, its number of events and their approximate memory."""

    __slots__ = ("args", "events", "method", "size_bytes")

    def __init__(self, method: str | Callable[..., object], args: tuple[Any, ...]) -> None:
        self.method = method
        self.args = args
        self.events = self.size_bytes = 0

    @property
    def batch(self) -> EventBatch:
        """The events that it delivers."""
        batch: EventBatch = self.args[0]
        return batch

    @batch.setter
    def batch(self, batch: EventBatch) -> None:
        self.args = (batch,)
        (begins,) = count_kinds(batch.records, BEGIN)
        self.events = len(batch) - begins
        self.size_bytes = size_bytes(batch.records)


class HandlerThread:
    """Calls all methods of one handler, from `open` to `close`, on one thread and in the order of posting.

    A handler that blocks delays neither the recording nor another handler. A handler thread skips the events of an
    inline handler, which receives them on the recording threads.

    Attributes:
        waiting_events: Number of waiting events, including those of the current call.
        waiting_bytes: Their approximate memory.
        dropped: Number of events that the handler missed, by reason; a slice counts at its end.
        is_given_up: True if the profiler has stopped waiting for the handler. Events that still wait are then
            dropped.
        losses: The latest result of the handler's ``losses``.
        busy_since_s: Start of the handler's current call (``time.monotonic``), or 0 between calls.
    """

    def __init__(
        self,
        handler: TraceHandler,
        failures: Failures,
        summary: Callable[[HandlerThread], Summary],
        *,
        limit_events: int,
        limit_bytes: int,
        on_full: str,
        loop_track: int,
    ) -> None:
        self.handler = handler
        self.waiting_events = 0
        self.waiting_bytes = 0
        self.dropped: Counter[str] = Counter()
        self.is_given_up = False
        self.busy_since_s = 0.0
        self.losses: Mapping[str, int] = {}
        self._name = type(handler).__name__
        self._failures = failures
        self._failure_limit = FailureLimit(self._name, failures)
        # A handler that takes batches sorts the events by itself if it needs to.
        takes_batches = (
            handler.inline or getattr(handler.process_events, "__func__", None) is not TraceHandler.process_events
        )
        self._order = None if takes_batches else EventOrder(loop_track)
        self._summary = summary
        self._limit_events = limit_events
        self._limit_bytes = limit_bytes
        self._on_full = on_full
        self._calls: deque[_Call] = deque()
        self._lock = threading.Lock()  # protects the queue; held only briefly
        self._wake = Signal()
        self._round_waits = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"tracekit-writer {self._name}", daemon=True)

    def __repr__(self) -> str:
        return f"<HandlerThread {self._name}>"

    def check(self) -> None:
        """Raise ConfigError if another profiler uses the handler, which would mix their events."""
        if id(self.handler) in _in_use:
            raise ConfigError(f"{self._name} is in use by another Profiler; make a handler for each")

    def open(self, recording: Recording) -> None:
        """Start the thread, and open the handler on it. Return when it is open, or raise its error as a `TracekitError`."""
        opened, errors = Signal(), list[BaseException]()

        def open_handler() -> None:
            try:
                self.handler.open(recording)
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                errors.append(error)
            opened.set()

        self._thread.start()
        if not self.handler.inline:
            _in_use[id(self.handler)] = self.handler
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
        """Close the handler of a profiler that failed to start, ignoring errors, and end the thread."""

        def close_handler() -> None:
            with suppress(BaseException):
                self.handler.close()

        self.post(close_handler)
        self.finish()

    @property
    def is_mine(self) -> bool:
        """True on the thread that calls the handler."""
        return self._thread.ident == threading.get_ident()

    # ---- posting ------------------------------------------------------------------------------------------------------

    def post(self, method: str | Callable[..., object], *args: Any) -> None:
        """Queue a call of a handler's method, or of a function. Never waits."""
        self._calls.append(_Call(method, args))
        self._wake.set()

    def post_events(self, batch: EventBatch) -> None:
        """Queue a batch for the handler. If there is no room for it, wait only with ``on_full="block"``.

        Never drops the start or the end of a slice that is longer than a flush: a start without an end would break the
        nesting in the file. These events are few.
        """
        if self.handler.inline or (not len(batch) and self._order is None):
            return
        call = _Call("process_events", ())
        call.batch = batch
        if self.waiting_events and not self._fits(call):
            self._make_room(call)
            if not call.batch:  # a handler that hangs must not collect empty batches
                return
        if self._order is not None:
            call.size_bytes += _HELD_BYTES * call.events
        with self._lock:
            self.waiting_events += call.events
            self.waiting_bytes += call.size_bytes
            self._calls.append(call)
        self._wake.set()

    def post_hook(self, time_ns: int | None, method: str, args: tuple[Any, ...]) -> None:
        """Queue a hook of the training loop, in time order with the events. Skip step hooks if too many calls wait."""
        if self._order is None:
            hook = getattr(self.handler, method)
            if getattr(hook, "__func__", hook) is getattr(TraceHandler, method):
                return  # the handler does not override it
        if method in _PER_STEP and len(self._calls) >= _MOST_CALLS:
            self._failures.counts[f"{self._name}: hooks left out"] += 1
        elif self._order is None:
            self.post(method, *args)
        else:
            self.post(self._order.add_hook, time_ns, method, args)

    def post_round(self, until_ns: int | None, *, flush: bool) -> None:
        """Queue the delivery of held events up to a monotonic time (None: all), and a flush if asked for.

        Does nothing if a round still waits and ``until_ns`` is set.
        """
        if self._round_waits and until_ns is not None:
            return
        self._round_waits = True
        self.post(self._end_round, until_ns, flush)

    def post_end_running(self, time_ns: int) -> None:
        """Queue the end of the slice of the running batch, at the end of the recording."""
        if self._order is not None:
            self.post(self._order.end_running, time_ns)

    def post_end(self, deadline_s: float) -> None:
        """Queue a call of the handler's ``ending`` with the seconds that remain until a deadline (``time.monotonic``)."""
        self.post(lambda: self._call("ending", (max(0.0, deadline_s - time.monotonic()),)))

    def _fits(self, call: _Call) -> bool:
        """Return True if there is room for a batch."""
        return (
            self.waiting_events + call.events <= self._limit_events
            and self.waiting_bytes + call.size_bytes <= self._limit_bytes
        )

    def _make_room(self, call: _Call) -> None:
        """Apply ``on_full``: wait for room, drop waiting events, or drop events of this batch."""
        self._deliver_held(call)
        if self._on_full == "block":
            while self.waiting_events and not self.is_given_up and not self._fits(call):
                time.sleep(_ROOM_CHECK_S)
                self._deliver_held(call)
        elif self._on_full == "drop_newest":
            left_bytes = max(0, self._limit_bytes - self.waiting_bytes)
            by_bytes = left_bytes * call.events // max(1, call.size_bytes)
            reason = self._exceeded(call)
            self._thin(call, max(0, min(self._limit_events - self.waiting_events, by_bytes)), reason)
        else:
            with self._lock:
                for waiting in copy_of(self._calls):  # `post` appends from other threads without the lock
                    if self._fits(call):
                        break
                    if waiting.events:
                        before_events, before_bytes = waiting.events, waiting.size_bytes
                        self._thin(waiting, 0, self._exceeded(call))
                        self.waiting_events -= before_events - waiting.events
                        self.waiting_bytes -= before_bytes - waiting.size_bytes
                        if not waiting.batch:
                            self._calls.remove(waiting)

    def _deliver_held(self, call: _Call) -> None:
        """Let the events that are held for their order make room; the writer posts no round while it waits."""
        if self._order is not None:
            self.post_round(call.batch.cut_ns, flush=True)

    def _exceeded(self, call: _Call) -> str:
        """Return the limit that a batch exceeds."""
        return BEYOND_EVENTS if self.waiting_events + call.events > self._limit_events else BEYOND_BYTES

    def _thin(self, call: _Call, keep: int, reason: str) -> None:
        """Drop and count the events of a batch after the first ``keep``. Keep all starts and ends of long slices."""
        batch, before = call.batch, call.events
        position = keep * WIDTH
        items = iter(batch.records[position:])
        kept: Any = batch.records[:position]
        for record in zip(items, items, items, items, strict=True):
            if record[2] in (BEGIN, END):
                kept += record
        call.batch = dataclasses.replace(batch, records=kept)
        count = before - call.events
        if count and not (self.dropped[BEYOND_EVENTS] or self.dropped[BEYOND_BYTES]):
            logger.warning(
                "tracekit: %s does not keep up; %s are dropped (%s) and counted", self._name, reason, self._on_full
            )
        self.dropped[reason] += count

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(_IDLE_S)
            closing = self._closing
            while self._calls:
                with self._lock:
                    call = self._calls.popleft()
                self.busy_since_s = time.monotonic()
                if call.method == "process_events":
                    self._deliver(call)
                else:
                    self._call(call.method, call.args)
                del call  # its events take memory, and are no longer counted
            self.busy_since_s = 0.0
            if closing:
                _in_use.pop(id(self.handler), None)
                return

    def _deliver(self, call: _Call) -> None:
        """Pass a batch to the handler, or count its events as missed."""
        missed = self._reason_to_miss()
        if not missed and self._order is not None:
            self._order.add_batch(call.batch)  # its events count as waiting until they are delivered
            return
        if not missed and self._call("process_events", call.args):
            self._failure_limit.succeeded()
        elif not missed:
            missed = FAILED
        with self._lock:
            self.waiting_events -= call.events
            self.waiting_bytes -= call.size_bytes
        if missed and call.events:
            self.dropped[missed] += call.events

    def _reason_to_miss(self) -> str:
        """Return the reason why the handler takes no more events, or no text."""
        if self.is_given_up:
            return LEFT_BEHIND
        return LEFT_OUT if self._failure_limit.is_reached else ""

    def _end_round(self, until_ns: int | None, flush: bool) -> None:
        """Deliver the held events up to a monotonic time, and flush."""
        self._round_waits = False
        if self._order is not None:
            late = self._order.late
            self._order.deliver(until_ns, self._give, self._call)
            if self._order.late > late:
                self._failures.counts[f"{self._name}: late events"] += self._order.late - late
        if flush:
            self._call("flush", ())

    def _give(self, _batch: EventBatch, event: Any, counts: bool) -> None:
        """Pass one event to the handler, or count it as missed."""
        missed = self._reason_to_miss()
        if not missed:
            try:
                process_event(self.handler, event)
            except BaseException as error:  # noqa: BLE001 - a handler's failure must not end this thread
                self._failure_limit.failed("process_events", error)
                missed = FAILED
            else:
                self._failure_limit.succeeded()
        if counts:
            with self._lock:
                self.waiting_bytes -= self.waiting_bytes // max(1, self.waiting_events)
                self.waiting_events -= 1
            if missed:
                self.dropped[missed] += 1

    def _call(self, method: str | Callable[..., object], args: tuple[Any, ...]) -> bool:
        """Call a function, or a method of a handler that is not disabled. Return False if it failed."""
        if not isinstance(method, str):
            method(*args)
            return True
        try:
            if not self._failure_limit.is_reached or method == "close":
                if method == "summary":
                    self._ask_losses()
                    args = (self._summary(self),)
                getattr(self.handler, method)(*args)
        except BaseException as error:  # noqa: BLE001 - a handler's failure must not end this thread
            self._failure_limit.failed(method, error)
            return False
        if method in ("flush", "close"):
            self._ask_losses()
        return True

    def _ask_losses(self) -> None:
        with suppress(BaseException):  # ignore errors of a user's handler
            self.losses = dict(self.handler.losses())

    # ---- the end ------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Stop waiting for the handler. Waiting events count as left behind unless the handler still takes them."""
        self.is_given_up = True

    def finish(self) -> None:
        """End the thread after the waiting calls."""
        self._closing = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Return True if it has ended."""
        if self._thread.ident is not None:  # None if it could not be started
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()
