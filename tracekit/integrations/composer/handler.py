"""TraceHandler: runs a trace handler that was written for Composer, whose handlers are callbacks of the training loop as well."""

from __future__ import annotations

import enum
import functools
import inspect
import logging
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.handlers import base
from tracekit.integrations.composer.state import LoopState, NoLogger
from tracekit.recording.lifecycle import active_profiler
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording

__all__ = ["Event", "TraceHandler"]

logger = logging.getLogger("tracekit")


class Event(str, enum.Enum):
    """The events of a training loop that reach a handler's ``run_event``, by Composer's names."""

    INIT = "init"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BATCH_START = "batch_start"
    BATCH_END = "batch_end"
    EPOCH_END = "epoch_end"
    FIT_END = "fit_end"


_OTHER_HOOKS: Final = (
    *("before_load", "after_load", "iteration_start", "iteration_end", "iteration_checkpoint"),
    *("before_dataloader", "after_dataloader", "before_train_batch", "after_train_batch", "before_forward"),
    *("after_forward", "before_loss", "after_loss", "before_backward", "after_backward", "batch_checkpoint"),
    *("epoch_checkpoint", "eval_before_all", "eval_start", "eval_batch_start", "eval_before_forward"),
    *("eval_after_forward", "eval_batch_end", "eval_end", "eval_after_all", "eval_standalone_start"),
    *("eval_standalone_end", "predict_start", "predict_batch_start", "predict_before_forward"),
    *("predict_after_forward", "predict_batch_end", "predict_end"),
)


def _for_both_callers(hook: Callable[..., None]) -> Callable[..., None]:
    """Let a hook of Composer's form, ``(state, logger)``, be called in tracekit's form as well: ``(timestamp)`` or ``()``."""

    @functools.wraps(hook)
    def called(self: TraceHandler, *args: Any, **named: Any) -> None:
        if len(args) + len(named) == 2:
            hook(self, *args, **named)
        else:
            self.deliver(hook.__name__, *args)

    return called


