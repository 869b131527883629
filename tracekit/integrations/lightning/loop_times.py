"""LoopTimes: times the epochs, batches, backward passes and optimizer steps of one run by its hooks; without Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.actions import CALLBACKS, DATA_LOADING, OTHER, action_of
from tracekit.integrations.lightning.stage_timer import EpochTimes, StageTimer, StageTimes
from tracekit.recording.lifecycle import marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.clock import Clock
    from tracekit.recording.marker import Marker

__all__ = ["LoopTimes"]

_CATEGORIES: Final = ("time profiler",)
_EPOCH: Final = "train epoch"
_BACKWARD: Final = "backward"
_STEP: Final = "optimizer step"


def _no_wait() -> None:
    """Return immediately; a function that can be pickled, as Lightning sends callbacks to the processes that it spawns."""


class LoopTimes:
    """Times a run. Its methods are called when something begins or ends, on the training thread only.

    An end without a beginning raises nothing. Each interval is also a slice in the trace of the active tracekit profiler.

    Args:
        clock: The clock to read.
        wait: Called before the clock is read for a batch, a backward pass or a step; waits for the device.
        slices_of_parts: Give data loading, transfer, logging and checkpointing slices; not needed if all actions of
            Lightning have them.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, wait: Callable[[], None] | None = None, *, slices_of_parts: bool = True
    ) -> None:
        self._now_ns = clock.monotonic_ns
        self._wait = wait or _no_wait
        self._timer = StageTimer(clock)
        self._slices_of_parts = slices_of_parts
        self._epoch: EpochTimes | None = None  # the one that is open
        self._between = StageTimes()
        self._evaluation: tuple[str, StageTimes] | None = None
        self._since_ns: dict[str, int] = {}  # of the backward pass and the step that are open
        self._step_ns = 0  # of a step that is interrupted
        self._slices: dict[str, Marker] = {}  # open slices

    # ---- epochs ---------------------------------------------------------------------------------------------------------

    def begin_epoch(self, resumed: EpochTimes | None = None) -> None:
        """Begin an epoch of training; one that is still open is dropped.

        Args:
            resumed: The times of the same epoch until it was interrupted, to continue.
        """
        self.end_epoch()
        self._timer.end(self._between)
        self._epoch = resumed or EpochTimes(between=self._between)
        self._timer.begin(self._epoch.train)
        self._begin_slice(_EPOCH)

    def end_epoch(self) -> EpochTimes | None:
        """End the epoch and return its times, or None."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self._end_slice(_EPOCH)
            self._timer.end(epoch.train)
            self._between = StageTimes()
            self._timer.begin(self._between)
        return epoch

    def until_now(self) -> EpochTimes | None:
        """Return the times of the open epoch until now."""
        self._timer.settle()
        return self._epoch

    def begin_evaluation(self, stage: str) -> None:
        """Begin a run of validation, a test or a prediction; a validation within an epoch belongs to it."""
        is_within = stage == "validation" and self._epoch is not None
        times = self._epoch.validation if is_within and self._epoch is not None else StageTimes()
        self._evaluation = stage, times
        self._timer.begin(times)
        self._begin_slice(f"{stage} epoch")

    def end_evaluation(self) -> StageTimes:
        """End it and return the times of its stage; within an epoch, those of all runs until now."""
        if self._evaluation is None:
            return StageTimes()
        (stage, times), self._evaluation = self._evaluation, None
        self._end_slice(f"{stage} epoch")
        self._timer.end(times)
        return times

    def begin_batch(self) -> None:
        """Begin a batch."""
        self._begin_slice(self._batch_name)
        self._wait()
        self._timer.begin_batch()

    def end_batch(self, samples: int) -> None:
        """End a batch with a number of samples."""
        self._wait()
        self._timer.end_batch(samples)
        self._end_slice(self._batch_name)

    @property
    def _batch_name(self) -> str:
        return f"{'train' if self._evaluation is None else self._evaluation[0]} batch"

    # ---- within a batch -------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Begin a backward pass."""
        self._begin(_BACKWARD)

    def end_backward(self) -> None:
        """End it."""
        duration_ns = self._end(_BACKWARD)
        if duration_ns is not None and self._epoch is not None:
            self._epoch.backward.add(duration_ns)

    def begin_step(self) -> None:
        """Begin a step of the optimizer, or continue it."""
        self._begin(_STEP)

    def pause_step(self) -> None:
        """Exclude the loss that the optimizer computes in the middle of its step, as LBFGS does."""
        if _STEP in self._since_ns:
            self._step_ns += self._end(_STEP) or 0

    def end_step(self) -> None:
        """End the step. Without a beginning (gradients are only accumulated), nothing happens."""
        if _STEP in self._since_ns:
            self.pause_step()
            if self._epoch is not None:
                self._epoch.optimizer_step.add(self._step_ns)
        self._step_ns = 0

    def _begin(self, name: str) -> None:
        self._begin_slice(name)
        self._wait()
        self._since_ns[name] = self._now_ns()

    def _end(self, name: str) -> int | None:
        self._wait()
        since_ns = self._since_ns.pop(name, None)
        duration_ns = None if since_ns is None else self._now_ns() - since_ns
        self._end_slice(name)
        return duration_ns

    # ---- actions of Lightning -------------------------------------------------------------------------------------------

    def begin_action(self, action_name: str, resumed: EpochTimes | None = None) -> None:
        """Note the start of an action.

        Args:
            action_name: Lightning's name for it.
            resumed: As for `begin_epoch`; needed here, because Lightning calls no hook when it resumes within an epoch.
        """
        action = action_of(action_name)
        begins = self._timer.begin_action(action_name, action.part)
        if begins and self._slices_of_parts and action.part not in (CALLBACKS, OTHER):
            self._begin_slice(str(action.part), action_name)
        if action_name == "run_training_epoch":
            if self._epoch is None:
                self.begin_epoch(resumed)
            self._timer.expect(DATA_LOADING)  # next, the workers of the loader are started
        elif action.hook == "training_step":
            self.pause_step()

    def end_action(self, action_name: str) -> None:
        """Note the end of an action."""
        hook = action_of(action_name).hook
        if hook == "optimizer_step":
            self.end_step()
        elif action_name == "run_training_epoch":  # also by an exception, after which no hook ends the batch
            self.close(but=_EPOCH)
        self._end_slice(action_name)
        self._timer.end_action(action_name)
        if hook == "on_validation_model_zero_grad":
            self._timer.expect(DATA_LOADING)  # as above, for the validation that follows

    # ---- slices ---------------------------------------------------------------------------------------------------------

    def close(self, but: str = "") -> None:
        """End the slices that are still open, but one."""
        for key in reversed([key for key in self._slices if key != but]):
            self._end_slice(key)

    def _begin_slice(self, name: str, key: str | None = None) -> None:
        key = key or name
        self._end_slice(key)
        self._slices[key] = marker(name, _CATEGORIES)
        self._slices[key].start()

    def _end_slice(self, key: str) -> None:
        if (opened := self._slices.pop(key, None)) is not None:
            opened.finish()
