"""Writer: takes records out of the buffer and gives them to the handlers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import COUNTER, INSTANT, WIDTH, EventBatch, Timestamps
from tracekit.handlers.base import Summary
from tracekit.recording.buffer import NEVER_NS
from tracekit.recording.clock_watch import ClockWatch
from tracekit.recording.lanes import Lanes, OpenSlice
from tracekit.recording.outlet import Outlet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Timeline
    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.failures import Failures

__all__ = ["Writer"]

logger = logging.getLogger("tracekit")

_WAKE_UPS: Final = 4
"""How often the writer looks in a flush interval. A short burst of work each time is felt less in a training step than a long
one, since whoever waits for the interpreter lock waits for up to 5 ms of it (facts of CPython: ``sys.getswitchinterval``)."""

_BURST: Final = 16_384
"""How many events the writer would like to find; after more than that it looks again sooner."""

_BACKLOG: Final = 65_536
"""With more events than that on their way, recording threads give way to whoever writes."""

_GIVE_WAY_S: Final = 0.001


class Writer:
    """Delivers what is in the buffer, several times in every flush interval and when asked, from a thread of its own.

    A delivery is a *cut* through time: it delivers every event up to a moment, and says of the slices that are open at that
    moment that they have started. So handlers get each recording thread's events in order, whatever the threads do meanwhile.

    When the writer's thread is late (some C code keeps the interpreter lock, or it does not keep up), the recording threads
    do its work: see `look_after`.

    Args:
        buffer: Where the records are.
        handlers: Who takes them; opened already.
        timeline: Time scale of the recording.
        timestamps: Which training time was current when.
        open_slices: Tells which slices are open now.
        failures: Where failures of handlers are reported.
        interval_s: Seconds within which an event shall have been delivered.
        limit_events: How many events may wait for a handler that does not keep up.
        on_full: What happens to those beyond; see `tracekit.recording.outlet.ON_FULL`.
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
        *,
        limit_events: int,
        on_full: str,
    ) -> None:
        self._slices = self._instants = self._counters = self._counter_values_refused = 0
        self._buffer = buffer
        self._timeline = timeline
        self._timestamps = timestamps
        self._open_slices = open_slices
        self._failures = failures
        self._interval_s = interval_s
        self._interval_ns = int(interval_s * 1e9)
        self._backlog = min(_BACKLOG, limit_events)
        self._outlets = [
            Outlet(handler, failures, self.summary, limit_events=limit_events, on_full=on_full) for handler in handlers
        ]
        self._lanes = Lanes(buffer)
        self._carry: list[Any] = []  # taken from the buffer, but later than the last cut
        self._posted: deque[tuple[int | None, str, tuple[Any, ...]]] = deque()
        self._wanted: deque[list[threading.Event]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._closed_in_time = False
        self._close_by_s = math.inf
        self._lock = threading.Lock()  # held while records are taken and arranged
        self._found = 0  # how many events the last cut found
        self._progress = 0
        self._clock_watch = ClockWatch(timeline)
        self._thread = threading.Thread(target=self._run, name="tracekit-writer", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        if len(self._outlets) > 1:
            for outlet in self._outlets:
                outlet.start_thread()
        self._set_due(self._timeline.clock.monotonic_ns())
        self._buffer.look_after = self.look_after
        self._thread.start()

    def post(self, method: str, *args: Any, cut_ns: int | None = None) -> None:
        """Have a method of every handler called, in the order of posting. Never waits.

        Args:
            method: The handlers' method.
            *args: Its arguments.
            cut_ns: Call it when every event up to this monotonic time has been delivered, and none after.
        """
        self._posted.append((cut_ns, method, args))
        if cut_ns is not None:
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Deliver and write out what has been recorded until now.

        Returns:
            Whether it was done in time. False on a thread that is inside a handler, which cannot wait for itself.
        """
        inside = any(outlet.is_delivering for outlet in self._outlets)
        if not self._thread.is_alive() or inside or threading.current_thread() is self._thread:
            return False
        deadline_s = time.monotonic() + timeout_s
        done = [threading.Event() for _ in range(len(self._outlets) + 1)]  # the last one is the writer's own
        self._wanted.append(done)
        self._wake.set()
        return all(event.wait(max(0.0, deadline_s - time.monotonic())) for event in reversed(done))

    def close(self, timeout_s: float) -> bool:
        """Deliver the rest, give the summary, close the handlers, end the threads. Returns whether that was done in time."""
        for outlet in self._outlets:
            with suppress(Exception):
                outlet.handler.ending(timeout_s)
        self._close_by_s = time.monotonic() + timeout_s
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._buffer.due_ns = NEVER_NS
        return not self._thread.is_alive() and self._closed_in_time

    def abandon(self) -> None:
        """Forget everything in a forked child: the records, the handlers and the threads are the parent's."""
        self._buffer.due_ns = NEVER_NS
        for outlet in self._outlets:
            outlet.abandon()
        self._outlets = []
        self._posted.clear()
        self._carry = []

    def summary(self, missed: int | None = None) -> Summary:
        """Return the counts of what was recorded, of what was lost and of what failed.

        Args:
            missed: How many events a handler has missed; None stands for the one that has missed most.
        """
        if missed is None:
            missed = max((outlet.dropped_events for outlet in self._outlets), default=0)
        dropped = {
            "counter values that are no numbers": self._counter_values_refused + self._buffer.refused_values,
            "events there was no memory for": self._buffer.lost_events,
            "events beyond max_buffered_events": missed,
        }
        for outlet in self._outlets:
            with suppress(Exception):  # a user's handler must not make asking fail
                for reason, count in outlet.handler.losses().items():
                    dropped[reason] = dropped.get(reason, 0) + count
        return Summary(
            slices=self._slices,
            instants=self._instants,
            counters=self._counters,
            dropped={reason: count for reason, count in dropped.items() if count},
            failures=dict(self._failures.counts),
        )

    # ---- on the writer thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._guarded(self._deliver)
        self._guarded(self._deliver)
        self._post("clock_anchor", *self._clock_watch.read())
        self._post("summary")
        self._post("close")
        for outlet in self._outlets:
            outlet.finish()
        self._closed_in_time = all(outlet.join(self._close_by_s - time.monotonic()) for outlet in self._outlets)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the thread must go on: the next time may work
            self._failures.report("the writer thread", error)

    def _pause_s(self) -> float:
        """Return how long to wait: less than usual when much was found, so that bursts stay short and the memory flat."""
        return self._interval_s / _WAKE_UPS * min(1.0, _BURST / max(1, self._found))

    def _deliver(self) -> None:
        wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
        with self._lock:
            self._cut_all()
        for done in wanted:
            for outlet, event in zip(self._outlets, done, strict=False):
                outlet.post_signal(event)
        if len(self._outlets) == 1:
            self._outlets[0].deliver()
        for done in wanted:
            done[-1].set()

    def _set_due(self, now_ns: int) -> None:
        self._buffer.due_ns = now_ns + self._interval_ns

    # ---- on a recording thread ----------------------------------------------------------------------------------------

    def look_after(self, now_ns: int) -> None:
        """Do the writer's work, because it is late: called by a recording thread at an event after the buffer's ``due_ns``.

        What is in the buffer is cut and handed to the handlers here, unless the writer (or whoever else) is just doing so.
        While more is recorded than written, this thread waits for a millisecond to let the writer have the interpreter lock; it
        never waits for a handler that does not return.
        """
        if self._closing or any(outlet.is_delivering for outlet in self._outlets):
            return  # an event of a handler, or of a signal handler or finaliser that interrupted one
        self._buffer.due_ns = now_ns + self._interval_ns // _WAKE_UPS
        if self._lock.acquire(blocking=False):
            try:
                self._guarded(self._cut_all)
            finally:
                self._lock.release()
            for outlet in self._outlets:
                self._guarded(lambda outlet=outlet: outlet.deliver(blocking=False))  # type: ignore[misc]
        progress = sum(outlet.progress for outlet in self._outlets)
        if self._is_behind():
            if progress != self._progress:
                time.sleep(_GIVE_WAY_S)
            self._buffer.due_ns = now_ns + int(_GIVE_WAY_S * 1e9)
        self._progress = progress

    def _is_behind(self) -> bool:
        return max((outlet.waiting_events for outlet in self._outlets), default=0) > self._backlog

    # ---- with the lock ------------------------------------------------------------------------------------------------

    def _cut_all(self) -> None:
        while self._posted:
            cut_ns, method, args = self._posted.popleft()
            if cut_ns is not None:
                self._cut(cut_ns)
            self._post(method, *args)
        self._cut(None)
        now_ns = self._timeline.clock.monotonic_ns()
        if self._clock_watch.due(now_ns):
            self._post("clock_anchor", *self._clock_watch.read())
        if not self._closing:  # `close` follows, which has the last readings of the clocks and the summary before it
            self._post("flush")
        if not self._is_behind():
            self._set_due(now_ns)

    def _post(self, method: str, *args: Any) -> None:
        for outlet in self._outlets:
            outlet.post(method, *args)

    def _cut(self, cut_ns: int | None) -> None:
        """Hand the events up to a moment, which is now if None, to the outlets."""
        buffer = self._buffer
        # In this order: what is in front of `before` was appended before the cut, so it lies before it; a slice that was
        # open at the cut is either still open when looked for, or among the records behind.
        before = len(self._carry) + len(buffer.records) if cut_ns is None else 0
        cut = self._timeline.clock.monotonic_ns() if cut_ns is None else cut_ns
        opened = [slice_ for slice_ in self._open_slices() if slice_[1] < cut]
        taken = buffer.take(len(buffer.records))
        if self._carry:
            taken = self._carry + taken
        records, self._carry = taken, []
        if before < len(taken):
            records = self._divide(taken, before, cut, opened)
        self._found = len(records) // WIDTH
        self._count(records)
        records = self._lanes.arrange(records, opened, cut)
        if records:
            tables = (self._buffer.labels, self._buffer.tracks, self._timestamps.copy())
            batch = EventBatch(records, *tables, offset_ns=self._timeline.offset_ns, cut_ns=cut)
            for outlet in self._outlets:
                outlet.post_events(batch)
        self._timestamps.forget_before(min([cut, *self._carry[1::WIDTH]]))

    def _divide(self, taken: list[Any], before: int, cut: int, opened: list[OpenSlice]) -> list[Any]:
        """Return the records up to a cut, keep those after it, and add the slices that were open at it to ``opened``."""
        records = taken[:before]
        items = iter(taken[before:])
        for label, time_ns, kind, what in zip(items, items, items, items, strict=True):
            if (kind if kind >= 0 else time_ns) <= cut:
                records += (label, time_ns, kind, what)
                continue
            self._carry += (label, time_ns, kind, what)
            if kind >= 0 and time_ns < cut:
                opened.append((label, time_ns, what))
        return records

    def _count(self, records: list[Any]) -> None:
        """Count what is delivered, and leave out counter values that are no finite numbers."""
        kinds = records[2::WIDTH]
        if not kinds or min(kinds) >= 0:
            self._slices += len(kinds)
            return
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


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, as int or float.

    A tensor is no number here: reading it could wait for the device.
    """
    numbers: dict[str, float] = {}
    for series, value in values.items():
        if isinstance(value, Real):
            with suppress(Exception):  # a number of somebody's own, whose methods may do anything
                number = int(value) if isinstance(value, int) else float(value)
                if math.isfinite(number) and abs(number) < 1 << 63:
                    numbers[str(series)] = number
    return numbers
