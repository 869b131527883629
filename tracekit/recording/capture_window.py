"""CaptureWindow: one capture on one rank, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.capture.documents import CaptureState, CaptureStatus
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.capture.documents import Request

__all__ = ["CaptureWindow"]

_OPEN: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


class CaptureWindow:
    """Says what each batch shall be while a capture is in force: skipped, warm-up or recorded.

    Threads: `action` is called by the training thread, everything else by others; every attribute is set by one of them, and
    read by both.

    Args:
        request: What is wanted.
        steps: How many batches to record; None is until ``seconds`` are over or it is stopped.
        seconds: How long to record.
        warmup: Batches to warm up before.

    Attributes:
        request: What is wanted; put another in its place when the start is known.
        begin: The first batch that is not the base schedule's; None as long as it has not come.
        first: The first batch to record.
        end: The batch after the last one; None while it is in force.
        recorded: Whether a batch was recorded.
        saved: Whether everything that was recorded is in its files.
        late_batches: How many batches too late it began.
        note: What a person should know.
        files: The trace files.
    """

    def __init__(self, request: Request, *, steps: int | None, seconds: float, warmup: int) -> None:
        self.request = request
        self.begin: int | None = None
        self.first = 0
        self.end: int | None = None
        self.recorded = False
        self.saved = False
        self.late_batches = 0
        self.note: str | None = None
        self.files: tuple[str, ...] = ()
        self.warmup = warmup
        self._steps = steps
        self._longest_ns = round(seconds * 1e9)
        self._began_ns: int | None = None
        self._stopped = False
        self._why_cancelled: str | None = None

    def stop(self, note: str | None = None) -> None:
        """Have it end with the batch that runs; one that has not begun is cancelled then, and ``note`` says why."""
        self._why_cancelled = note
        self._stopped = True

    def cut(self, batch: int, note: str) -> None:
        """End it now, as the profiler stops in the middle of a batch."""
        if self.end is None:
            self.note = note
            self.recorded = self._began_ns is not None
            self.end = batch + 1 if self.recorded else batch

    # ---- on the training thread ---------------------------------------------------------------------------------------

    def action(
        self, batch: int, wall_ns: int, monotonic_ns: int, base: ProfilerAction, previous: ProfilerAction
    ) -> ProfilerAction:
        """Return what a batch shall be. It may be asked for the same one again, and answers the same.

        Args:
            batch: Number of the batch that begins.
            wall_ns: The time, ns since the epoch.
            monotonic_ns: The time.
            base: What it would be without a capture.
            previous: What was answered last.
        """
        if self.end is not None:
            return base
        if self.begin is None and not self._begins(batch, wall_ns, base, previous):
            ends_window = self._comes_next(batch) and base in _OPEN
            return ProfilerAction.ACTIVE_AND_SAVE if ends_window else base
        assert self.begin is not None
        if batch < self.begin:
            return ProfilerAction.ACTIVE_AND_SAVE if base in _OPEN else base
        if self._stopped and not self.recorded and batch <= self.first:
            self._cancel(batch)
            return base
        if batch < self.first:
            return ProfilerAction.WARMUP
        return self._record(batch, monotonic_ns, base)

    def _record(self, batch: int, monotonic_ns: int, base: ProfilerAction) -> ProfilerAction:
        if self._began_ns is None:
            self._began_ns = monotonic_ns
        last = None if self._steps is None else self.first + self._steps - 1
        self.recorded = batch > self.first
        if last is not None and batch > last:
            self.end = batch
            return base
        if self.recorded and (self._stopped or monotonic_ns - self._began_ns >= self._longest_ns):
            self.end = batch
            # An active batch would belong to the window that ends here.
            return ProfilerAction.WARMUP if base in _OPEN else base
        return ProfilerAction.ACTIVE_AND_SAVE if batch == last else ProfilerAction.ACTIVE

    def _begins(self, batch: int, wall_ns: int, base: ProfilerAction, previous: ProfilerAction) -> bool:
        """Tell whether this batch is the first that is not the base schedule's, and fix the numbers if it is."""
        if self._stopped:
            self._cancel(batch)
            return False
        request = self.request
        start_batch, start_time = request.start_batch, request.start_time
        if not request.decided:
            return False
        if start_batch is not None:
            if batch < start_batch - self.warmup:
                return False
            first = max(batch, start_batch)
        elif start_time is not None and wall_ns < start_time * 1e9:
            return False
        else:
            first = batch + self.warmup
        begin = batch
        if previous is ProfilerAction.ACTIVE and first == batch:
            # A window of the base schedule is open, and gets this batch to end with.
            begin = first = batch + 1
        self.late_batches = max(0, first - start_batch) if start_batch is not None else 0
        self.first, self.begin = first, begin  # in this order, for those who read it on another thread
        return True

    def _cancel(self, batch: int) -> None:
        self.note = self._why_cancelled
        self.end = batch

    def _comes_next(self, batch: int) -> bool:
        start_batch = self.request.start_batch
        return self.end is None and start_batch is not None and batch == start_batch - self.warmup - 1

    # ---- on other threads ---------------------------------------------------------------------------------------------

    @property
    def in_force(self) -> bool:
        """Whether it is not over, saving included."""
        return self.end is None or (self.recorded and not self.saved)

    def status(self) -> CaptureStatus:
        """Return how far it is."""
        begun, end = self.begin is not None and self._began_ns is not None, self.end
        if end is not None:
            state = CaptureState.CANCELLED if not self.recorded else CaptureState.SAVING
            state = CaptureState.DONE if self.recorded and self.saved else state
        elif not self.request.decided:
            state = CaptureState.ACKNOWLEDGED
        else:
            state = CaptureState.RECORDING if begun else CaptureState.WAITING
        return CaptureStatus(
            id=self.request.id,
            state=state,
            warmup=self.warmup,
            first_batch=self.first if begun else None,
            last_batch=end - 1 if end is not None and self.recorded else None,
            late_batches=self.late_batches,
            note=self.note,
            files=self.files,
        )
