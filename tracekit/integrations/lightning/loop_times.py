"""LoopTimes: the epochs, batches, backward passes and optimizer steps of one run, timed as its hooks say; without Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.actions import action_of
from tracekit.integrations.lightning.epoch_times import EpochTimes
from tracekit.integrations.lightning.ledger import CALLBACKS, DATA_LOADING, OTHER, Ledger, StageTimes
from tracekit.recording.lifecycle import marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.clock import Clock
    from tracekit.recording.marker import Marker

__all__ = ["LoopTimes"]

_CATEGORIES: Final = ("time profiler",)


class LoopTimes:
    """Times a run. Its methods are called when something begins or ends, on the training thread only.

    What does not fit (an end without a beginning) is put right and raises nothing. Everything timed is a slice in the trace of
    the active tracekit profiler.

    Args:
        clock: The clock to read.
        wait: Called before the clock is read for a batch, a backward pass or a step; waits for the device.
        slices_of_parts: Whether data loading, transfer, logging and checkpointing get slices; not needed where all
            actions of Lightning have some.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, wait: Callable[[], None] | None = None, *, slices_of_parts: bool = True
    ) -> None:
        self._now_ns = clock.monotonic_ns
        self._wait = wait or _no_wait
        self._ledger = Ledger(clock)
        self._slices_of_parts = slices_of_parts
        self._epoch: EpochTimes | None = None  # the one that is open
        self._between = StageTimes()
        self._evaluation: tuple[str, StageTimes] | None = None
        self._backward_since_ns: int | None = None
        self._step_since_ns: int | None = None
        self._step_ns = 0  # of a step that is interrupted
        self._open: dict[str, Marker] = {}  # slices, by what they are for

    # ---- epochs ---------------------------------------------------------------------------------------------------------

    def begin_epoch(self, resumed: EpochTimes | None = None) -> None:
        """Begin an epoch of training; one that is still open is forgotten.

        Args:
            resumed: The times of the same epoch until it was interrupted, to go on with.
        """
        self.end_epoch()
        self._ledger.end(self._between)
        self._epoch = resumed or EpochTimes(between=self._between)
        self._ledger.begin(self._epoch.train)
        self._begin_slice("train epoch")

    def end_epoch(self) -> EpochTimes | None:
        """End the epoch and return its times; None where there was none."""
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return None
        self._end_slice("train epoch")
        self._ledger.end(epoch.train)
        self._between = StageTimes()
        self._ledger.begin(self._between)
        return epoch

    def until_now(self) -> EpochTimes | None:
        """Return the times of the epoch that is open, as far as it has come."""
        self._ledger.settle()
        return self._epoch

    def begin_evaluation(self, stage: str) -> None:
        """Begin a run of validation, a test or a prediction; a validation within an epoch belongs to it."""
        within = stage == "validation" and self._epoch is not None
        times = self._epoch.validation if within and self._epoch is not None else StageTimes()
        self._evaluation = stage, times
        self._ledger.begin(times)
        self._begin_slice(f"{stage} epoch")

    def end_evaluation(self) -> StageTimes:
        """End it and return the times of its stage; within an epoch, those of all runs until now."""
        if self._evaluation is None:
            return StageTimes()
        (stage, times), self._evaluation = self._evaluation, None
        self._end_slice(f"{stage} epoch")
        self._ledger.end(times)
        return times

    def begin_batch(self) -> None:
        """Begin a batch."""
        self._begin_slice(self._batch_name)
        self._wait()
        self._ledger.begin_batch()

    def end_batch(self, samples: int) -> None:
        """End it.

        Args:
            samples: How many samples it had.
        """
        self._wait()
        self._ledger.end_batch(samples)
        self._end_slice(self._batch_name)

    @property
    def _batch_name(self) -> str:
        return f"{'train' if self._evaluation is None else self._evaluation[0]} batch"

    # ---- within a batch -------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Begin a backward pass."""
        self._begin_slice("backward")
        self._wait()
        self._backward_since_ns = self._now_ns()

    def end_backward(self) -> None:
        """End it."""
        self._wait()
        if self._backward_since_ns is not None and self._epoch is not None:
            self._epoch.backward.add(self._now_ns() - self._backward_since_ns)
        self._backward_since_ns = None
        self._end_slice("backward")

    def begin_step(self) -> None:
        """Begin a step of the optimizer, or go on with it."""
        self._begin_slice("optimizer step")
        self._wait()
        self._step_since_ns = self._now_ns()

    def pause_step(self) -> None:
        """Leave out what the optimizer asks for in the middle of its step: the loss once more, as LBFGS does."""
        if self._step_since_ns is not None:
            self._wait()
            self._step_ns += self._now_ns() - self._step_since_ns
            self._step_since_ns = None
            self._end_slice("optimizer step")

    def end_step(self) -> None:
        """End the step. Where none was begun (gradients are only accumulated), nothing happens."""
        if self._step_since_ns is None:
            self._step_ns = 0
            return
        self.pause_step()
        if self._epoch is not None:
            self._epoch.optimizer_step.add(self._step_ns)
        self._step_ns = 0

    # ---- what Lightning does --------------------------------------------------------------------------------------------

    def begin_action(self, action_name: str, resumed: EpochTimes | None = None) -> None:
        """Take note of something that Lightning begins.

        Args:
            action_name: Lightning's name for it.
            resumed: As for `begin_epoch`; needed here, because Lightning does not tell that an epoch begins in its middle.
        """
        action = action_of(action_name)
        begins = self._ledger.begin_action(action_name, action.part)
        if begins and self._slices_of_parts and action.part not in (CALLBACKS, OTHER):
            self._begin_slice(str(action.part), action_name)
        if action_name == "run_training_epoch":
            if self._epoch is None:
                self.begin_epoch(resumed)
            self._ledger.expect(DATA_LOADING)  # next, the workers of the loader are started
        elif action.hook == "training_step":
            self.pause_step()

    def end_action(self, action_name: str) -> None:
        """Take note of something that it ends."""
        hook = action_of(action_name).hook
        if hook == "optimizer_step":
            self.end_step()
        elif (
            action_name == "run_training_epoch"
        ):  # also by an exception, after which no hook tells of the end of a batch
            self._end_slices(but="train epoch")
        self._end_slice(action_name)
        self._ledger.end_action(action_name)
        if hook == "on_validation_model_zero_grad":
            self._ledger.expect(DATA_LOADING)  # as above, for the validation that follows

    def close(self) -> None:
        """End the slices that are still open."""
        self._end_slices()

    # ---- slices ---------------------------------------------------------------------------------------------------------

    def _begin_slice(self, name: str, key: str | None = None) -> None:
        key = key or name
        self._end_slice(key)
        self._open[key] = found = marker(name, _CATEGORIES)
        found.start()

    def _end_slices(self, but: str = "") -> None:
        for key in reversed(list(self._open)):
            if key != but:
                self._end_slice(key)

    def _end_slice(self, key: str) -> None:
        found = self._open.pop(key, None)
        if found is not None:
            found.finish()


def _no_wait() -> None:
    """Wait for nothing."""
