"""TimeProfiler: a Lightning callback that logs how long training and validation take, and what is lost between batches."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_choice
from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.batches import samples_in
from tracekit.integrations.lightning.actions import OWN_PREFIX
from tracekit.integrations.lightning.callback import records_hooks
from tracekit.integrations.lightning.epoch_times import (
    ALL_KEYS,
    REDUCTIONS,
    EpochTimes,
    chosen_keys,
    for_stage,
    from_ranks,
    in_order,
    stage_values,
)
from tracekit.integrations.lightning.framework import Callback, device_waits, gathered
from tracekit.integrations.lightning.ledger import StageTimes
from tracekit.integrations.lightning.loop_times import LoopTimes
from tracekit.integrations.lightning.table import stages_table
from tracekit.integrations.lightning.tap import listen, stop_listening
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Clock
    from tracekit.integrations.lightning.framework import LightningModule, Trainer

__all__ = ["TimeProfiler"]

logger = logging.getLogger("tracekit")

_STATE_VERSION: Final = 1


class TimeProfiler(Callback):
    """Logs once per training epoch, in seconds, where its time went; the keys are those of Thunder's ``TimeProfiler``.

    Example::

        trainer = Trainer(callbacks=[TimeProfiler("backward", "optimizer step")])

    Always on:

    * ``train batch``, ``validation batch``: the mean from the start to the end of a batch, as this callback's hooks see it.
    * ``train epoch``: the whole epoch, without the validation runs in its middle (all of them).
    * ``validation epoch``: the mean of the epoch's validation runs. The sanity check counts nowhere.
    * ``avg train downtime``, ``avg val downtime``: the time between batches, for each **sample** (of the batches together).

    By name, or all four with ``TimeProfiler(True)``:

    * ``backward``: the mean of the backward passes. ``optimizer step``: the mean of the optimizer's steps, from
      ``on_before_optimizer_step`` on, with clipping; with accumulated gradients there are fewer of them than batches.
    * ``total train downtime``, ``total val downtime``: of the epoch; all validation runs together.

    By name, or all with ``details=True``:

    * ``train downtime per step``, ``val downtime per step``: the time between batches, for each batch.
    * ``train downtime data loading``, ``... transfer`` (to the device), ``... callbacks`` (hooks of callbacks and of the module,
      outside of a batch), ``... logging``, ``... checkpointing``, ``... other``, and so for ``val``: what the total is made of.
    * ``between epochs``: from the end of the last epoch to the start of this one, where checkpoints are often written.

    Every nanosecond stands on one account only, so that train epoch = train batches + total train downtime, and nothing is
    negative. What there was nothing of has no key. Time is that of the monotonic clock. ``trainer.validate`` and
    ``trainer.test`` log ``validation ...`` and ``test ...`` values of their own; after ``trainer.predict``, in which Lightning
    cannot log, `values` has them.

    Everything that it times is also a slice in the trace of the active tracekit profiler. Durations of single batches are
    there, and their distribution is in `summary`; the memory taken does not grow with the number of batches. A checkpoint in
    the middle of an epoch carries the times until then, and a run that is resumed from it goes on with them; the pause counts
    nowhere. Works with any logger or none (then the values are in ``trainer.callback_metrics``). A subclass changes the
    prefix ``TimeProfiler/`` to its own name.

    Args:
        *keys: What to log besides the default keys; ``True`` for all four optional ones.
        details: Also log what Thunder's does not have.
        sync_dist: Log one value of all ranks, by small collectives once an epoch; False logs those of rank 0. A rank that
            has no value for a key (no batch in the epoch) is left out, and nobody waits for it.
        reduce: What that value is: ``"mean"``, ``"max"`` or ``"min"``.
        synchronize: Wait for the device before every reading of the clock. Otherwise, on a GPU, times are those of the
            thread that launches the work, and the device may be behind. Costs what the waiting costs.
        clock: The clock to read; for tests.

    Raises:
        ConfigError: A key is unknown; the message lists the known ones.
    """

    def __init__(
        self,
        *keys: str | bool,
        details: bool = False,
        sync_dist: bool = True,
        reduce: str = "mean",
        synchronize: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.keys = chosen_keys(keys, details=details)
        check_choice("TimeProfiler: reduce", reduce, tuple(REDUCTIONS))
        self.values: Mapping[str, float] = {}
        """The values of the last epoch or run, all keys, of this rank or, with ``sync_dist``, of all; in seconds."""
        self._sync_dist = sync_dist
        self._reduce = reduce
        self._synchronize = synchronize
        self._clock = clock
        self._times = LoopTimes(clock)
        self._thread = 0
        self._resumed: EpochTimes | None = None
        self._stages: dict[str, StageTimes] = {}  # of all runs until now
        self._within = {"backward": DurationStatistics(), "optimizer step": DurationStatistics()}

    @property
    def state_key(self) -> str:
        """What Lightning calls this callback."""
        return f"{OWN_PREFIX}{type(self).__qualname__}"

    def summary(self) -> str:
        """Return a table of all runs until now, in seconds, with medians and percentiles, and what downtime was made of."""
        return stages_table(self._stages, self._within)

    # ---- the run --------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to listen to the trainer."""
        wait = device_waits(trainer.strategy.root_device) if self._synchronize else None
        self._times = LoopTimes(self._clock, wait, slices_of_parts=not records_hooks(trainer))
        self._thread = threading.get_ident()
        self._resumed = None
        stop_listening(trainer, self)  # a run that another callback has kept from telling that it failed
        listen(trainer, self)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of it."""
        stop_listening(trainer, self)
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Do the same for a run that fails, which Lightning does not tear down."""
        self.teardown(trainer, pl_module, "")

    def start(self, action_name: str) -> None:
        """Take note of something that Lightning begins; see `tracekit.integrations.lightning.tap`."""
        if threading.get_ident() == self._thread:
            self._times.begin_action(action_name, self._resumed)

    def stop(self, action_name: str) -> None:
        """Take note of something that it ends."""
        if threading.get_ident() == self._thread:
            self._times.end_action(action_name)

    def close(self) -> None:
        """End the slices that are open."""
        self._times.close()

    # ---- training -------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch. One that was interrupted is over: Lightning goes on with the next."""
        self._resumed = None
        self._times.begin_epoch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what it took."""
        self._resumed = None
        epoch = self._times.end_epoch()
        if epoch is not None:
            for stage in ("train", "validation", "between"):
                name = "between epochs" if stage == "between" else stage
                self._stages.setdefault(name, StageTimes()).add(getattr(epoch, stage))
            self._within["backward"].merge(epoch.backward)
            self._within["optimizer step"].merge(epoch.optimizer_step)
        self._log(trainer, pl_module, {} if epoch is None else epoch.values())

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a batch."""
        self._times.begin_batch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End it."""
        self._times.end_batch(samples_in(batch))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """Begin a backward pass."""
        self._times.begin_backward()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it."""
        self._times.end_backward()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Begin the optimizer's own part of its step."""
        self._times.begin_step()

    # ---- evaluation -----------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a run of validation, unless it is the sanity check."""
        if not trainer.sanity_checking:
            self._times.begin_evaluation("validation")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it; log, where it is not a part of a training epoch."""
        if trainer.sanity_checking:
            return
        times = self._times.end_evaluation()
        if trainer.state.fn != "fit":
            self._log(trainer, pl_module, self._evaluated("validation", "val", times))

    def on_validation_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Begin a batch."""
        if not trainer.sanity_checking:
            self._times.begin_batch()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        """End it."""
        if not trainer.sanity_checking:
            self._times.end_batch(samples_in(batch))

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a test."""
        self._times.begin_evaluation("test")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it, and log what it took."""
        values = self._evaluated("test", "test", self._times.end_evaluation())
        self._log(trainer, pl_module, values, "test")

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a prediction."""
        self._times.begin_evaluation("predict")

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """End it."""
        self.values = self._evaluated("predict", "predict", self._times.end_evaluation())

    def on_test_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Begin a batch."""
        self._times.begin_batch()

    on_predict_batch_start = on_test_batch_start

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        """End it."""
        self._times.end_batch(samples_in(batch))

    on_predict_batch_end = on_test_batch_end

    def _evaluated(self, stage: str, short: str, times: StageTimes) -> Mapping[str, float]:
        self._stages.setdefault(stage, StageTimes()).add(times)
        return stage_values(stage, short, times)

    # ---- results --------------------------------------------------------------------------------------------------------

    def _log(
        self, trainer: Trainer, pl_module: LightningModule, values: Mapping[str, float], stage: str | None = None
    ) -> None:
        keys, known = (
            (self.keys, ALL_KEYS) if stage is None else (for_stage(self.keys, stage), for_stage(ALL_KEYS, stage))
        )
        together = self._sync_dist and trainer.world_size > 1
        if together:
            # First agree on which keys there are: Lightning's own reduction, key by key, waits for ranks that lack one.
            values = from_ranks(gathered(pl_module, in_order(values, known)), known, self._reduce)
        self.values = values
        pl_module.log_dict(
            {f"{type(self).__name__}/{key}": values[key] for key in keys if key in values},
            prog_bar=False,
            on_step=False,
            on_epoch=True,
            sync_dist=together,
            batch_size=1,
            add_dataloader_idx=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the times of the epoch until now, as plain numbers; nothing between epochs."""
        epoch = self._times.until_now()
        return {} if epoch is None else {"version": _STATE_VERSION, "epoch": epoch.to_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the times of an epoch that was interrupted. Which keys are logged stays as it is."""
        if state_dict.get("version") != _STATE_VERSION:
            logger.warning("tracekit: TimeProfiler does not know the state of version %r", state_dict.get("version"))
            return
        self._resumed = EpochTimes.from_dict(state_dict["epoch"])
