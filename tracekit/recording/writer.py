"""Writer: takes records out of the buffer and passes them to the handlers."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import (
    COUNTER,
    END,
    INSTANT,
    WIDTH,
    EventBatch,
    count_kinds,
    has_start,
    size_bytes,
)
from tracekit.handlers.base import Summary
from tracekit.recording.buffer import NEVER_NS
from tracekit.recording.clock_watch import ClockWatch
from tracekit.recording.counter_values import CounterValues
from tracekit.recording.event_order import GRACE_NS
from tracekit.recording.handler_thread import BEYOND_BYTES, BEYOND_EVENTS, LEFT_BEHIND, HandlerThread, Signal
from tracekit.recording.lanes import Lanes, OpenSlice
from tracekit.recording.one_step import copy_of, outside_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.clock import Timeline
    from tracekit.handlers.base import Recording, TraceHandler
    from tracekit.recording.batches import Batches
    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.failures import Failures

# Number of cuts per flush interval. Several short bursts of work disturb a training step less than a long one, because
# a thread that waits for the GIL waits at most 5 ms of each burst (`sys.getswitchinterval`).
_WAKE_UPS: Final = 4
# Cuts per flush interval after one with fewer than `_FEW` events: each cut costs the GIL and the caches of the training.
_WAKE_UPS_FOR_FEW: Final = 2
_FEW: Final = 1_024
_FIRST_WAKE_UPS: Final = 40  # the first pause is twice this part of the interval: a recording may begin at full speed
_BURST: Final = 16_384  # Target number of events per cut. After a larger cut, the writer pauses for a shorter time.
_BACKLOG: Final = 65_536  # with more undelivered events, recording threads wait for the writer and the handlers
_GIVE_WAY_NS: Final = 1_000_000  # time that recording threads run before one of them waits for the writer again
_WAIT_S: Final = 0.05  # maximum time that a recording thread waits for a late writer
_DISCARD_S: Final = 10.0  # timeout for closing the handlers of a profiler that failed to start
_BLOCKED_S: Final = 0.25  # recording threads do not wait for a handler that has been in one call for longer


class _Request:
    """A request of a waiting thread to deliver all recorded events, those that are held for their order too if wanted.

    ``cut`` is set when the handler threads have received the events, each signal in ``delivered`` when one has
    delivered them.
    """

    __slots__ = ("cut", "delivered", "everything")

    def __init__(self, threads: Iterable[HandlerThread] = (), *, everything: bool = False) -> None:
        self.everything = everything
        self.cut = Signal()
        self.delivered = {thread: Signal() for thread in threads}


class Writer:
    """Delivers the records of the buffer on a separate thread, several times per flush interval and on request.

    Each delivery is a *cut* in time. It delivers every event up to one moment, and the starts of the slices that are
    open at that moment. So handlers receive the events of each recording thread in order. If the writer is late (C
    code holds the GIL, or events arrive faster than they are delivered), recording threads wait for it: see
    `look_after`.

    The buffer (with the records that the writer is processing) and each handler get an equal share of the limits, so
    that a handler that blocks does not use the share of another one.
    """

    def __init__(
        self,
        buffer: RecordBuffer,
        handlers: Sequence[TraceHandler],
        timeline: Timeline,
        batches: Batches,
        open_slices: Callable[[], list[OpenSlice]],
        failures: Failures,
        interval_s: float,
        *,
        limit_events: int,
        limit_bytes: int,
        on_full: str,
    ) -> None:
        self._slices = self._instants = self._counters = 0
        self._counter_values = CounterValues()
        self._buffer = buffer
        self._timeline = timeline
        self._batches = batches
        self._open_slices = open_slices
        self._told: OpenSlice | None = None  # the running batch that the handler threads received last
        self._failures = failures
        self._interval_s = interval_s
        self._interval_ns = int(interval_s * 1e9)
        queues = 1 + sum(not handler.inline for handler in handlers)
        limit_events, limit_bytes = (min(NEVER_NS, max(1, limit // queues)) for limit in (limit_events, limit_bytes))
        self._backlog = min(_BACKLOG, limit_events)
        options = {"limit_events": limit_events, "limit_bytes": limit_bytes, "loop_track": batches.track}
        self._handler_threads = [
            HandlerThread(handler, failures, self.summary, **options, on_full=on_full) for handler in handlers
        ]
        buffer.limit(limit_events, limit_bytes, self.wait_for_room if on_full == "block" else None)
        self._lanes = Lanes(buffer)
        self._carry: list[Any] = []  # records after the last cut, taken from the buffer
        self._posted = batches.posted
        self._hooks: list[tuple[Any, ...]] = []  # (time, method, arguments) from `_posted`, to post after a cut
        self._cut_ns = 0  # the last cut
        self._wanted: deque[_Request] = deque()
        self._wake = Signal()
        self._closing = False
        self._closed_in_time = False
        self._ended = False
        self._close_by_s = math.inf
        self._pause_s = interval_s / _FIRST_WAKE_UPS
        self._last_cut_ns = timeline.anchor.monotonic_ns
        self._found = 0  # number of events of the last cut
        self._events_per_ns = 0.0  # of the last cuts; a higher rate counts half as much after each flush interval
        self._waiting_since_s = 0.0  # start of the unsuccessful waits of recording threads
        self._in_hand = 0  # number of events that have left the buffer and not reached the handler threads
        self._is_counted = False  # True if `_slices` and the other totals include the events in hand
        self._lost_events = self._lost_uncounted = 0
        self._clock_watch = ClockWatch(timeline)
        self._thread = threading.Thread(target=self._run, name="tracekit-writer", daemon=True)

    def open(self, recording: Recording) -> None:
        """Open the handlers, each on its thread, and set their hooks. If one fails, close them and raise its error."""
        opened: list[HandlerThread] = []
        for thread in self._handler_threads:
            thread.check()
        try:
            for thread in self._handler_threads:
                opened.append(thread)
                thread.open(recording)
                for hook in thread.handler.hooks:
                    hook.install()
        except BaseException:
            for thread in reversed(opened):
                self._remove_hooks(thread)
                thread.discard()
            deadline_s = time.monotonic() + _DISCARD_S
            for thread in opened:
                thread.join(deadline_s - time.monotonic())
            raise

    def _remove_hooks(self, thread: HandlerThread) -> None:
        for hook in reversed([*thread.handler.hooks]):
            try:
                hook.remove()
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
                self._failures.report(f"{type(thread.handler).__name__}.hooks", error)

    def start(self) -> None:
        """Start the thread. Called when the handlers are open."""
        self._set_due(self._timeline.clock.monotonic_ns())
        self._buffer.look_after = self.look_after
        self._thread.start()

    def post(self, method: str, *args: Any, at_ns: int | None = None, cut_ns: int | None = None) -> None:
        """Queue a call of a method of every handler. The calls keep their order. Never waits.

        The call comes after all events up to ``at_ns`` (None: the time of the previous call). ``cut_ns`` makes a cut
        at this time: the call comes after every event up to it, and before all later ones.
        """
        self._posted.append((cut_ns, at_ns if cut_ns is None else cut_ns, method, args))
        if cut_ns is not None:
            self._wake.set()

    @outside_step
    def has_begun(self, timeout_s: float) -> bool:
        """Return True if the batch has begun, or if the writer does not answer in time."""
        expected = self._batches.expected
        if expected and self._thread.is_alive() and not self._is_mine():
            request = _Request()
            self._wanted.append(request)
            self._wake.set()
            return not request.cut.wait(timeout_s) or not expected
        return not expected

    @outside_step
    def flush(self, timeout_s: float) -> bool:
        """Deliver all recorded events, and flush the handlers. Return True if it was done in time.

        Return False on the writer's or a handler's thread, which cannot wait for itself.
        """
        if not self._thread.is_alive() or self._is_mine():
            return False
        return not self._await_delivery(timeout_s, self._handler_threads, everything=True)

    def _await_delivery(
        self, timeout_s: float, threads: Sequence[HandlerThread], *, everything: bool = False
    ) -> list[HandlerThread]:
        """Wait for the delivery of all recorded events. Return the late handler threads; all of them if there was no cut."""
        deadline_s = time.monotonic() + timeout_s
        request = _Request(threads, everything=everything)
        self._wanted.append(request)
        if self._ended:  # the writer sets it before it answers the last requests, so no request is missed
            return list(threads)
        self._wake.set()
        if not request.cut.wait(timeout_s):
            return list(threads)
        return [
            thread
            for thread, delivered in request.delivered.items()
            if not delivered.wait(deadline_s - time.monotonic())
        ]

    def _is_mine(self) -> bool:
        """Return True on the writer's thread and on the threads of handlers."""
        return self._thread.ident == threading.get_ident() or any(thread.is_mine for thread in self._handler_threads)

    def stopping(self, error: BaseException | None) -> None:
        """Remove the handlers' hooks, and queue their ``stopping``. Called on the thread that stops the profiler."""
        for thread in reversed(self._handler_threads):  # a hook puts back what it found
            self._remove_hooks(thread)
            thread.post("stopping", error)

    @outside_step
    def close(self, timeout_s: float) -> bool:
        """Deliver the rest and the summary, close the handlers, and end the threads. Return True if done in time."""
        self._close_by_s = time.monotonic() + timeout_s
        for thread in self._handler_threads:
            thread.post_end(self._close_by_s)
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._buffer.due_ns = NEVER_NS
        if not self._thread.is_alive() and self._closed_in_time:
            return True
        for thread in self._handler_threads:
            thread.give_up()
        return False

    def abandon(self) -> None:
        """Forget everything in a forked child. The records, the handlers and the threads belong to the parent."""
        self._buffer.due_ns = NEVER_NS
        self._handler_threads = []
        self._posted.clear()
        self._carry = []

    @outside_step
    def look_after(self, now_ns: int) -> None:
        """Wait for the late writer. Called by a recording thread at an event after the buffer's ``due_ns``.

        The writer is late if C code has held the GIL, or if events arrive faster than it delivers them. This thread
        waits until everything is delivered, including its own event, but at most 50 ms. It does not wait for a handler
        that has been in one call for more than 250 ms. It does not deliver by itself, because Ctrl-C or a signal
        handler that records could interrupt the delivery.
        """
        if self._closing or self._is_mine():
            return
        self._buffer.due_ns = now_ns + self._interval_ns  # one waiting thread is enough
        now_s = time.monotonic()
        late = self._await_delivery(_WAIT_S, self._not_blocked())
        self._waiting_since_s = (self._waiting_since_s or now_s) if late else 0.0
        if late and time.monotonic() - self._waiting_since_s < _BLOCKED_S:
            self._buffer.due_ns = self._timeline.clock.monotonic_ns() + _GIVE_WAY_NS

    def _not_blocked(self) -> list[HandlerThread]:
        before_s = time.monotonic() - _BLOCKED_S
        return [thread for thread in self._handler_threads if not 0 < thread.busy_since_s < before_s]

    @outside_step
    def wait_for_room(self) -> bool:
        """Wait while the buffer is full, on a recording thread with ``on_full="block"``. Return True if there is room.

        Return False on the writer's or a handler's thread, which cannot wait for itself, and when the writer closes.
        """
        while self._buffer.is_full():
            if self._closing or not self._thread.is_alive() or self._is_mine():
                return False
            self._await_delivery(_WAIT_S, ())
        return True

    def summary(self, of: HandlerThread | None = None) -> Summary:
        """Return the counts of recorded events, lost events and failures, with the losses of one thread's handler.

        None reports the events missed by the handler that missed most, and the losses that all handlers report.
        """
        missed = [self._missed(thread) for thread in self._handler_threads if of in (None, thread)]
        dropped = max(missed, key=lambda counts: counts.total(), default=Counter())
        recorded = self._slices + self._instants + self._counters
        # For events that the writer has not counted, only the total is known, not the kinds.
        beyond_events, beyond_bytes = self._buffer.refused
        behind = self._left_behind_uncounted()
        dropped += Counter({BEYOND_EVENTS: beyond_events, BEYOND_BYTES: beyond_bytes, LEFT_BEHIND: behind})
        dropped["events there was no memory for"] += self._buffer.lost_events
        dropped["events lost when the writer failed"] += self._lost_events
        recorded += beyond_events + beyond_bytes + behind + self._buffer.lost_events + self._lost_uncounted
        dropped["counter values that are not numbers"] += self._counter_values.refused + self._buffer.refused_values
        for thread in self._handler_threads:
            if of in (None, thread):
                dropped.update(thread.losses)
        return Summary(
            slices=self._slices,
            instants=self._instants,
            counters=self._counters,
            dropped={reason: count for reason, count in dropped.items() if count},
            failures=dict(self._failures.counts),
            recorded=recorded,
        )

    def _missed(self, thread: HandlerThread) -> Counter[str]:
        """Return the number of events that a handler missed, by reason. Undelivered events at the end count too."""
        missed = thread.dropped.copy()
        if thread.is_given_up:
            missed[LEFT_BEHIND] += thread.waiting_events + (self._in_hand if self._is_counted else 0)
        return missed

    def _left_behind_uncounted(self) -> int:
        """Return the number of events that are left behind at the end and that the writer has not counted."""
        if not (self._ended or any(thread.is_given_up for thread in self._handler_threads)):
            return 0
        behind = 0
        for records in (self._buffer.records, self._carry):
            (ends,) = count_kinds(records, END)  # an async slice counts when it begins
            behind += len(records) // WIDTH - ends
        return behind if self._is_counted else behind + self._in_hand

    # ---- on the writer thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._next_pause_s())
            self._deliver()
        self._deliver()
        self._post("clock_anchor", *self._clock_watch.read())
        self._post("summary")
        self._post("close")
        for thread in self._handler_threads:
            thread.finish()
        self._ended = True
        while self._wanted:
            self._wanted.popleft().cut.set()  # the request came too late
        self._closed_in_time = all(thread.join(self._close_by_s - time.monotonic()) for thread in self._handler_threads)

    def _next_pause_s(self) -> float:
        """Return the time to the next cut. A large cut shortens it, so that bursts stay short and memory flat."""
        change = min(2.0, max(0.1, _BURST / max(1, self._found)))
        cuts = _WAKE_UPS_FOR_FEW if self._found < _FEW else _WAKE_UPS
        self._pause_s = min(self._interval_s / cuts, self._pause_s * change)
        return self._pause_s

    def _deliver(self) -> None:
        wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
        is_last = self._closing
        start_ns = self._timeline.clock.monotonic_ns()
        try:
            self._cut_all(start_ns)
        except BaseException as error:  # noqa: BLE001 - the thread must go on: the next cut may succeed
            self._lost_events += self._in_hand
            self._lost_uncounted += 0 if self._is_counted else self._in_hand
            self._in_hand = 0  # the next failure may come before records are taken
            self._hold_carry()
            self._failures.report("the writer thread", error)
        everything = is_last or any(request.everything for request in wanted)
        for thread in self._handler_threads:
            if is_last:
                thread.post_end_running(self._cut_ns)
            # The last round is followed by the last readings of the clocks, the summary and `close`, so it needs no
            # flush.
            thread.post_round(None if everything else start_ns - GRACE_NS, flush=not is_last)
        for request in wanted:
            for thread, delivered in request.delivered.items():
                thread.post(delivered.set)
            request.cut.set()

    def _set_due(self, now_ns: int) -> None:
        behind = len(self._buffer.records) // WIDTH
        behind += max((thread.waiting_events for thread in self._not_blocked()), default=0)
        # Time until the backlog is too large at the recent rate. Other threads may keep the writer from the GIL until
        # then.
        too_many_ns = self._backlog / max(self._events_per_ns, 1e-9)
        late_ns = min(self._interval_ns, max(_GIVE_WAY_NS, int(too_many_ns)))
        self._buffer.due_ns = now_ns + (_GIVE_WAY_NS if behind > self._backlog else late_ns)

    def _cut_all(self, start_ns: int) -> None:
        apart_ns, self._last_cut_ns = max(1, start_ns - self._last_cut_ns), start_ns
        ended_window = True
        while ended_window:
            for _ in range(len(self._posted)):
                cut_ns, *hook = self._posted.popleft()
                self._hooks.append(tuple(hook))
                if cut_ns is not None:
                    self._cut(cut_ns)
                    self._post_hooks()
            ended_window = self._cut(None)
        while self._posted and self._posted[0][0] is None and (self._posted[0][1] or 0) <= self._cut_ns:
            self._hooks.append(self._posted.popleft()[1:])  # start hooks that this cut has posted
        self._post_hooks()  # the events up to their times are with the handler threads now
        now_ns = self._timeline.clock.monotonic_ns()
        if self._clock_watch.due(now_ns):
            self._post("clock_anchor", *self._clock_watch.read())
        # A cut at the request of a thread that waits finds next to nothing; the thread goes on at its rate.
        faded = self._events_per_ns * 0.5 ** (apart_ns / self._interval_ns)
        self._events_per_ns = max(self._found / apart_ns, faded)
        self._set_due(now_ns)

    def _post_hooks(self) -> None:
        for hook in self._hooks:
            for thread in self._handler_threads:
                thread.post_hook(*hook)
        self._hooks.clear()

    def _post(self, method: str, *args: Any) -> None:
        for thread in self._handler_threads:
            thread.post(method, *args)

    def _cut(self, cut_ns: int | None) -> bool:
        """Pass the events up to a moment to the handler threads; None is now, or the end of a window posted in the meantime.

        Return True if it cut at such an end: the call posted with that end must come before any later event.
        """
        buffer = self._buffer
        batch_start_ns = self._batches.start_ns  # before its record can be taken
        running = self._batches.running()
        running = running if self._batches.has_begun else None  # tested last: a new batch has not begun yet
        # The order of these steps matters. Records in front of `before` were appended before the cut, so their times
        # are before it. A slice that was open at the cut is still open in `opened`, or is among the records after
        # `before`.
        before = len(self._carry) + len(buffer.records) if cut_ns is None else 0
        # Never before the last cut, which a thread may post too late: starts that were delivered would seem to be lost.
        cut = self._timeline.clock.monotonic_ns() if cut_ns is None else max(cut_ns, self._cut_ns)
        self._is_counted = False
        buffer.keep(cut)
        opened = [slice_ for slice_ in self._open_slices() if slice_[1] < cut]
        taken = buffer.take(len(buffer.records))
        self._in_hand = len(taken) // WIDTH  # without the carried records, which remain if the next line fails
        # Read after the records were taken: a thread posts the end of a window before it records later events.
        ends = [] if cut_ns is not None else [end for end, *_ in copy_of(self._posted) if end is not None and end < cut]
        if ends:
            before, cut = 0, max(ends[0], self._cut_ns)
            opened = [slice_ for slice_ in opened if slice_[1] < cut]
        if self._carry:
            taken = self._carry + taken
        records, self._carry = taken, []
        self._in_hand = len(taken) // WIDTH
        if before < len(taken):
            records = self._divide(taken, before, cut, opened)
        self._found = self._in_hand = len(records) // WIDTH
        self._count(records)
        self._is_counted = True
        running = self._begin_expected(records, opened) or running
        running = None if running is not None and running[1] >= cut else running
        left = self._lanes.left
        records = self._lanes.arrange(records, opened, cut)
        self._slices += self._lanes.left - left
        if records or running not in (None, self._told):
            self._told = running
            tables = (self._buffer.labels, self._buffer.tracks, self._batches.timestamps.copy())
            batch = EventBatch(records, *tables, offset_ns=self._timeline.offset_ns, cut_ns=cut, running=running)
            for thread in self._handler_threads:
                thread.post_events(batch)
        self._in_hand = 0
        self._hold_carry()
        self._cut_ns = cut
        self._batches.timestamps.forget_before(min([cut, batch_start_ns, *self._carry[1::WIDTH]]))
        return bool(ends)

    def _begin_expected(self, records: list[Any], opened: list[OpenSlice]) -> OpenSlice | None:
        """Post the start hooks of the expected batch if its first event is in the records. Then return its slice."""
        batches = self._batches
        if not batches.expected:
            return None
        with batches.posting() as may_post:
            expected = batches.expected.copy() if may_post else []
            for since_ns, ident, calls in expected:
                track = self._buffer.track_of_thread.get(ident, -1)
                if any(slice_[1] >= since_ns and slice_[2] == track for slice_ in opened) or has_start(
                    records, since_ns, track
                ):
                    batches.expected.clear()
                    batches.post_start(calls)
                    running: OpenSlice | None = batches.running()
                    return running
        return None

    def _hold_carry(self) -> None:
        """Report the carried records to the buffer as the only events that the writer holds."""
        self._buffer.hold(len(self._carry) // WIDTH, size_bytes(self._carry))

    def _divide(self, taken: list[Any], before: int, cut: int, opened: list[OpenSlice]) -> list[Any]:
        """Return the records up to a cut, and carry the later ones. Add slices that were open then to ``opened``."""
        records, carry = taken[:before], list[Any]()
        known = {slice_[1:] for slice_ in opened}
        ended: set[tuple[int, int]] = set()  # ended up to the cut, but recorded after it
        items = iter(taken[before:])
        for label, time_ns, kind, what in zip(items, items, items, items, strict=True):
            if (kind if kind >= 0 else time_ns) <= cut:
                records += (label, time_ns, kind, what)
                if kind >= 0:
                    ended.add((time_ns, what))
                continue
            carry += (label, time_ns, kind, what)
            if kind >= 0 and time_ns < cut and (time_ns, what) not in known:
                opened.append((label, time_ns, what))
        self._carry = carry  # set last: a failure above loses and counts all records
        if ended:
            opened[:] = [slice_ for slice_ in opened if slice_[1:] not in ended]
        return records

    def _count(self, records: list[Any]) -> None:
        """Count the delivered events, and remove counter values that are not finite numbers."""
        counters, instants, ends = count_kinds(records, COUNTER, INSTANT, END)
        self._slices += len(records) // WIDTH - counters - instants - ends  # an async slice counts when it begins
        self._counters += counters
        self._instants += instants
        if counters:
            self._counter_values.clean(records, self._buffer.labels)
        if self._buffer.refusals:
            self._counter_values.report_others(self._buffer.refusals)
