"""Writer: the thread that takes records out of the buffer and gives them to the handlers."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import COUNTER, INSTANT, WIDTH, EventBatch, Timestamps
from tracekit.handlers.base import Summary
from tracekit.recording.clock_watch import ClockWatch
from tracekit.recording.lanes import Lanes, OpenSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Timeline
    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.failures import Failures

__all__ = ["Writer"]

logger = logging.getLogger("tracekit")

_GIVE_UP_AFTER: Final = 10


class Writer:
    """Delivers what is in the buffer, at every flush interval and when asked, from one thread of its own.

    A flush is a *cut* through time: it delivers every event up to a moment, and says of the slices that are open at that moment
    that they have started. So handlers get each recording thread's events in order, whatever the threads do meanwhile.

    Args:
        buffer: Where the records are.
        handlers: Who takes them; opened already.
        timeline: Time scale of the recording.
        timestamps: Which training time was current when.
        open_slices: Tells which slices are open now.
        failures: Where failures of handlers are reported.
        interval_s: Seconds between flushes.
    """

    def __init__(
        self,
        buffer: RecordBuffer,
        handlers: Sequence[TraceHandler],
        timeline: Timeline,
        timestamps: Timestamps,
        open_slices: Callable[[], list[OpenSlice]],
        failures: Failures,
        interval_s: float,
    ) -> None:
        self.overflowed = 0
        """How many events the profiler has thrown away because the handlers did not keep up."""
        self._slices = self._instants = self._counters = self._counter_values_refused = 0
        self._buffer = buffer
        self._handlers = list(handlers)
        self._timeline = timeline
        self._timestamps = timestamps
        self._open_slices = open_slices
        self._failures = failures
        self._interval_s = interval_s
        self._lanes = Lanes(buffer)
        self._carry: list[Any] = []  # taken from the buffer, but later than the last cut
        self._posted: deque[tuple[int | None, str, tuple[Any, ...]]] = deque()
        self._wanted: deque[threading.Event] = deque()
        self._wake = threading.Event()
        self._closing = False
        # Re-entrant: a handler may call Profiler.flush, which on this thread is a flush at once.
        self._lock = threading.RLock()
        self._in_a_row: dict[int, int] = {}
        self._clock_watch = ClockWatch(timeline)
        self._thread = threading.Thread(target=self._run, name="tracekit-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, method: str, *args: Any, cut_ns: int | None = None) -> None:
        """Have a method of every handler called on the writer thread, in the order of posting. Never waits.

        Args:
            method: The handlers' method.
            *args: Its arguments.
            cut_ns: Call it when every event up to this monotonic time has been delivered, and none after.
        """
        self._posted.append((cut_ns, method, args))
        if cut_ns is not None:
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Deliver and write out what has been recorded until now. Returns whether it was done in time."""
        if threading.current_thread() is self._thread:
            self._cycle(flush=True)
            return True
        if not self._thread.is_alive():
            return False
        done = threading.Event()
        self._wanted.append(done)
        self._wake.set()
        return done.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Deliver the rest, give the summary, close the handlers, and end the thread. Returns whether that was done in time."""
        for handler in list(self._handlers):
            with suppress(Exception):
                handler.ending(timeout_s)
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Forget everything in a forked child: the records, the handlers and the thread are the parent's."""
        self._handlers = []
        self._posted.clear()
        self._carry = []

    # ---- on the writer thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
            try:
                self._cycle(flush=True)
            except Exception as error:  # noqa: BLE001 - the thread must go on: the next cycle may work
                self._failures.report("the writer thread", error)
            for done in wanted:
                done.set()
        try:
            self._cycle(flush=False)
        except Exception as error:  # noqa: BLE001
            self._failures.report("the writer thread", error)
        self._call("clock_anchor", *self._clock_watch.read())
        self._call("summary", self.summary())
        self._call("close")
        for done in self._wanted:
            done.set()

    def summary(self) -> Summary:
        """Return the counts of what was delivered, of what was lost and of what failed."""
        dropped = {
            "counter values that are no numbers": self._counter_values_refused,
            "events beyond max_buffered_events": self.overflowed,
        }
        for handler in list(self._handlers):
            with suppress(Exception):  # a user's handler must not make asking fail
                for reason, count in handler.losses().items():
                    dropped[reason] = dropped.get(reason, 0) + count
        return Summary(
            slices=self._slices,
            instants=self._instants,
            counters=self._counters,
            dropped={reason: count for reason, count in dropped.items() if count},
            failures=dict(self._failures.counts),
        )

    def _cycle(self, *, flush: bool) -> None:
        with self._lock:
            while self._posted:
                cut_ns, method, args = self._posted.popleft()
                if cut_ns is not None:
                    self._deliver(cut_ns)
                self._call(method, *args)
            self._deliver(None)
            if self._clock_watch.due(self._timeline.clock.monotonic_ns()):
                self._call("clock_anchor", *self._clock_watch.read())
            if flush:
                self._call("flush")

    def _deliver(self, cut_ns: int | None) -> None:
        """Deliver the events up to a cut, which is now if None."""
        buffer = self._buffer
        # In this order: what is in front of `before` was appended before the cut, so it lies before it; a slice that was
        # open at the cut is either still open when looked for, or among the records behind.
        before = len(self._carry) + len(buffer.records) if cut_ns is None else 0
        cut = self._timeline.clock.monotonic_ns() if cut_ns is None else cut_ns
        opened = {(start, track): label for label, start, track in self._open_slices() if start < cut}
        taken = self._carry + buffer.take(len(buffer.records))
        records, self._carry = taken[:before], []
        items = iter(taken[before:])
        for label, time_ns, kind, what in zip(items, items, items, items, strict=True):
            if (kind if kind >= 0 else time_ns) <= cut:
                records += (label, time_ns, kind, what)
                continue
            self._carry += (label, time_ns, kind, what)
            if kind >= 0 and time_ns < cut:
                opened[time_ns, what] = label
        self._count(records)
        records = self._lanes.arrange(records, [(label, *key) for key, label in opened.items()], cut)
        if records:
            tables = (self._buffer.labels, self._buffer.tracks, self._timestamps)
            batch = EventBatch(records, *tables, offset_ns=self._timeline.offset_ns, cut_ns=cut)
            self._call("process_events", batch)
        self._timestamps.forget_before(min([cut, *self._carry[1::WIDTH]]))

    def _count(self, records: list[Any]) -> None:
        """Count what is delivered, and leave out counter values that are no finite numbers."""
        kinds = records[2::WIDTH]
        counters = kinds.count(COUNTER)
        instants = kinds.count(INSTANT)
        self._slices += len(kinds) - counters - instants
        self._counters += counters
        self._instants += instants
        if counters:
            for index, kind in enumerate(kinds):
                if kind == COUNTER:
                    values = records[index * WIDTH + 3]
                    numbers = records[index * WIDTH + 3] = _numbers(values)
                    self._counter_values_refused += len(values) - len(numbers)

    def _call(self, method: str, *args: Any) -> None:
        """Call a method of every handler; a failure is counted, and a handler that only fails is left out."""
        for handler in list(self._handlers):
            try:
                getattr(handler, method)(*args)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training or other handlers
                self._failures.report(f"{type(handler).__name__}.{method}", error)
                failures = self._in_a_row[id(handler)] = self._in_a_row.get(id(handler), 0) + 1
                if failures >= _GIVE_UP_AFTER and method != "close":
                    logger.warning(
                        "tracekit: %s failed %d times in a row and is left out", type(handler).__name__, failures
                    )
                    self._handlers.remove(handler)
            else:
                if method == "process_events":
                    self._in_a_row.pop(id(handler), None)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, as int or float.

    A tensor is no number here: reading it could wait for the device.
    """
    numbers: dict[str, float] = {}
    for series, value in values.items():
        if isinstance(value, Real):
            number = int(value) if isinstance(value, int) else float(value)
            if math.isfinite(number) and abs(number) < 1 << 63:
                numbers[str(series)] = number
    return numbers
