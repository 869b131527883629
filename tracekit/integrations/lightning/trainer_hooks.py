"""Hooks in a Trainer: listen to its actions, with any profiler, and record the workers of its data loaders.

Lightning reports all its actions to ``trainer.profiler``, by ``start`` and ``stop``. A hook replaces these two methods of that
one object. It also replaces the methods of the loggers, because Lightning does not report them. It is removed after the run.

A listener has ``start(action_name)`` and ``stop(action_name)``, called on the thread of the action, and ``close()``, which ends
its open slices.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from tracekit.integrations.hooks import Replacements, method_hook
from tracekit.integrations.lightning.actions import OWN_PREFIX, logger_action
from tracekit.integrations.lightning.framework import Callback, profiler_of
from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.integrations.lightning.framework import LightningModule, Trainer
    from tracekit.recording.profiler import Profiler

_ATTRIBUTE: Final = "_tracekit_hooks"
_GET_ITERATOR: Final = "_get_iterator"


class RunCallback(Callback):
    """A callback of tracekit. The end of a run, or its exception, undoes all changes to the Trainer."""

    def __init__(self) -> None:
        self._at_end = ExitStack()

    @property
    def state_key(self) -> str:
        """Lightning's name for this callback."""
        return f"{OWN_PREFIX}{type(self).__qualname__}"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Complete the run."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Complete a run that fails, which Lightning does not tear down."""
        self._end(exception)

    def _end(self, error: BaseException | None = None) -> None:
        at_end, self._at_end = self._at_end, ExitStack()
        at_end.__exit__(None if error is None else type(error), error, None)

    def __getstate__(self) -> dict[str, Any]:
        # Lightning sends its callbacks to the processes that it spawns, before a run.
        return {**self.__dict__, "_at_end": ExitStack()}


class NullListener:
    """A listener that does nothing, for a profiler that records the actions itself and needs those of the loggers."""

    def start(self, *_: str) -> None:
        """Do nothing."""

    stop = close = start


def listen(trainer: Trainer, listener: Any, *, outermost: bool = False) -> Callable[[], None]:
    """Report the actions of a trainer to a listener: a start after the trainer's profiler, and a stop before it.

    Of several listeners the last is the innermost, unless it is ``outermost``. The returned function ends the slices
    of the listener and removes it; without any, profiler and loggers are as they were.
    """
    profiler = profiler_of(trainer)
    hooks = getattr(profiler, _ATTRIBUTE, None) or _ProfilerHooks(profiler, trainer.loggers)
    hooks.listeners = (listener, *hooks.listeners) if outermost else (*hooks.listeners, listener)

    def stop_listening() -> None:
        listener.close()
        hooks.listeners = tuple(other for other in hooks.listeners if other is not listener)
        if not hooks.listeners:
            hooks.replacements.restore()

    return stop_listening


def close_slices(trainer: Trainer) -> None:
    """End the open slices of all listeners, the inner ones first: the recording ends."""
    hooks = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    for listener in reversed(hooks.listeners if hooks is not None else ()):
        listener.close()


class _ProfilerHooks:
    """Replaces methods of one profiler and of loggers. The tuple of listeners is replaced, since other threads iterate it."""

    def __init__(self, profiler: Any, loggers: Any) -> None:
        self.listeners: tuple[Any, ...] = ()
        self.replacements = Replacements()
        start, stop = profiler.start, profiler.stop

        @functools.wraps(start)
        def started(action_name: str) -> None:
            start(action_name)
            for listener in self.listeners:
                listener.start(action_name)

        @functools.wraps(stop)
        def stopped(action_name: str) -> None:
            for listener in reversed(self.listeners):
                listener.stop(action_name)
            stop(action_name)

        for name, value in (("start", started), ("stop", stopped), (_ATTRIBUTE, self)):
            self.replacements.put(profiler, name, value)
        for logger in loggers:
            for name in ("log_metrics", "save"):
                action_name = logger_action(logger, name)
                self.replacements.put(logger, name, _profiled(profiler, action_name, getattr(logger, name)))


def _profiled(profiler: Any, action_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def profiled(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(action_name):
            return method(*args, **kwargs)

    return profiled


def record_workers(trainer: Trainer, profiler: Profiler) -> Callable[[], None]:
    """Record the workers that the loaders of a Trainer start from now on, each into a trace next to that of its rank.

    Lightning passes every loader, in its final form, to its strategy. Loaders without workers, and objects other than
    torch DataLoaders, are left alone. The returned function restores strategy and loaders; running workers continue.
    """
    strategy: Any = trainer.strategy
    process: Callable[[Any], Any] = strategy.process_dataloader
    replacements = Replacements()

    def processed(loader: Any) -> Any:
        found = process(loader)
        get_iterator = getattr(found, _GET_ITERATOR, None)
        if get_iterator is not None and getattr(found, "num_workers", False):
            start_workers = functools.partial(_start_workers, found, get_iterator, profiler)
            replacements.put(found, _GET_ITERATOR, method_hook(start_workers, found, _GET_ITERATOR))
        return found

    replacements.put(strategy, "process_dataloader", method_hook(processed, strategy, "process_dataloader"))
    return replacements.restore


def _start_workers(loader: Any, get_iterator: Callable[[], Any], profiler: Profiler) -> Any:
    with recording_loader(loader, profiler):
        return get_iterator()
