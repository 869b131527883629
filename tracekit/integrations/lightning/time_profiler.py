"""TimeProfiler: a Lightning callback that logs the times of training and validation, and the downtime between batches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_choice
from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.batches import samples_in
from tracekit.integrations.lightning.callback import records_hooks
from tracekit.integrations.lightning.framework import RunCallback, device_waits, gathered, listen
from tracekit.integrations.lightning.loop_timer import (
    ALL_KEYS,
    REDUCTIONS,
    LoopTimer,
    StageTimes,
    chosen_keys,
    encode_values,
    epoch_values,
    keys_of_stage,
    reduce_ranks,
    stage_values,
    stages_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Clock

logger = logging.getLogger("tracekit")

_STATE_VERSION: Final = 2


class TimeProfiler(RunCallback):
    """Logs once per training epoch, in seconds, where its time went; the keys are those of Thunder's ``TimeProfiler``.

    Example::

        trainer = Trainer(callbacks=[TimeProfiler("backward", "optimizer step")])

    Always on:

    * ``train batch``, ``validation batch``: the mean from the start to the end of a batch, by the hooks of this callback.
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

    Every nanosecond counts once, so that train epoch = train batches + total train downtime, and nothing is negative. Values of
    things that did not happen have no key. Time is that of the monotonic clock. ``trainer.validate`` and ``trainer.test`` log
    ``validation ...`` and ``test ...`` values; those of ``trainer.predict`` are only in `values`, as Lightning cannot log there.

    Each interval is also a slice in the trace of the active tracekit profiler. The trace has the durations of single batches,
    and `summary` their distribution; the memory does not grow with the number of batches. A checkpoint in the middle of an
    epoch carries the times until then, and a resumed run goes on with them, without the pause. Works with any logger; without
    a logger the values are in ``trainer.callback_metrics``. A subclass changes the prefix ``TimeProfiler/`` to its own name.

    Args:
        *keys: Keys to log in addition to the default keys; ``True`` for all four optional ones.
        details: Also log what Thunder's does not have.
        sync_dist: Log one value of all ranks, by small collectives once an epoch; False logs those of rank 0. A rank that
            has no value for a key (no batch in the epoch) is left out, and nobody waits for it.
        reduce: Definition of that value: ``"mean"``, ``"max"`` or ``"min"``.
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
        super().__init__()
        self.keys = chosen_keys(keys, details=details)
        check_choice("TimeProfiler: reduce", reduce, tuple(REDUCTIONS))
        self.values: Mapping[str, float] = {}
        """The values of the last epoch or run, all keys, of this rank or, with ``sync_dist``, of all; in seconds."""
        self._sync_dist = sync_dist
        self._reduce = reduce
        self._synchronize = synchronize
        self._clock = clock
        self._timer = LoopTimer(clock)
        self._stages: dict[str, StageTimes] = {}  # of all runs until now

    def summary(self) -> str:
        """Return a table of all runs until now, in seconds, with medians and percentiles, and what downtime was made of."""
        return stages_table(self._stages)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to listen to the trainer."""
        self._end()  # of a run that failed unnoticed, because another callback raised
        wait = device_waits(trainer.strategy.root_device) if self._synchronize else None
        self._timer = LoopTimer(self._clock, wait, slices_of_parts=not records_hooks(trainer))
        listen(self._at_end, trainer, self._timer)

    # ---- training -------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch. One that was interrupted is over: Lightning goes on with the next."""
        self._timer.begin_epoch()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the times of the epoch."""
        epoch = self._timer.end_epoch() or {}
        for stage, times in epoch.items():
            self._stages.setdefault(stage, StageTimes()).add(times)
        self._log(trainer, pl_module, epoch_values(epoch) if epoch else {})

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Begin a backward pass."""
        self._timer.begin("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """End it."""
        self._timer.end("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin the optimizer's own part of its step."""
        self._timer.begin("optimizer step")

    # ---- batches and evaluation -----------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Begin a batch, unless it is of the sanity check."""
        if not trainer.sanity_checking:
            self._timer.begin_batch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any, **__: Any) -> None:
        """End the batch."""
        if not trainer.sanity_checking:
            self._timer.end_batch(samples_in(batch))

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a run of validation, a test or a prediction, unless it is the sanity check."""
        if not trainer.sanity_checking:
            self._timer.begin_stage(_stage(trainer))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """End it, and log its times, unless it is a part of a training epoch."""
        if trainer.sanity_checking:
            return
        stage = _stage(trainer)
        times = self._timer.end_stage(stage) or StageTimes()
        if trainer.state.fn == "fit":
            return
        self._stages.setdefault(stage, StageTimes()).add(times)
        values = stage_values(stage, times)
        if stage == "predict":
            self.values = values
        else:
            self._log(trainer, pl_module, values, stage)

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = on_train_batch_start
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end
    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    # ---- results --------------------------------------------------------------------------------------------------------

    def _log(self, trainer: Any, pl_module: Any, values: Mapping[str, float], stage: str = "validation") -> None:
        keys, known = self.keys, list(ALL_KEYS)
        if stage != "validation":
            keys, known = keys_of_stage(keys, stage), keys_of_stage(known, stage)
        together = self._sync_dist and trainer.world_size > 1
        if together:
            # Lightning reduces key by key, and waits for ranks that lack a key. So send all keys, and which are present.
            values = reduce_ranks(gathered(pl_module, encode_values(values, known)), known, self._reduce)
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
        epoch = self._timer.epoch_until_now()
        stored = {stage: times.to_dict() for stage, times in (epoch or {}).items()}
        return {"version": _STATE_VERSION, "epoch": stored} if stored else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the times of an epoch that was interrupted. Which keys are logged stays as it is."""
        if state_dict.get("version") != _STATE_VERSION:
            logger.warning("tracekit: TimeProfiler does not know the state of version %r", state_dict.get("version"))
            return
        self._timer.resumed = {stage: StageTimes.from_dict(times) for stage, times in state_dict["epoch"].items()}


def _stage(trainer: Any) -> str:
    """Return the name of the evaluation that runs: "validation", "test" or "predict"."""
    stage = str(getattr(trainer.state.fn, "value", trainer.state.fn))
    return stage if stage in ("test", "predict") else "validation"
