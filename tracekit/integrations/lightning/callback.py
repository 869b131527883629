"""TracekitCallback records the runs of Lightning's Trainer. TracekitProfiler is what ``Trainer(profiler=...)`` takes."""

from __future__ import annotations

import logging
import marshal
import os
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracekit import privacy
from tracekit.arguments import check_path
from tracekit.clock import SYSTEM_CLOCK
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError, StorageError, TracekitError
from tracekit.handlers.chrome_json import DEFAULT_NAME, JSONTraceHandler
from tracekit.integrations.batches import samples_in, tokens_in
from tracekit.integrations.lightning.actions import ActionSlices
from tracekit.integrations.lightning.framework import (
    LightningProfiler,
    NullListener,
    RunCallback,
    close_slices,
    listen,
    record_workers,
)
from tracekit.naming import following_names
from tracekit.recording.profiler import Profiler, active_profiler
from tracekit.recording.schedule import CaptureSchedule
from tracekit.storage import atomic_write
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracekit.clock import Clock
    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.schedule import Schedule
    from tracekit.recording.source import Source

logger = logging.getLogger("tracekit")


class TracekitProfiler(ActionSlices, LightningProfiler):
    """Records every hook and action of Lightning as a slice in the trace of the active tracekit profiler.

    Example::

        trainer = Trainer(profiler=TracekitProfiler(), callbacks=[TracekitCallback("traces/{run_id}/rank{rank}.json")])

    It makes no trace by itself: `TracekitCallback`, or a `tracekit.Profiler` around ``trainer.fit``, does. Without one
    there is the summary, which Lightning prints (or writes to ``filename``) when the run is over, as for its
    ``SimpleProfiler``; it counts from the making of this object on, over all runs.

    Actions may nest, overlap, and run on any number of threads at the same time. As with ``SimpleProfiler``, a start of an
    action that is open and a stop of one that is not raise ``ValueError``. A stop does not raise while an exception is being
    handled, which it would hide; that is logged once. Your own ``with trainer.profiler.profile("tokenise"):`` makes slices too.

    Args:
        dirpath: Folder for ``filename``; by default that of the first logger.
        filename: File of the summary, without its suffix ``.txt``; by default to the log.
        extended: Show all columns in the summary, not only total and mean.
        dump_stats: Also write the calls and total of each action to ``dirpath``, one ``.prof`` file each, which `pstats` reads.
        clock: The clock to read for the summary; for tests.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        extended: bool = True,
        dump_stats: bool = False,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        LightningProfiler.__init__(self, dirpath=dirpath, filename=filename)
        if dirpath is not None:
            check_path("TracekitProfiler: dirpath", dirpath)
        ActionSlices.__init__(self, clock, strict=True)
        self.extended = extended
        self.dump_stats = dump_stats

    def describe(self) -> None:
        """Write the summary, and with ``dump_stats`` the files; Lightning calls this when a run is over."""
        if self.dump_stats:
            self._dump_stats()
        super().describe()

    def _dump_stats(self) -> None:
        if not self.dirpath:
            logger.warning("tracekit: TracekitProfiler(dump_stats=True) writes no files without a dirpath or a logger")
            return
        for title, durations in self.durations(by_title=True).items():
            seconds = durations.total_ns / 1e9
            # The form of pstats: by (file, line, function) the calls, primitive calls, own time, total time and callers.
            found: tuple[object, ...] = (durations.count, durations.count, seconds, seconds, {})
            path = os.path.join(self.dirpath, self._prepare_filename(action_name=title, extension=".prof"))  # noqa: PTH118 - a URL
            try:
                with atomic_write(path) as file:
                    file.write(marshal.dumps({("~", 0, title): found}))
            except StorageError as error:
                logger.warning("tracekit: TracekitProfiler(dump_stats=True): %s", error)
                return

    def summary(self) -> str:
        """Return a table of all actions in seconds, the largest total first; empty if no action was recorded."""
        found = ActionSlices.summary(self)
        stage = f"{self._stage.upper()} " if self._stage is not None else ""
        return f"{stage}Profiler Report{os.linesep}{os.linesep}{found}{os.linesep}" if found else ""


class TracekitCallback(RunCallback):
    """Records every run of a Trainer: one line gives a trace of all actions of Lightning.

    Example::

        trainer = Trainer(callbacks=[TracekitCallback("traces/{run_id}/rank{rank}.json")])

        TracekitCallback(
            "traces/{run_id}/rank{rank}.json",
            schedule=cyclic_schedule(wait=1, warmup=1, active=3),
            sources=[TorchProfiler("traces/{run_id}/torch-rank{rank}-{batch}.json.gz")],
        )

    Each ``fit``, ``validate``, ``test`` and ``predict`` is a separate recording, from its setup to its end or its exception.
    The second one gets ``-2`` into its name, and so on. Without ``trace``, a `tracekit.Profiler` that runs already records, and
    is left running.

    The `Timestamp`: a **batch** is a step of the optimizer, as in Composer, so that with accumulated gradients one batch has the
    samples and tokens of all micro-batches since the last. With manual optimization, or without an optimizer, it is a batch of
    the loader. A checkpoint carries the timestamp, and a run that is resumed from it counts on. Outside of training each batch
    of the loader is a batch, counted from 0 and not kept in checkpoints; validation within training counts nowhere. Samples
    and tokens are those of this rank, or, with ``counts="global"``, those times the number of ranks with different data.

    Wrong arguments raise, here or in the setup of the first run. After that no failure of tracekit ends a run.

    Args:
        trace: Name of the trace, or a function that makes the trace handlers: it is called for every recording, and once to
            see whether they can be made. None is the default name of `JSONTraceHandler`, where no profiler runs.
        schedule: As for `Profiler`. One made by `on_demand` serves one recording; later runs are not recorded.
        sources: As for `Profiler`.
        samples: Counts the samples of a batch.
        tokens: Counts its tokens.
        hooks: Give every action of Lightning a slice: hooks of callbacks, module and strategy, data loading,
            logging, checkpointing. With ``Trainer(profiler=TracekitProfiler())`` they get it from there.
        workers: Record the workers of data loaders, each into a trace next to that of its rank.
        **options: More arguments of `Profiler`: ``counts="global"``, ``flush_interval=``, ``run_id=`` ...

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        trace: str | os.PathLike[str] | Callable[[], TraceHandler | Sequence[TraceHandler]] | None = None,
        schedule: Schedule | None = None,
        *,
        sources: Source | Sequence[Source] = (),
        samples: Callable[[Any], int] = samples_in,
        tokens: Callable[[Any], int] = tokens_in,
        hooks: bool = True,
        workers: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        trace = options.pop("profiler", trace)  # as the callbacks of other frameworks take it
        if trace is not None and not isinstance(trace, str | os.PathLike) and not callable(trace):
            raise ConfigError(
                "TracekitCallback: trace is a file name, or a function that makes trace handlers for every run of the "
                f"Trainer, such as lambda: [JSONTraceHandler(...), ...], not {trace!r}. To record with a Profiler of yours, "
                "start it around the run of the Trainer, and leave trace out"
            )
        self._trace = trace
        self._schedule = schedule
        self._sources = sources
        self._samples = samples
        self._tokens = tokens
        self.hooks = hooks
        """True if every action of Lightning gets a slice."""
        self._workers = workers
        self._begins_at: Timestamp = options.pop("timestamp", None) or Timestamp()
        self._options = options
        self._recordings = 0
        # Check the arguments now, not after the job has waited in the queue of a cluster.
        checked = None if isinstance(schedule, CaptureSchedule) else schedule
        Profiler(self._handlers(), checked, sources=sources, timestamp=self._begins_at, **options)
        self.profiler: Profiler | None = None
        """The profiler of the run that is going on."""
        self._timestamp = self._begins_at  # of training
        self._stage = ""
        self._counts_evaluation = False
        self._steps = 0
        self._waiting = (0, 0)  # samples and tokens of micro-batches since the last step
        self._accumulates = False  # there are some

    # ---- the run --------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record."""
        self._end()  # of a run that failed unnoticed, because another callback raised
        self._stage = getattr(stage, "value", stage)  # an enum with another name
        self._waiting, self._accumulates = (0, 0), False
        if trainer.global_step == 0:  # otherwise the same training goes on
            self._timestamp = self._begins_at
        found = active_profiler() if self._trace is None else None
        profiler = found or self._started(trainer, self._timestamp if self._stage == "fit" else Timestamp())
        self.profiler = profiler
        if profiler is None:
            return
        if found is None:
            self._at_end.push(profiler)
        if self._workers:
            record_workers(self._at_end, trainer, profiler)
        self._counts_evaluation = self._stage != "fit" and int(profiler.timestamp.batch) == 0
        if self.hooks:
            listener = NullListener() if isinstance(trainer.profiler, TracekitProfiler) else ActionSlices()
            # Other slices begin and end within actions.
            listen(self._at_end, trainer, listener, outermost=True)
        if found is None:
            self._at_end.callback(close_slices, trainer)

    def _started(self, trainer: Any, timestamp: Timestamp) -> Profiler | None:
        options = dict(self._options)
        if trainer.world_size > 1 and not options.get("run_id"):
            # Lightning starts its ranks itself, without a common run id in their environment.
            process = detect_process(rank=0, world_size=1)
            if privacy.is_wanted(options.get("private")):
                process = privacy.anonymous(process)
            options["run_id"] = trainer.strategy.broadcast(process.run_id)
        try:
            profiler = Profiler(self._handlers(), self._schedule, sources=self._sources, timestamp=timestamp, **options)
            profiler.start()
        except TracekitError as error:
            if not self._recordings:
                raise
            logger.warning("tracekit: trainer.%s is not recorded: %s", self._stage, error)
            return None
        self._recordings += 1
        self._options["run_id"] = profiler.process.run_id  # what this process records is one run
        return profiler

    def _handlers(self) -> TraceHandler | Sequence[TraceHandler]:
        if callable(self._trace):
            return self._trace()
        name = DEFAULT_NAME if self._trace is None else check_path("trace", self._trace)
        return JSONTraceHandler(next(islice(following_names(name), self._recordings, None)))

    def _end(self, error: BaseException | None = None) -> None:
        self.profiler = None
        super()._end(error)  # passes the exception to the handlers

    # ---- training -------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count: setup, checkpoint and sanity check are over."""
        self._steps = trainer.global_step
        if self.profiler is not None:
            self.profiler.restart_batch()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Pass to this epoch, if the run was resumed at the very end of the last one."""
        if self.profiler is not None and int(self.profiler.timestamp.batch_in_epoch):
            self.profiler.next_epoch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Pass to the next batch, if the optimizer has made a step."""
        self._count(trainer, batch)
        before, self._steps = self._steps, trainer.global_step
        self._accumulates = self._steps == before and pl_module.automatic_optimization
        if not self._accumulates:
            self._step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Pass to the next epoch."""
        if self.profiler is not None:
            self.profiler.next_epoch()
            self._timestamp = self.profiler.timestamp

    def _count(self, trainer: Any, batch: Any) -> None:
        if self.profiler is None:
            return
        try:
            samples, tokens = self._samples(batch), self._tokens(batch)
        except Exception as error:  # noqa: BLE001 - a user's function; its failure must not end training
            self.profiler.report_failure("TracekitCallback", error)
            return
        if self.profiler.counts == "global":
            # Fewer than all ranks load different data if a model is spread over several.
            kwargs = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
            replicas = int(kwargs.get("num_replicas", trainer.world_size))
            samples, tokens = samples * replicas, tokens * replicas
        self._waiting = (self._waiting[0] + samples, self._waiting[1] + tokens)

    def _step(self) -> None:
        if self.profiler is not None:
            samples, tokens = self._waiting
            self._waiting = (0, 0)
            self.profiler.step(samples=samples, tokens=tokens)
            if self._stage == "fit":
                self._timestamp = self.profiler.timestamp

    # ---- evaluation outside of training ---------------------------------------------------------------------------------

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Pass to the next batch, outside of training."""
        if self._counts_evaluation:
            self._count(trainer, batch)
            self._step()

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count, outside of training."""
        if self._counts_evaluation and self.profiler is not None:
            self.profiler.restart_batch()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave a validation in the middle of training out of the next batch, unless some micro-batches of that are done."""
        if self._stage == "fit" and self.profiler is not None and not self._accumulates:
            self.profiler.restart_batch()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Complete the recording window of the schedule, outside of training."""
        if self._counts_evaluation and self.profiler is not None:
            self.profiler.next_epoch()

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    # ---- checkpoints ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the training time, as plain numbers."""
        return {"timestamp": self._timestamp.state_dict(), "waiting": list(self._waiting)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Count on from the training time of a checkpoint, if training goes on from it."""
        if self._stage != "fit" or self.profiler is None:
            return
        try:
            self._timestamp = Timestamp.from_state_dict(state_dict["timestamp"])
            samples, tokens = state_dict["waiting"]
        except (KeyError, ValueError) as error:
            logger.warning("tracekit: training time begins anew, because the checkpoint does not tell it: %s", error)
            return
        self._waiting = (samples, tokens)
        self.profiler.resume_at(self._timestamp)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "profiler": None}  # each process records by itself


def records_hooks(trainer: Any) -> bool:
    """Return True if everything that Lightning does gets a slice already."""
    return isinstance(trainer.profiler, TracekitProfiler) or any(
        isinstance(callback, TracekitCallback) and callback.hooks for callback in trainer.callbacks
    )
