"""The state machine of on-demand capture on one rank: which batches are recorded, and the progress that others see."""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING, Final

from tracekit.capture.documents import CaptureState, CaptureStatus
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.capture.documents import Request
    from tracekit.clock import Clock
    from tracekit.timestamp import Timestamp

_OPEN: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


class CaptureEvent(enum.Enum):
    """The events of a capture."""

    START_KNOWN = "the request names a start"  # reported by the listener
    FIRST_BATCH = "the first batch to record begins"  # by the training thread
    LIMIT_REACHED = "the last batch to record is over"  # by the training thread
    STOP_REQUESTED = "a request, a signal or a call wants it to stop"  # by any thread
    RUN_ENDED = "the profiler stops"  # by the thread of the trace handler
    FILES_COMPLETE = "the files are complete and have their final names"  # by the listener


# Other pairs of state and event change nothing. A capture starts as ACKNOWLEDGED, or as WAITING if its request has a start.
TRANSITIONS: Final = {
    (CaptureState.ACKNOWLEDGED, CaptureEvent.START_KNOWN): CaptureState.WAITING,
    (CaptureState.ACKNOWLEDGED, CaptureEvent.STOP_REQUESTED): CaptureState.CANCELLED,
    (CaptureState.ACKNOWLEDGED, CaptureEvent.RUN_ENDED): CaptureState.CANCELLED,
    (CaptureState.WAITING, CaptureEvent.FIRST_BATCH): CaptureState.RECORDING,
    (CaptureState.WAITING, CaptureEvent.STOP_REQUESTED): CaptureState.CANCELLED,
    (CaptureState.WAITING, CaptureEvent.RUN_ENDED): CaptureState.CANCELLED,
    # A stop ends the capture with the current batch: the next batch reports LIMIT_REACHED.
    (CaptureState.RECORDING, CaptureEvent.STOP_REQUESTED): CaptureState.RECORDING,
    (CaptureState.RECORDING, CaptureEvent.LIMIT_REACHED): CaptureState.SAVING,
    (CaptureState.RECORDING, CaptureEvent.RUN_ENDED): CaptureState.SAVING,
    (CaptureState.SAVING, CaptureEvent.FILES_COMPLETE): CaptureState.DONE,
}


