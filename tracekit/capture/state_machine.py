"""The state machine of one capture on one rank: which batches are recorded, and the progress that others see."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.capture.control_folder import CaptureState, CaptureStatus
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.capture.control_folder import Request

_OPEN: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)

BEFORE: Final = {
    CaptureState.ACKNOWLEDGED: (),
    CaptureState.WAITING: (CaptureState.ACKNOWLEDGED,),
    CaptureState.RECORDING: (CaptureState.WAITING,),
    CaptureState.SAVING: (CaptureState.RECORDING,),
    CaptureState.DONE: (CaptureState.SAVING,),
    CaptureState.CANCELLED: (CaptureState.ACKNOWLEDGED, CaptureState.WAITING),
}
"""The states from which a capture moves to each state. It starts as ACKNOWLEDGED, or as WAITING if its request has a start."""


class RankCapture:
    """One capture on one rank. It returns the action of each batch; its ``status`` moves through the states as in `BEFORE`.

    Threads: `action` belongs to the training thread, everything else to any thread. The lock is held for a change
    only, and is re-entrant for signal handlers. ``steps`` is None for no limit; after ``seconds`` the current batch
    is still recorded.
    """

    def __init__(self, request: Request, *, steps: int | None, seconds: float, warmup: int) -> None:
        self.request = request  # with its start once that is known
        state = CaptureState.WAITING if request.has_start else CaptureState.ACKNOWLEDGED
        self.status = CaptureStatus(id=request.id, state=state, warmup=warmup)
        self.begin: int | None = None  # the first batch that does not belong to the base schedule
        self._first = 0  # the first batch to record; valid once ``begin`` is
        self._steps = steps
        self._limit_ns = round(seconds * 1e9)
        self._began_ns = 0
        self._lock = threading.RLock()

    def action(
        self, batch: int, wall_ns: int, monotonic_ns: int, base: ProfilerAction, previous: ProfilerAction
    ) -> ProfilerAction:
        """Return the action of the batch that begins. A second call for the same batch returns the same.

        ``base`` is the action without a capture, ``previous`` the action of the last call.
        """
        if self.status.state is CaptureState.WAITING:
            begin = self._begin(batch, wall_ns, previous)
            if self.begin is None or batch < self.begin:
                # A window of the base schedule that is open ends with the batch before the capture.
                return ProfilerAction.ACTIVE_AND_SAVE if batch + 1 == begin and base in _OPEN else base
            if batch < self._first:
                return ProfilerAction.WARMUP
            self._began_ns = monotonic_ns
            start_batch = self._first if self.request.start_batch is None else self.request.start_batch
            self._move(CaptureState.RECORDING, first_batch=self._first, late_batches=max(0, self._first - start_batch))
        if self.status.state is not CaptureState.RECORDING:
            return base
        last = None if self._steps is None else self._first + self._steps - 1
        is_past = last is not None and batch > last
        if is_past or (batch > self._first and monotonic_ns - self._began_ns >= self._limit_ns):
            self._move(CaptureState.SAVING, last_batch=batch - 1)
            # After a time limit, an active batch would belong to the window that ends here.
            return ProfilerAction.WARMUP if base in _OPEN and not is_past else base
        return ProfilerAction.ACTIVE_AND_SAVE if batch == last else ProfilerAction.ACTIVE

    def _begin(self, batch: int, wall_ns: int, previous: ProfilerAction) -> int | None:
        """Return the batch that the capture begins with, as far as it is known; fix it when that batch comes."""
        if self.begin is not None:
            return self.begin
        warmup, start_batch, start_time = self.status.warmup, self.request.start_batch, self.request.start_time
        if start_batch is not None and batch < start_batch - warmup:
            return start_batch - warmup
        if start_batch is None and start_time is not None and wall_ns < start_time * 1e9:
            return None
        self.begin, self._first = batch, batch + warmup if start_batch is None else max(batch, start_batch)
        if previous is ProfilerAction.ACTIVE and self._first == batch:
            self.begin = self._first = batch + 1  # a window of the base schedule is open, and ends with this batch
        return self.begin

    def set_start(self, request: Request) -> None:
        """Take the same request again, now with a start."""
        if self.status.state is CaptureState.ACKNOWLEDGED and request.has_start:
            self.request = request
            self._move(CaptureState.WAITING)

    def stop(self, note: str) -> None:
        """End the capture with the current batch, or cancel it with a note if no batch is recorded yet."""
        if not self._move(CaptureState.CANCELLED, note=note):
            self._limit_ns = 0

    def end_run(self, batch: int, note: str) -> None:
        """End the capture in the middle of a batch."""
        if not self._move(CaptureState.CANCELLED, note=note):
            self._move(CaptureState.SAVING, last_batch=batch, note=note)

    def set_files(self, files: tuple[str, ...], *, complete: bool = False) -> None:
        """Record the files so far; finish the capture if they are complete."""
        with self._lock:
            self.status = dataclasses.replace(self.status, files=files)
            if complete:
                self._move(CaptureState.DONE)

    def _move(self, state: CaptureState, **changes: Any) -> bool:
        """Move to a state. Return False if the current one does not lead there."""
        with self._lock:
            if self.status.state not in BEFORE[state]:
                return False
            self.status = dataclasses.replace(self.status, state=state, **changes)
            return True