class TraceHandler(base.TraceHandler):
    """A trace handler with Composer's methods and arguments. Subclass it as ``composer.profiler.TraceHandler``.

    The ``process_...`` methods are those of `tracekit.TraceHandler`. The hooks ``init``, ``fit_start``, ``epoch_start``,
    ``batch_start``, ``batch_end``, ``epoch_end``, ``fit_end`` and ``close`` take ``(state, logger)``; ``run_event``, where it is
    overridden, gets all of them but ``close``.

    What is kept of Composer: one call at a time, in the order in which things happened, and after ``batch_end`` the timestamp
    names the next batch. What differs: `init` and `fit_start` are called when the profiler starts, all that follows on the
    handler's own thread, within the flush interval, so that a slow handler does not slow the training; every finish has had its
    start; and a name may be open several times at once (recursively, or in several threads), which Composer's marker refuses.

    ``state`` has ``timestamp``, ``run_name``, ``profiler`` and ``dataloader_len``, and under Composer's Trainer everything else
    of its ``State`` (which by then may be some batches on); ``logger`` is the Trainer's. A hook of another event, such as
    ``before_forward``, is never called, and the log says so: it belongs into a ``composer.Callback``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("batch_start", "batch_end", "epoch_start", "epoch_end", "close"):
            if inspect.isfunction(vars(cls).get(name)):
                setattr(cls, name, _for_both_callers(vars(cls)[name]))
        taken = vars(cls).get("process_chrome_json_trace_file")
        if inspect.isfunction(taken):
            cls.process_chrome_json_trace_file = _with_path(taken)  # type: ignore[method-assign]

    _bound: tuple[Any, Any, Any] = (None, NoLogger(), Event)
    _state = LoopState(Timestamp(), "")
    # Hooks and events come from the profiler on their own ways; these two put them into one order again.
    _hooks: deque[tuple[str, Timestamp]]
    _events: deque[Any]
    _known: tuple[int, ...] = (0, 0, 0)  # the training time of the latest hook

    # ---- Composer's hooks ---------------------------------------------------------------------------------------------

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        """Take any event of the loop; calls the method of its name."""
        getattr(self, event.value)(state, logger)

    def init(self, state: Any, logger: Any) -> None:
        """The recording starts."""

    def fit_start(self, state: Any, logger: Any) -> None:
        """Training starts, as far as this recording is concerned."""

    def fit_end(self, state: Any, logger: Any) -> None:
        """The recording ends."""

    def post_close(self) -> None:
        """The last call."""

    @_for_both_callers
    def batch_start(self, state: Any, logger: Any) -> None:
        """A batch begins."""

    @_for_both_callers
    def batch_end(self, state: Any, logger: Any) -> None:
        """A batch has ended; the timestamp already names the next one."""

    @_for_both_callers
    def epoch_start(self, state: Any, logger: Any) -> None:
        """An epoch begins."""

    @_for_both_callers
    def epoch_end(self, state: Any, logger: Any) -> None:
        """An epoch has ended; the timestamp already names the next one."""

    @_for_both_callers
    def close(self, state: Any, logger: Any) -> None:
        """Finish; called also after failures."""

    # ---- what tracekit calls ------------------------------------------------------------------------------------------

    def bind(self, state: Any, logger: Any, event: Any) -> None:
        """Take note of the Trainer that this handler records for: its State, its Logger and the class of its events."""
        self._bound = (state, logger, event)

    def open(self, recording: Recording) -> None:
        """Call `init` and `fit_start`; what they raise stops the profiler from starting."""
        self._state = LoopState(recording.timestamp, recording.process.run_id, self._bound[0])
        self._hooks, self._events, self._known = deque(), deque(), _order(recording.timestamp)
        unused = [name for name in _OTHER_HOOKS if hasattr(self, name)]
        if unused:
            logger.warning(
                "tracekit: %s.%s will not be called: a trace handler gets the start and the end of batches, epochs and the "
                "recording; move it to a composer.Callback",
                type(self).__name__,
                ", ".join(unused),
            )
        self.run_event(self._event("init"), self._state, self._bound[1])
        self.run_event(self._event("fit_start"), self._state, self._bound[1])

    def process_events(self, batch: EventBatch) -> None:
        """Call the ``process_...`` methods and the hooks in between, in the order of training time."""
        self._events.extend(batch)
        self._catch_up()

    def flush(self) -> None:
        """Call the hooks behind the last event: everything before them has been delivered."""
        self._catch_up()
        while self._hooks:
            self._call(*self._hooks.popleft())

    def deliver(self, name: str, timestamp: Timestamp | None = None) -> None:
        """Take a call of the profiler, to be made in Composer's form when its events have been delivered."""
        if timestamp is not None:
            self._known = _order(timestamp)
            self._hooks.append((name, timestamp))
            return
        self._known = _LAST
        self.flush()
        state, trainer_logger = self._state, self._bound[1]
        try:
            self.run_event(self._event("fit_end"), state, trainer_logger)
        finally:
            self.close(state, trainer_logger)
        self.post_close()

    def _catch_up(self) -> None:
        while self._events:
            now = _order(self._events[0].timestamp)
            if now > self._known:
                return  # the hook in front of it is still on its way
            while self._hooks and _order(self._hooks[0][1]) <= now:
                self._call(*self._hooks.popleft())
            super().process_events([self._events.popleft()])  # type: ignore[arg-type]

    def _call(self, name: str, timestamp: Timestamp) -> None:
        self._state = LoopState(timestamp, self._state.run_name, self._bound[0])
        try:
            self.run_event(self._event(name), self._state, self._bound[1])
        except Exception as error:
            profiler = active_profiler()
            if profiler is None:
                raise
            profiler.report_failure(f"{type(self).__name__}.{name}", error)

    def _event(self, name: str) -> Any:
        return self._bound[2](name)


_LAST: Final = (sys.maxsize,) * 3


def _order(timestamp: Timestamp) -> tuple[int, ...]:
    return int(timestamp.iteration), int(timestamp.epoch), int(timestamp.batch)


def _with_path(method: Callable[..., None]) -> Callable[..., None]:
    """Give a method the file as the ``pathlib.Path`` that Composer gives; a URL, which no Path can hold, stays a text."""

    @functools.wraps(method)
    def called(self: TraceHandler, filepath: str | Path) -> None:
        method(self, filepath if storage.is_remote(str(filepath)) else Path(filepath))

    return called