class RankCapture:
    """One capture on one rank. It returns the action of each batch, and moves through the states of `TRANSITIONS`.

    Threads: `action` belongs to the training thread, everything else to any thread. The lock is held for a transition
    only, and is re-entrant for signal handlers. ``steps`` is None for no limit; after ``seconds`` the current batch
    is still recorded.
    """

    def __init__(self, request: Request, *, steps: int | None, seconds: float, warmup: int) -> None:
        self.request = request  # with its start once that is known
        self.state = CaptureState.WAITING if request.has_start else CaptureState.ACKNOWLEDGED
        self.begin: int | None = None  # the first batch that does not belong to the base schedule
        self.first = 0  # the first batch to record; valid once ``begin`` is
        self.last: int | None = None  # the last recorded batch, once it is over
        self.files: tuple[str, ...] = ()
        self._steps = steps
        self._limit_ns = round(seconds * 1e9)
        self._warmup = warmup
        self._began_ns = 0
        self._note: str | None = None
        self._lock = threading.RLock()

    # ---- on the training thread ---------------------------------------------------------------------------------------

    def action(
        self, batch: int, wall_ns: int, monotonic_ns: int, base: ProfilerAction, previous: ProfilerAction
    ) -> ProfilerAction:
        """Return the action of the batch that begins. A second call for the same batch returns the same.

        ``base`` is the action without a capture, ``previous`` the action of the last call.
        """
        if self.state is CaptureState.WAITING:
            return self._action_before(batch, wall_ns, monotonic_ns, base, previous)
        if self.state is CaptureState.RECORDING:
            return self._action_during(batch, monotonic_ns, base)
        return base

    def _action_before(
        self, batch: int, wall_ns: int, monotonic_ns: int, base: ProfilerAction, previous: ProfilerAction
    ) -> ProfilerAction:
        start_batch = self.request.start_batch
        expected = None if start_batch is None else start_batch - self._warmup
        if self.begin is None:
            self._choose_begin(batch, expected, wall_ns, previous)
        if self.begin is None or batch < self.begin:
            # A window of the base schedule that is open ends with the batch before the capture.
            is_last = batch + 1 == (expected if self.begin is None else self.begin)
            return ProfilerAction.ACTIVE_AND_SAVE if is_last and base in _OPEN else base
        if batch < self.first:
            return ProfilerAction.WARMUP
        self._began_ns = monotonic_ns
        if not self._report(CaptureEvent.FIRST_BATCH):
            return base  # stopped by another thread
        return self._action_during(batch, monotonic_ns, base)

    def _choose_begin(self, batch: int, expected: int | None, wall_ns: int, previous: ProfilerAction) -> None:
        start_batch, start_time = self.request.start_batch, self.request.start_time
        is_early = batch < expected if expected is not None else start_time is not None and wall_ns < start_time * 1e9
        if is_early:
            return
        first = max(batch, start_batch) if start_batch is not None else batch + self._warmup
        begin = batch
        if previous is ProfilerAction.ACTIVE and first == batch:
            begin = first = batch + 1  # a window of the base schedule is open, and ends with this batch
        self.first, self.begin = first, begin  # in this order, because other threads read both

    def _action_during(self, batch: int, monotonic_ns: int, base: ProfilerAction) -> ProfilerAction:
        last = None if self._steps is None else self.first + self._steps - 1
        if last is not None and batch > last:
            self._report(CaptureEvent.LIMIT_REACHED, batch - 1)
            return base
        if batch > self.first and monotonic_ns - self._began_ns >= self._limit_ns:
            self._report(CaptureEvent.LIMIT_REACHED, batch - 1)
            # An active batch would belong to the window that ends here.
            return ProfilerAction.WARMUP if base in _OPEN else base
        return ProfilerAction.ACTIVE_AND_SAVE if batch == last else ProfilerAction.ACTIVE

    # ---- on any thread ------------------------------------------------------------------------------------------------

    def set_start(self, request: Request) -> None:
        """Take the same request again, now with a start."""
        if self.state is CaptureState.ACKNOWLEDGED and request.has_start:
            self.request = request
            self._report(CaptureEvent.START_KNOWN)

    def stop(self, note: str) -> None:
        """End the capture with the current batch, or cancel it with a note if no batch is recorded yet."""
        if self._report(CaptureEvent.STOP_REQUESTED, note=note):
            self._limit_ns = 0

    def end_run(self, batch: int, note: str) -> None:
        """End the capture in the middle of a batch."""
        self._report(CaptureEvent.RUN_ENDED, batch, note)

    def complete_files(self) -> None:
        """Finish the capture: ``files`` are complete."""
        self._report(CaptureEvent.FILES_COMPLETE)

    def status(self) -> CaptureStatus:
        """Return the part of the status document."""
        with self._lock:
            state, note, last = self.state, self._note, self.last
        has_begun = state in (CaptureState.RECORDING, CaptureState.SAVING, CaptureState.DONE)
        start_batch = self.request.start_batch
        is_late = self.begin is not None and start_batch is not None
        return CaptureStatus(
            id=self.request.id,
            state=state,
            warmup=self._warmup,
            first_batch=self.first if has_begun else None,
            last_batch=last,
            late_batches=max(0, self.first - start_batch) if is_late and start_batch is not None else 0,
            note=note,
            files=self.files,
        )

    def _report(self, event: CaptureEvent, last: int | None = None, note: str | None = None) -> bool:
        """Move to the next state. Return False if the event means nothing in the current state."""
        with self._lock:
            state = TRANSITIONS.get((self.state, event))
            if state is None:
                return False
            if state is CaptureState.SAVING:
                self.last = last
            if state in (CaptureState.SAVING, CaptureState.CANCELLED):
                self._note = note
            self.state = state
            return True


class CaptureMachine:
    """The captures of a rank, one after the other, of ``steps`` batches if a request names no length.

    Threads: `action` belongs to the training thread, everything else to any thread.
    """

    def __init__(self, *, steps: int, seconds: float, clock: Clock) -> None:
        self.warmup = 0  # the number of warm-up batches if a request names none
        self.current: RankCapture | None = None  # the current capture, else the last one
        self.timestamp: Timestamp | None = None  # the training time at the start of the current batch
        self._steps = steps
        self._seconds = seconds
        self._clock = clock
        self._previous = ProfilerAction.SKIP
        self._lock = threading.RLock()  # never taken by `action`

    @property
    def in_force(self) -> RankCapture | None:
        """The current capture, until its files are complete."""
        return self.current if self.current is not None and self.current.state.in_force else None

    def action(self, timestamp: Timestamp, base: ProfilerAction) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``; ``base`` is the action without a capture."""
        self.timestamp = timestamp
        capture, action = self.current, base
        if capture is not None:
            wall_ns, monotonic_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
            action = capture.action(int(timestamp.batch), wall_ns, monotonic_ns, base, self._previous)
        self._previous = action
        return action

    def accept(self, request: Request) -> str | None:
        """Begin a capture, or give the current one its start. Return the reason if the request is refused."""
        with self._lock:
            current = self.in_force
            if current is not None and current.request.id == request.id:
                current.set_start(request)
                return None
            # A capture without a start may be replaced: its coordinator is gone.
            if current is not None and current.state is not CaptureState.ACKNOWLEDGED:
                return "another capture is in force on this rank"
            steps, seconds = request.steps, request.seconds
            if steps is None and seconds is None:
                steps = self._steps
            self.current = RankCapture(
                request,
                steps=steps or None,
                seconds=min(seconds or self._seconds, self._seconds),
                warmup=self.warmup if request.warmup is None else request.warmup,
            )
        return None

    def stop(self) -> None:
        """Stop the current capture."""
        if self.current is not None:
            self.current.stop("it was stopped before it began")
