"""TraceHandler: runs a trace handler that was written for Composer, which is also a callback of the training loop."""

from __future__ import annotations

import enum
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tracekit import storage
from tracekit.handlers import base
from tracekit.recording.profiler import active_profiler
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from tracekit.handlers.base import Recording

logger = logging.getLogger("tracekit")
_OTHER_HOOKS: Final = (
    *("before_load", "after_load", "iteration_start", "iteration_end", "iteration_checkpoint"),
    *("before_dataloader", "after_dataloader", "before_train_batch", "after_train_batch", "before_forward"),
    *("after_forward", "before_loss", "after_loss", "before_backward", "after_backward", "batch_checkpoint"),
    *("epoch_checkpoint", "eval_before_all", "eval_start", "eval_batch_start", "eval_before_forward"),
    *("eval_after_forward", "eval_batch_end", "eval_end", "eval_after_all", "eval_standalone_start"),
    *("eval_standalone_end", "predict_start", "predict_batch_start", "predict_before_forward"),
    *("predict_after_forward", "predict_batch_end", "predict_end"),
)


class Event(str, enum.Enum):
    """The events of a training loop that reach a handler's ``run_event``, by Composer's names."""

    INIT = "init"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BATCH_START = "batch_start"
    BATCH_END = "batch_end"
    EPOCH_END = "epoch_end"
    FIT_END = "fit_end"


class TraceHandler:
    """A trace handler with Composer's methods and arguments. Subclass it as ``composer.profiler.TraceHandler``.

    As in Composer, calls come one at a time in the order of the events, and after ``batch_end`` the timestamp names the next
    batch. Other than there, only `init` and `fit_start` are called where the profiler starts. All later calls come on the
    handler's thread within the flush interval, so that a slow handler does not slow the training. Every finish has had its
    start, and a name may be open several times (recursively, or in several threads), which Composer's marker refuses.

    ``state`` has ``timestamp``, ``run_name``, ``profiler`` and ``dataloader_len``, and under Composer's Trainer everything else
    of its ``State`` (which by then may be some batches on); ``logger`` is the Trainer's. A hook of another event, such as
    ``before_forward``, is never called, and the log says so: it belongs into a ``composer.Callback``.

    A method that raises is counted and logged once, and never reaches the training loop.
    """

    process_duration_event = base.TraceHandler.process_duration_event
    process_instant_event = base.TraceHandler.process_instant_event
    process_counter_event = base.TraceHandler.process_counter_event

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Process a finished Chrome JSON trace of this process; what is on a remote storage is a text."""

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        """Process any of the events below but `close` and `post_close`; calls the method of its name."""
        getattr(self, event.value)(state, logger)

    def init(self, state: Any, logger: Any) -> None:
        """Do nothing, like all of these methods: override those that you need.

        `init` and `fit_start` come as the recording starts, and what they raise stops the profiler from starting; `fit_end` and
        `close` come as it ends, `close` also after failures.
        """

    fit_start = epoch_start = batch_start = batch_end = epoch_end = fit_end = close = init

    def post_close(self) -> None:
        """The last call, where `close` has not failed."""

    def __trace_handler__(self) -> base.TraceHandler:
        return adapted(self)


class LoopState:
    """Composer's State for a loop of tracekit: the training time, and everything else where a Trainer runs the loop."""

    def __init__(self, timestamp: Timestamp, run_name: str, real: Any = None) -> None:
        self.timestamp = timestamp
        self.run_name = run_name
        self._real = real

    def __getattr__(self, name: str) -> Any:
        real = self.__dict__.get("_real")
        if name == "profiler":  # without one of Composer's, the active one of tracekit
            return getattr(real, name, None) or active_profiler()
        if name == "dataloader_len":
            return getattr(real, name, None)
        if real is None:
            raise AttributeError(f"the state has no {name!r}: no Composer Trainer runs this loop")
        return getattr(real, name)


class NoLogger:
    """Composer's Logger for a loop without one: any use raises an error."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the logger has no {name!r}: no Composer Trainer runs this loop")


def _hook(name: str) -> Any:
    """Return the method of a hook of the loop, which calls the handler's method of that name."""

    def call(self: ComposerHandler, timestamp: Timestamp) -> None:
        self._state = LoopState(timestamp, self._state.run_name, self._trainer_state)
        try:
            self._run(name)
        except Exception as error:
            profiler = active_profiler()
            if profiler is None:
                raise
            profiler.report_failure(f"{type(self).__name__}.{name}", error)

    return call


class ComposerHandler(base.TraceHandler):
    """Gives the events of a profiler to a handler with Composer's methods, of `TraceHandler` or of Composer's own class."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._state = LoopState(Timestamp(), "")
        self._trainer_state: Any = None
        self._logger: Any = NoLogger()
        self._event: Any = Event
        for name in ("process_duration_event", "process_instant_event", "process_counter_event"):
            setattr(self, name, getattr(handler, name))

    def bind(self, state: Any, logger: Any, event: Any) -> None:
        """Store the Trainer that is recorded: its State, its Logger and the class of its events."""
        self._trainer_state, self._logger, self._event = state, logger, event

    def open(self, recording: Recording) -> None:
        """Call ``init`` and ``fit_start``."""
        self._state = LoopState(recording.timestamp, recording.process.run_id, self._trainer_state)
        kind = type(self._handler)
        unused = [name for name in _OTHER_HOOKS if _is_own(kind, name)]
        if unused:
            logger.warning(
                "tracekit: %s.%s will not be called: a trace handler gets the start and the end of batches, epochs and the "
                "recording; move it to a composer.Callback",
                kind.__name__,
                ", ".join(unused),
            )
        self._run("init")
        self._run("fit_start")

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Pass it on as the Path that Composer gives; a URL, which no Path can hold, stays a text."""
        self._handler.process_chrome_json_trace_file(filepath if storage.is_remote(filepath) else Path(filepath))

    batch_start, batch_end = _hook("batch_start"), _hook("batch_end")
    epoch_start, epoch_end = _hook("epoch_start"), _hook("epoch_end")

    def close(self) -> None:
        """Call ``fit_end``, ``close`` and ``post_close``."""
        try:
            self._run("fit_end")
        finally:
            self._handler.close(self._state, self._logger)
        self._handler.post_close()

    def _run(self, name: str) -> None:
        self._handler.run_event(self._event(name), self._state, self._logger)


def _is_own(kind: type, name: str) -> bool:
    """Return True if somebody has written a hook; in Composer's own classes they are all there, and do nothing."""
    owner = next((one for one in kind.__mro__ if name in vars(one)), None)
    return owner is not None and owner.__module__.partition(".")[0] != "composer"


def adapted(handler: Any) -> base.TraceHandler:
    """Return what gives a profiler's events to a handler with Composer's methods; failures are reported by its name."""
    made: base.TraceHandler = type(type(handler).__name__, (ComposerHandler,), {})(handler)
    return made
