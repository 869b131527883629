"""JaxProfiler: records JAX traces of some steps of a training, and steps the tracekit profiler."""

from __future__ import annotations

import atexit
import logging
import math
import os
from collections import deque
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit import privacy, storage
from tracekit.arguments import check_path, check_profiler, check_whole
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError
from tracekit.integrations.jax.annotations import coordination_client, import_jax
from tracekit.integrations.jax.recorder import TraceRecorder
from tracekit.integrations.jax.windows import Agreement, Windows
from tracekit.integrations.slices import NestedMarkers
from tracekit.recording.failures import Failures
from tracekit.recording.profiler import active_profiler
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.distributed import ProcessInfo
    from tracekit.recording.profiler import Profiler

logger = logging.getLogger("tracekit")


class JaxProfiler:
    """Records JAX traces of some steps of a training, on the clock of tracekit's own.

    A plain object with the hooks of a training loop; only `on_training_step` is required::

        config = JaxProfilerConfig(profile_first_step=3)
        with Profiler(trace_handlers=[...]), JaxProfiler(config, log_path="runs/1") as jax_profiler:
            for step, batch in enumerate(batches, 1):
                state, metrics = train_step(state, batch)
                jax_profiler.on_training_step(metrics, epoch, step, samples=len(batch))

    or the callback of a trainer that calls these hooks. ``tracekit merge`` on the folder of the rank traces and the log
    directory then puts both on one timeline.

    A trace is ``<log_path>/<profile_log_dir>/plugins/profile/step_<first step>/process<index>-<host>.trace.json.gz``, next to the
    xplane.pb for XProf and TensorBoard. All processes of a run share that folder, and no file there is overwritten.

    Wrong arguments raise `ConfigError` here. After that nothing raises into the training: failures are logged once and counted
    in `failures` (``TRACEKIT_STRICT=1`` raises them). JAX keeps a trace in memory until it ends: an exception, the end of the
    ``with`` block and the end of the interpreter save it, and when the process is killed it is lost.

    All methods belong to the training thread. A forked child does nothing.

    Args:
        config: Schedule and folder of the traces.
        trainer: Has a ``log_path``, and ``state.params``; a trace waits for these before it ends.
        data_module: Not used; for trainers that pass it to their callbacks.
        log_path: Parent of ``profile_log_dir``, without a trainer; the current folder if None.
        profiler: The tracekit profiler; the one that is active when the training starts if None.
        step_profiler: The hooks call its `Profiler.step` and `Profiler.next_epoch`; False if the loop does.
        annotate_steps: Give every step of a trace a ``StepTraceAnnotation``, by which XProf shows steps; None is True without a
            trainer, since trainers make their own.
        background: Continue the training while JAX writes a trace; no other one begins meanwhile. Otherwise the training
            waits, and every half minute a line in the log says so: with many accelerators that takes minutes.
        profiler_options: ``jax.profiler.ProfileOptions``, passed on as they are.
        clock: The clocks to read; for tests.

    `log_path` and the attributes ``profile_...`` and ``profiler_...`` are those of xLSTM-JAX's callback, for code that reads
    them. They cannot be set, because `config` decides.

    Attributes:
        config: As given.
        log_dir: Folder of the traces.
        traces: The JSON traces that were written so far.
        failures: Number of failures by kind; with a tracekit profiler, also in its `Profiler.stats`.

    Raises:
        ConfigError: An argument is wrong, JAX is not installed, or the log directory cannot be made.
    """

    def __init__(
        self,
        config: JaxProfilerConfig | None = None,
        trainer: Any = None,
        data_module: Any = None,
        *,
        log_path: str | os.PathLike[str] | None = None,
        profiler: Profiler | None = None,
        step_profiler: bool = True,
        annotate_steps: bool | None = None,
        background: bool = False,
        profiler_options: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        del data_module
        config = JaxProfilerConfig() if config is None else config
        if not isinstance(config, JaxProfilerConfig):
            raise ConfigError(
                f"JaxProfiler: config must be a JaxProfilerConfig, not {config!r}; pass a Profiler as profiler= "
                "and a folder as log_path="
            )
        if profiler is not None:
            check_profiler("JaxProfiler: profiler", profiler)
        self._jax = import_jax()
        self.config = config
        self.log_dir = _log_dir(config, trainer, log_path)
        self._trainer = trainer
        self._given_profiler = profiler
        self._step_profiler = step_profiler
        self._clock = clock
        self._windows = Windows(config)
        self._recorder = TraceRecorder(
            jax=self._jax,
            log_dir=self.log_dir,
            report=self._report,
            clock=clock,
            options=profiler_options,
            annotates=trainer is None if annotate_steps is None else annotate_steps,
            background=background,
        )
        self._failures = Failures()
        self.failures: Counter[str] = self._failures.counts
        self.traces = self._recorder.traces
        self._pid = os.getpid()
        self._began = False
        self._records = False
        self._profiler: Profiler | None = None
        self._agreement: Agreement | None = None
        self._arrays: Any = None
        self._phases = NestedMarkers()
        self._step = 0
        self._latest_start: int | None = None
        self._stepped_ns = 0
        self._steps_ns: deque[int] = deque(maxlen=20)

    @property
    def is_tracing(self) -> bool:
        """True while a trace runs."""
        return self._recorder.is_tracing

    # ---- attributes of xLSTM-JAX's callback ----------------------------------------------------------------------------

    @property
    def log_path(self) -> Path | str:
        """Folder of the traces; a URL is text, since a ``Path`` cannot hold it."""
        return self.log_dir if storage.is_remote(self.log_dir) else Path(self.log_dir)

    @property
    def profile_first_step(self) -> int:
        """Step that the latest trace began after; before any trace, the configured step."""
        return self.config.profile_first_step if self._latest_start is None else self._latest_start

    profile_every_n_minutes = property(attrgetter("config.profile_every_n_minutes"), doc="Minutes between traces.")
    profile_n_steps = property(attrgetter("config.profile_n_steps"), doc="Steps in a trace.")
    profiler_active = is_tracing

    @property
    def profiler_last_time(self) -> float | None:
        """Unix time when the latest trace ended or, before that, when the training started; None before both."""
        if not self._began:
            return None
        passed_ns = self._clock.monotonic_ns() - self._windows.last_ns
        return (self._clock.wall_ns() - passed_ns) / 1e9

    # ---- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> JaxProfiler:
        self.on_training_start()
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        # After an exception, the arrays may never be computed.
        self._guard(self._close, exc is None)

    def close(self, *_args: object, **_kwargs: object) -> None:
        """End and save the trace that runs, and wait until it is written. May be called again."""
        self._guard(self._close)

    on_training_end = close

    def on_training_start(self, *_args: object, **_kwargs: object) -> None:
        """Begin to count the time. The first `on_training_step` does it where it is not called."""
        self._guard(self._begin)

    def finalize(self, *_args: object, **_kwargs: object) -> None:
        """End and save the running trace without waiting for the device: the training may have failed."""
        self._guard(self._close, False)

    # ---- the training loop --------------------------------------------------------------------------------------------

    def on_training_step(
        self,
        step_metrics: Any = None,
        epoch_idx: int = 0,
        step_idx: int | None = None,
        *,
        samples: int = 0,
        tokens: int = 0,
    ) -> None:
        """Record that a step is over; call it after each.

        Args:
            step_metrics: The result of the step; a trace ends when these arrays are computed. Not used otherwise.
            epoch_idx: The number of the epoch.
            step_idx: The number of the step in the whole run, from 1; None is one more than the last. A run that is resumed
                begins with a larger one, and the tracekit profiler counts its batches from there, unless it counts already.
            samples: Number of samples, for the tracekit profiler: of this rank or of all, according to its ``counts``.
            tokens: Number of tokens, likewise.
        """
        if os.getpid() != self._pid:
            return
        if not self._began:
            self._guard(self._begin)
        if self._profiler is not None and self._step_profiler:
            self._guard(self._resume, self._profiler, step_idx)
            self._profiler.step(samples=samples, tokens=tokens)
        self._guard(self._after_step, step_metrics, epoch_idx, step_idx)
        self._failures.raise_pending()

    def on_training_epoch_start(self, *_args: object, **_kwargs: object) -> None:
        """Do nothing; for trainers that call it."""

    set_dataset = on_training_epoch_start

    def on_training_epoch_end(self, *_args: object, **_kwargs: object) -> None:
        """End the trace that runs, and pass to the next epoch. A trace that is too short is begun once more."""
        self._guard(self._stop, "the end of the epoch")
        if self._profiler is not None and self._step_profiler and os.getpid() == self._pid:
            self._profiler.next_epoch()

    def on_validation_epoch_start(self, *_args: object, **_kwargs: object) -> None:
        """End the trace that runs, which is to hold training steps only, and begin a slice "validation"."""
        self._guard(self._begin_phase, "validation")

    def on_test_epoch_start(self, *_args: object, **_kwargs: object) -> None:
        """End the trace that runs, and begin a slice "test"."""
        self._guard(self._begin_phase, "test")

    def on_validation_epoch_end(self, *_args: object, **_kwargs: object) -> None:
        """End the slice "validation" or "test"."""
        self._guard(self._phases.close)

    on_test_epoch_end = on_validation_epoch_end

    # ---- what the hooks do --------------------------------------------------------------------------------------------

    def _guard(self, function: Any, *args: Any) -> None:
        """Call a function and report its failure. Do nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - whatever JAX or the storage throws, training goes on
            self._report(error)

    def _report(self, error: BaseException) -> None:
        if self._profiler is not None:
            # It logs, and raises under TRACEKIT_STRICT=1.
            self._failures.counts["JaxProfiler"] += 1
            self._profiler.report_failure("JaxProfiler", error)
        else:
            self._failures.report("JaxProfiler", error)

    def _begin(self) -> None:
        self._stop("a new training")
        self._profiler = self._given_profiler or active_profiler()
        self._stepped_ns = self._clock.monotonic_ns()
        self._windows.last_ns = self._stepped_ns
        atexit.unregister(self.finalize)
        atexit.register(self.finalize)  # for loops without a with block and a last hook
        if not self._began:
            self._began = True
            index, count = int(self._jax.process_index()), int(self._jax.process_count())
            self._records = index == 0 or not self.config.main_process_only
            if self._records:
                self._windows.agreed = count > 1 and not self.config.main_process_only
                self._recorder.process, self._recorder.index = _who(self._profiler, index, count), index
            else:
                logger.info("tracekit: process %d of %d records no JAX traces (main_process_only)", index, count)
        self._recorder.profiler = self._profiler
        if self._windows.agreed and self.config.profile_every_n_minutes >= 0 and self._agreement is None:
            client = coordination_client()
            if client is not None:
                self._agreement = Agreement(client, self._recorder.index, self._windows.announce)
            else:
                logger.warning(
                    "tracekit: without jax.distributed.initialize() the processes cannot agree on when to record: "
                    "profile_every_n_minutes is off"
                )

    def _resume(self, profiler: Profiler, number: int | None) -> None:
        """Set the tracekit profiler to the step of a resumed run, unless it counts already."""
        if self._step == 0 and number is not None and int(number) > 1 and profiler.timestamp == Timestamp():
            profiler.resume_at(Timestamp(batch=int(number) - 1))

    def _after_step(self, arrays: Any, epoch: int, number: int | None) -> None:
        self._step = self._step + 1 if number is None else int(number)
        now_ns = self._clock.monotonic_ns()
        self._steps_ns.append(now_ns - self._stepped_ns)
        self._stepped_ns = now_ns
        if not self._records:
            return
        self._arrays = arrays if self.is_tracing else None
        decision = self._windows.after_step(self._step, int(epoch), now_ns)
        if decision == "stop":
            self._stop()
        elif decision == "start":
            self._start()
        elif decision == "ask" and self._agreement is not None:
            # The shortest, as the last one may have been an exception.
            self._agreement.ask(self._step, min(self._steps_ns))
        else:
            self._recorder.annotate(self._step + 1)

    def _start(self) -> None:
        """Begin a trace, unless the last one is still being written: then it stays due."""
        if self._recorder.is_writing:
            return
        self._windows.started()
        try:
            self._recorder.start(self._step)
        except BaseException:
            self._windows.ended(self._clock.monotonic_ns())
            raise
        self._latest_start = self._step

    def _stop(self, cut_by: str = "", *, wait: bool = True) -> None:
        """End the running trace; with ``wait``, once the device has finished its last step."""
        if self.is_tracing:
            held = self._windows.ended(self._clock.monotonic_ns(), early=bool(cut_by))
            self._recorder.stop(held, self._awaited if wait else None, cut_by)
            self._windows.last_ns = self._clock.monotonic_ns()
        self._arrays = None

    def _awaited(self) -> Any:
        return self._arrays if self._trainer is None else self._trainer.state.params

    def _close(self, wait: bool = True) -> None:
        atexit.unregister(self.finalize)
        self._phases.close()
        self._stop(wait=wait)
        self._recorder.wait()
        if self._agreement is not None:
            self._agreement.close()
            self._agreement = None

    def _begin_phase(self, name: str) -> None:
        try:
            self._stop(f"a {name}")
        finally:
            self._phases.close()
            if self._profiler is not None:
                self._phases.begin(name, self._profiler.marker(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxProfilerConfig:
    """When JAX traces are recorded, and where they go. Names and defaults are those of xLSTM-JAX's ``JaxProfilerConfig``.

    Attributes:
        every_n_epochs: Traces begin in epochs with a multiple of this number; -1 is every epoch.
        every_n_steps: A further trace begins this number of steps after ``profile_first_step``, and so on; -1 is none.
        main_process_only: Only process 0 records traces.
        profile_every_n_minutes: A trace begins when that much time has passed since the last one, or since the training
            started; negative is never, 0 is one after the other. With several recording processes, process 0 decides.
        profile_first_step: A trace begins after this step, counted from 1; in a run that is resumed beyond it, after the
            first step there is.
        profile_n_steps: Number of steps in a trace.
        profile_log_dir: Folder of the traces, below the log path; an absolute path or URL replaces that. A ``Path`` is kept as
            text.
        callback_class: The class that `create` makes.

    Raises:
        ConfigError: A value is out of range.
    """

    callback_class: ClassVar[type[JaxProfiler]] = JaxProfiler
    every_n_epochs: int = -1
    every_n_steps: int = -1
    main_process_only: bool = True
    profile_every_n_minutes: float = 60
    profile_first_step: int = 10
    profile_n_steps: int = 5
    profile_log_dir: str = "tensorboard"

    def __post_init__(self) -> None:
        for name in ("every_n_epochs", "every_n_steps"):
            if getattr(self, name) != -1:
                check_whole(f"JaxProfilerConfig: {name} (-1 is off)", getattr(self, name))
        check_whole("JaxProfilerConfig: profile_first_step", self.profile_first_step, 0)
        check_whole("JaxProfilerConfig: profile_n_steps", self.profile_n_steps)
        minutes = self.profile_every_n_minutes
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not math.isfinite(minutes):
            raise ConfigError(
                f"JaxProfilerConfig: profile_every_n_minutes must be a number of minutes, not {minutes!r}"
            )
        folder = check_path("JaxProfilerConfig: profile_log_dir", self.profile_log_dir)
        if not folder:
            raise ConfigError("JaxProfilerConfig: profile_log_dir must be a path or URL that is not empty, not ''")
        object.__setattr__(self, "profile_log_dir", folder)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the name is unknown."""
        return self.to_dict().get(key, default)

    def to_dict(self) -> dict[str, int | float | bool | str]:
        """Return the fields and their values."""
        return asdict(self)

    def create(self, trainer: Any = None, data_module: Any = None) -> JaxProfiler:
        """Return a `JaxProfiler` of this configuration, for trainers that make their callbacks by it.

        Raises:
            ConfigError: As `JaxProfiler` says.
        """
        return self.callback_class(self, trainer, data_module)


def _log_dir(config: JaxProfilerConfig, trainer: Any, log_path: str | os.PathLike[str] | None) -> str:
    """Return the folder of the traces, and make it."""
    if trainer is not None and log_path is None:
        log_path = getattr(trainer, "log_path", None)
        if log_path is None:
            raise ConfigError("JaxProfiler: the trainer has no log_path; give it one, or pass log_path=")
    base = check_path("JaxProfiler: log_path", "." if log_path is None else log_path)
    below = config.profile_log_dir
    if storage.is_remote(below) or (not storage.is_remote(base) and Path(below).is_absolute()):
        base, below = below, ""
    folder = f"{base.rstrip('/')}/{below}".rstrip("/") or "/"
    if not storage.is_remote(folder):
        try:
            storage.make_folders(Path(folder))
        except OSError as error:
            raise ConfigError(f"JaxProfiler: the log directory {folder} cannot be made: {error.strerror}") from error
    return folder


def _who(profiler: Profiler | None, index: int, count: int) -> ProcessInfo:
    """Return who records: what the rank trace says, so that the merge puts both together."""
    if profiler is not None and profiler.started:
        process = profiler.process
        if process.rank != index:
            logger.warning(
                "tracekit: JAX calls this process %d, and the Profiler rank %d; pass it rank=jax.process_index(), "
                "world_size=jax.process_count()",
                index,
                process.rank,
            )
        return process
    process = detect_process(rank=index, world_size=count)
    return privacy.anonymous(process) if privacy.is_wanted(None) else process
