"""Writer: takes records out of the buffer and gives them to the handlers."""

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
    Timestamps,
    count_kinds,
    has_start,
    size_bytes,
)
from tracekit.handlers.base import Summary
from tracekit.recording.buffer import NEVER_NS
from tracekit.recording.clock_watch import ClockWatch
from tracekit.recording.counter_values import CounterValues
from tracekit.recording.event_order import GRACE_NS
from tracekit.recording.lanes import Lanes, OpenSlice
from tracekit.recording.outlet import BEYOND_BYTES, BEYOND_EVENTS, LEFT_BEHIND, Outlet
from tracekit.recording.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.clock import Timeline
    from tracekit.handlers.base import Recording, TraceHandler
    from tracekit.recording.buffer import RecordBuffer
    from tracekit.recording.failures import Failures
    from tracekit.timestamp import Timestamp

__all__ = ["Writer"]

_WAKE_UPS: Final = 4
"""How often the writer looks in a flush interval. A short burst of work each time is felt less in a training step than a long
one, since whoever waits for the interpreter lock waits for up to 5 ms of it (facts of CPython: ``sys.getswitchinterval``)."""

_BURST: Final = 16_384
"""How many events the writer would like to find; after more than that it looks again sooner."""

_BACKLOG: Final = 65_536
"""With more events than that on their way, recording threads give way to whoever writes."""

_GIVE_WAY_NS: Final = 1_000_000
"""How long a recording thread goes on before it gives way again."""

_WAIT_S: Final = 0.05
"""How long a recording thread waits for a writer that is late, at most."""

_DISCARD_S: Final = 10.0
"""How long handlers of a profiler that cannot start may take to close."""

_BLOCKED_S: Final = 0.25
"""A handler that has been in one call for longer is not waited for."""


class _Request:
    """A thread that waits for everything to be delivered.

    Attributes:
        cut: Set when what there was has been handed to the outlets.
        delivered: Set when an outlet has delivered it.
        everything: Whether events that are held for their order are delivered as well.
    """

    __slots__ = ("cut", "delivered", "everything")

    def __init__(self, everything: bool) -> None:
        self.everything = everything
        self.cut = Signal()
        self.delivered: dict[Outlet, Signal] = {}


class Writer:
    """Delivers what is in the buffer, several times in every flush interval and when asked, from a thread of its own.

    A delivery is a *cut* through time: it delivers every event up to a moment, and says of the slices that are open at that
    moment that they have started. So handlers get each recording thread's events in order, whatever the threads do meanwhile.

    When the writer is late (some C code keeps the interpreter lock, or it does not keep up), the recording threads let it work:
    see `look_after`.

    Args:
        buffer: Where the records are.
        handlers: Who takes them.
        timeline: Time scale of the recording.
        timestamps: Which training time was current when.
        open_slices: Tells which slices are open now.
        running_batch: Tells which slice `Profiler.step` will record at the end of the batch that runs, if any.
        loop_track: The track of those slices.
        failures: Where failures of handlers are reported.
        interval_s: Seconds within which an event shall have been delivered.
        limit_events: How many events may wait anywhere. The buffer, with what the writer has in hand, and each handler get
            an equal share, so that a handler that blocks takes nothing from the others.
        limit_bytes: How many bytes they may take, about.
        on_full: What happens to those beyond; see `tracekit.recording.outlet.ON_FULL`.
    """

    def __init__(
        self,
        buffer: RecordBuffer,
        handlers: Sequence[TraceHandler],
        timeline: Timeline,
        timestamps: Timestamps,
        open_slices: Callable[[], list[OpenSlice]],
        running_batch: Callable[[], OpenSlice | None],
        loop_track: int,
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
        self._timestamps = timestamps
        self._open_slices = open_slices
        self._running_batch = running_batch
        self._has_begun = False  # whether the running batch has, and its slice is not recorded yet
        self._told: OpenSlice | None = None  # the running batch that the outlets were given last
        self._failures = failures
        self._interval_s = interval_s
        self._interval_ns = int(interval_s * 1e9)
        queues = 1 + sum(not handler.inline for handler in handlers)
        limit_events, limit_bytes = max(1, limit_events // queues), max(1, limit_bytes // queues)
        self._backlog = min(_BACKLOG, limit_events)
        options = {"limit_events": limit_events, "limit_bytes": limit_bytes, "loop_track": loop_track}
        self._outlets = [Outlet(handler, failures, self.summary, **options, on_full=on_full) for handler in handlers]
        buffer.limit(limit_events, limit_bytes, self.wait_for_room if on_full == "block" else None)
        self._lanes = Lanes(buffer)
        self._carry: list[Any] = []  # taken from the buffer, but later than the last cut
        self._posted: deque[tuple[int | None, int | None, str, tuple[Any, ...]]] = deque()
        self._expected: list[tuple[int, int, tuple[tuple[str, Timestamp], ...]]] = []  # one, or none
        # So that a start hook is posted before the hooks after it. Re-entrant for signal handlers, and the writer never waits
        # for it: Ctrl-C may come while the training thread holds it.
        self._expected_lock = threading.RLock()
        self._hooks: list[tuple[Any, ...]] = []  # (time, method, arguments): taken from `_posted`, posted after a cut
        self._cut_ns = 0  # the last cut
        self._wanted: deque[_Request] = deque()
        self._wake = Signal()
        self._closing = False
        self._closed_in_time = False
        self._ended = False
        self._close_by_s = math.inf
        self._pause_s = interval_s / _WAKE_UPS
        self._last_cut_ns = timeline.anchor.monotonic_ns
        self._cut_apart_ns = self._interval_ns  # how long the last two cuts were apart
        self._found = 0  # how many events the last cut found
        self._waiting_since_s = 0.0  # since when recording threads have waited in vain
        self._in_hand = 0  # how many events have left the buffer and not reached the outlets
        self._is_counted = False  # whether `_slices` and so on count what is in hand
        self._lost_events = self._lost_uncounted = 0
        self._clock_watch = ClockWatch(timeline)
        self._thread = threading.Thread(target=self._run, name="tracekit-writer", daemon=True)

    def open(self, recording: Recording) -> None:
        """Open the handlers, each on its thread, and set their hooks. If one fails, close them.

        Raises:
            TracekitError: A handler cannot be opened.
        """
        opened: list[Outlet] = []
        try:
            for outlet in self._outlets:
                opened.append(outlet)
                outlet.open(recording)
                for hook in outlet.handler.hooks:
                    hook.install()
        except BaseException:
            for outlet in opened:
                self._remove_hooks(outlet)
                outlet.discard()
            deadline_s = time.monotonic() + _DISCARD_S
            for outlet in opened:
                outlet.join(deadline_s - time.monotonic())
            raise

    def _remove_hooks(self, outlet: Outlet) -> None:
        for hook in outlet.handler.hooks:
            try:
                hook.remove()
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
                self._failures.report(f"{type(outlet.handler).__name__}.hooks", error)

    def start(self) -> None:
        """Start the thread, when the handlers are open."""
        self._set_due(self._timeline.clock.monotonic_ns())
        self._buffer.look_after = self.look_after
        self._thread.start()

    def post(self, method: str, *args: Any, at_ns: int | None = None, cut_ns: int | None = None) -> None:
        """Have a method of every handler called, in the order of posting. Never waits.

        Args:
            method: The handlers' method.
            *args: Its arguments.
            at_ns: Its monotonic time: it is called after all events up to then; None is that of what was posted before.
            cut_ns: Call it when every event up to this monotonic time has been delivered, and none after.
        """
        self._posted.append((cut_ns, at_ns if cut_ns is None else cut_ns, method, args))
        if cut_ns is not None:
            self._wake.set()

    def expect_start(self, since_ns: int, *calls: tuple[str, Timestamp]) -> None:
        """Have hooks called at the start of a batch: at the first event of this thread from a time on, or by `begin`.

        The writer sees that event when it delivers it, so that recording pays nothing for this.

        Args:
            since_ns: The monotonic time.
            *calls: The handlers' methods, and the training time that each gets.
        """
        self._expected.append((since_ns, threading.get_ident(), calls))

    def begin(self) -> None:
        """Have the hooks of `expect_start` called, if they were not yet."""
        with self._expected_lock:
            if self._expected:
                self.post_start(self._expected.pop()[2])

    def post_start(self, calls: tuple[tuple[str, Timestamp], ...], at_ns: int | None = None) -> None:
        """Have hooks called because the batch has begun; from now on its slice is shown as running.

        Args:
            calls: The handlers' methods, and the training time that each gets.
            at_ns: The monotonic time of that. None is that of the hook before, the end of the last batch: so that they come in
                front of every event of the batch.
        """
        for method, timestamp in calls:
            self._posted.append((None, at_ns, method, (timestamp,)))
        self._has_begun = True

    def end_batch(self) -> None:
        """Say that the batch has ended; called before its slice is recorded."""
        self._has_begun = False

    def expect_no_start(self, *, own: bool = False) -> tuple[tuple[str, Timestamp], ...]:
        """Forget `expect_start`; return the calls that have not happened.

        Args:
            own: Only if it was called by this thread.
        """
        with self._expected_lock:
            if not self._expected or (own and self._expected[-1][1] != threading.get_ident()):
                return ()
            return self._expected.pop()[2]

    def has_begun(self, timeout_s: float) -> bool:
        """Return whether the batch has begun, also if the writer cannot look in time."""
        if self._expected and self._thread.is_alive() and not self._is_mine():
            request = _Request(everything=False)
            self._wanted.append(request)
            self._wake.set()
            return not request.cut.wait(timeout_s) or not self._expected
        return not self._expected

    def flush(self, timeout_s: float) -> bool:
        """Deliver and write out what has been recorded until now.

        Returns:
            Whether it was done in time. False on the thread of a handler, which cannot wait for itself.
        """
        if not self._thread.is_alive() or self._is_mine():
            return False
        return not self._await_delivery(timeout_s, self._outlets, everything=True)

    def _await_delivery(self, timeout_s: float, outlets: Sequence[Outlet], *, everything: bool = False) -> list[Outlet]:
        """Have everything delivered; return those of the outlets that have not done so in time, all if nothing was cut."""
        deadline_s = time.monotonic() + timeout_s
        request = _Request(everything)
        self._wanted.append(request)
        if self._ended:  # set before the last look for requests: one that this does not see is found there
            return list(outlets)
        self._wake.set()
        if not request.cut.wait(timeout_s):
            return list(outlets)
        late = []
        for outlet in outlets:
            delivered = request.delivered.get(outlet)
            if delivered is None or not delivered.wait(deadline_s - time.monotonic()):
                late.append(outlet)
        return late

    def _is_mine(self) -> bool:
        """Whether the thread that asks is the writer's or a handler's."""
        return self._thread.ident == threading.get_ident() or any(outlet.is_mine for outlet in self._outlets)

    def stopping(self, error: BaseException | None) -> None:
        """Take the handlers' hooks back, and have the handlers told that the profiler stops; on the thread that stops it."""
        for outlet in self._outlets:
            self._remove_hooks(outlet)
            outlet.post("stopping", error)

    def close(self, timeout_s: float) -> bool:
        """Deliver the rest, give the summary, close the handlers, end the threads. Returns whether that was done in time."""
        self._close_by_s = time.monotonic() + timeout_s
        for outlet in self._outlets:
            outlet.post_end(self._close_by_s)
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._buffer.due_ns = NEVER_NS
        if not self._thread.is_alive() and self._closed_in_time:
            return True
        for outlet in self._outlets:
            outlet.give_up()
        return False

    def abandon(self) -> None:
        """Forget everything in a forked child: the records, the handlers and the threads are the parent's."""
        self._buffer.due_ns = NEVER_NS
        self._outlets = []
        self._posted.clear()
        self._carry = []

    def look_after(self, now_ns: int) -> None:
        """Let the writer work, because it is late: called by a recording thread at an event after the buffer's ``due_ns``.

        Late is a writer that some C code has kept from the interpreter lock, and one that does not keep up. This thread
        waits until everything is delivered, its own event included, but for 50 ms at most, and not at all for a handler that
        has not returned for long. It does not do the work itself: Ctrl-C, or a signal handler that records, could come in the
        midst of it.
        """
        if self._closing or self._is_mine():
            return
        self._buffer.due_ns = now_ns + self._interval_ns  # one thread that waits is enough
        now_s = time.monotonic()
        blocked = [outlet for outlet in self._outlets if 0 < outlet.busy_since_s < now_s - _BLOCKED_S]
        late = self._await_delivery(_WAIT_S, [outlet for outlet in self._outlets if outlet not in blocked])
        self._waiting_since_s = (self._waiting_since_s or now_s) if late else 0.0
        if late and time.monotonic() - self._waiting_since_s < _BLOCKED_S:
            self._buffer.due_ns = self._timeline.clock.monotonic_ns() + _GIVE_WAY_NS

    def wait_for_room(self) -> bool:
        """Wait while the buffer is full, with ``on_full="block"``; called by a recording thread.

        Returns:
            Whether there is room. False on the thread of a handler, which cannot wait for itself, and at the end.
        """
        while self._buffer.is_full():
            if self._closing or not self._thread.is_alive() or self._is_mine():
                return False
            self._await_delivery(_WAIT_S, ())
        return True

    def summary(self, of: Outlet | None = None) -> Summary:
        """Return the counts of what was recorded, of what was lost and of what failed.

        Args:
            of: Count what this handler has missed; None stands for the one that has missed most, and for the losses of all.
        """
        missed = [self._missed(outlet) for outlet in self._outlets if of in (None, outlet)]
        dropped = max(missed, key=lambda counts: counts.total(), default=Counter())
        recorded = self._slices + self._instants + self._counters
        # Of events that the writer has not counted, nobody knows more than that there are some.
        beyond_events, beyond_bytes = self._buffer.refused
        behind = self._left_behind_uncounted()
        dropped += Counter({BEYOND_EVENTS: beyond_events, BEYOND_BYTES: beyond_bytes, LEFT_BEHIND: behind})
        dropped["events there was no memory for"] += self._buffer.lost_events
        dropped["events lost when the writer failed"] += self._lost_events
        recorded += beyond_events + beyond_bytes + behind + self._buffer.lost_events + self._lost_uncounted
        dropped["counter values that are not numbers"] += self._counter_values.refused + self._buffer.refused_values
        for outlet in self._outlets:
            if of in (None, outlet):
                dropped.update(outlet.losses)
        return Summary(
            slices=self._slices,
            instants=self._instants,
            counters=self._counters,
            dropped={reason: count for reason, count in dropped.items() if count},
            failures=dict(self._failures.counts),
            recorded=recorded,
        )

    def _missed(self, outlet: Outlet) -> Counter[str]:
        """Return how many events a handler has missed, by reason; what it has not been given at the end is left behind."""
        missed = outlet.dropped.copy()
        if outlet.is_given_up:
            missed[LEFT_BEHIND] += outlet.waiting_events + (self._in_hand if self._is_counted else 0)
        return missed

    def _left_behind_uncounted(self) -> int:
        """Return how many events are left behind, at the end, before the writer has counted them."""
        if not (self._ended or any(outlet.is_given_up for outlet in self._outlets)):
            return 0
        behind = (len(self._buffer.records) + len(self._carry)) // WIDTH
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
        for outlet in self._outlets:
            outlet.finish()
        self._ended = True
        while self._wanted:
            self._wanted.popleft().cut.set()  # it came too late
        self._closed_in_time = all(outlet.join(self._close_by_s - time.monotonic()) for outlet in self._outlets)

    def _next_pause_s(self) -> float:
        """Return how long to wait: less than usual when much was found, so that bursts stay short and the memory flat."""
        change = min(2.0, max(0.1, _BURST / max(1, self._found)))
        self._pause_s = min(self._interval_s / _WAKE_UPS, self._pause_s * change)
        return self._pause_s

    def _deliver(self) -> None:
        wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
        is_last = self._closing
        start_ns = self._timeline.clock.monotonic_ns()
        try:
            self._cut_all(start_ns)
        except BaseException as error:  # noqa: BLE001 - the thread must go on: the next time may work
            self._lost_events += self._in_hand
            self._lost_uncounted += 0 if self._is_counted else self._in_hand
            self._in_hand = 0  # the next failure may come before anything is taken
            self._hold_carry()
            self._failures.report("the writer thread", error)
        everything = is_last or any(request.everything for request in wanted)
        for outlet in self._outlets:
            if is_last:
                outlet.post_end_running(self._cut_ns)
            # After the last round `close` follows, which has the last readings of the clocks and the summary before it.
            outlet.post_round(None if everything else start_ns - GRACE_NS, flush=not is_last)
        for request in wanted:
            for outlet in self._outlets:
                outlet.post(request.delivered.setdefault(outlet, Signal()).set)
            request.cut.set()

    def _set_due(self, now_ns: int) -> None:
        behind = len(self._buffer.records) // WIDTH
        behind += max((outlet.waiting_events for outlet in self._outlets), default=0)
        # At the rate of late, when would there be too many? Other threads may keep the writer from the lock until then.
        too_many_ns = self._backlog * self._cut_apart_ns // max(1, self._found)
        late_ns = min(self._interval_ns, max(_GIVE_WAY_NS, too_many_ns))
        self._buffer.due_ns = now_ns + (_GIVE_WAY_NS if behind > self._backlog else late_ns)

    def _cut_all(self, start_ns: int) -> None:
        self._cut_apart_ns, self._last_cut_ns = max(1, start_ns - self._last_cut_ns), start_ns
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
            self._hooks.append(self._posted.popleft()[1:])  # start hooks of what this cut has found
        self._post_hooks()  # the events up to their times are delivered now
        now_ns = self._timeline.clock.monotonic_ns()
        if self._clock_watch.due(now_ns):
            self._post("clock_anchor", *self._clock_watch.read())
        self._set_due(now_ns)

    def _post_hooks(self) -> None:
        for hook in self._hooks:
            for outlet in self._outlets:
                outlet.post_hook(*hook)
        self._hooks.clear()

    def _post(self, method: str, *args: Any) -> None:
        for outlet in self._outlets:
            outlet.post(method, *args)

    def _cut(self, cut_ns: int | None) -> bool:
        """Hand the events up to a moment to the outlets.

        Args:
            cut_ns: The monotonic time. None is now, or the end of a window that was posted meanwhile.

        Returns:
            Whether such an end was found: the call that was posted with it comes before any later event.
        """
        buffer = self._buffer
        running = self._running_batch()
        running = running if self._has_begun else None  # read last: a new batch has not begun yet
        # In this order: what is in front of `before` was appended before the cut, so it lies before it; a slice that was
        # open at the cut is either still open when looked for, or among the records behind.
        before = len(self._carry) + len(buffer.records) if cut_ns is None else 0
        cut = self._timeline.clock.monotonic_ns() if cut_ns is None else cut_ns
        self._is_counted = False
        buffer.keep(cut)
        opened = [slice_ for slice_ in self._open_slices() if slice_[1] < cut]
        taken = buffer.take(len(buffer.records))
        self._in_hand = len(taken) // WIDTH  # what is carried is there the next time, if the next line fails
        # Looked for after the records were taken: a thread posts the end of a window before it records anything after it.
        ends = [] if cut_ns is not None else [end for end, *_ in self._posted.copy() if end is not None and end < cut]
        if ends:
            before, cut = 0, ends[0]
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
            tables = (self._buffer.labels, self._buffer.tracks, self._timestamps.copy())
            batch = EventBatch(records, *tables, offset_ns=self._timeline.offset_ns, cut_ns=cut, running=running)
            for outlet in self._outlets:
                outlet.post_events(batch)
        self._in_hand = 0
        self._hold_carry()
        self._cut_ns = max(self._cut_ns, cut)  # a window may end a moment before the last cut
        self._timestamps.forget_before(min([cut, *self._carry[1::WIDTH]]))
        return bool(ends)

    def _begin_expected(self, records: list[Any], opened: list[OpenSlice]) -> OpenSlice | None:
        """Post the start hooks of a batch whose first event is among these. Return its slice, if it has begun so."""
        if not self._expected or not self._expected_lock.acquire(blocking=False):
            return None
        try:
            for since_ns, ident, calls in self._expected.copy():
                track = self._buffer.track_of_thread.get(ident, -1)
                if any(slice_[1] >= since_ns and slice_[2] == track for slice_ in opened) or has_start(
                    records, since_ns, track
                ):
                    self._expected.clear()
                    self.post_start(calls)
                    return self._running_batch()
        finally:
            self._expected_lock.release()
        return None

    def _hold_carry(self) -> None:
        """Have the buffer count only what is carried as waiting in the hands of the writer."""
        self._buffer.hold(len(self._carry) // WIDTH, size_bytes(self._carry))

    def _divide(self, taken: list[Any], before: int, cut: int, opened: list[OpenSlice]) -> list[Any]:
        """Return the records up to a cut, keep those after it, and add the slices that were open at it to ``opened``."""
        records, carry = taken[:before], list[Any]()
        known = {slice_[1:] for slice_ in opened}
        ended: set[tuple[int, int]] = set()  # up to the cut, by a thread that came to recording it only after the cut
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
        self._carry = carry  # only now: what fails above loses everything, and everything is counted
        if ended:
            opened[:] = [slice_ for slice_ in opened if slice_[1:] not in ended]
        return records

    def _count(self, records: list[Any]) -> None:
        """Count what is delivered, and leave out counter values that are no finite numbers."""
        counters, instants, ends = count_kinds(records, COUNTER, INSTANT, END)
        self._slices += len(records) // WIDTH - counters - instants - ends  # an async slice counts when it begins
        self._counters += counters
        self._instants += instants
        if counters:
            self._counter_values.clean(records, self._buffer.labels)
        if self._buffer.refusals:
            self._counter_values.report_others(self._buffer.refusals)
