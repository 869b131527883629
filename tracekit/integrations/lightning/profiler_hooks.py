"""Listen to the actions of a Trainer, with any profiler.

Lightning reports all its actions to ``trainer.profiler``, by ``start`` and ``stop``. A hook replaces these two methods of that
one object, and the methods by which the loggers write, which Lightning does not report. It is removed when the run is over.

A listener has ``start(action_name)`` and ``stop(action_name)``, called on the thread of the action, and ``close()``, which ends
its open slices.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

from tracekit.integrations.lightning.actions import logger_action
from tracekit.integrations.lightning.framework import profiler_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.integrations.lightning.framework import Trainer

__all__ = ["NullListener", "close_slices", "listen", "stop_listening"]

_ATTRIBUTE: Final = "_tracekit_hooks"
_LOGGER_METHODS: Final = ("log_metrics", "save")


class NullListener:
    """A listener that does nothing, for a profiler that records the actions itself and needs those of the loggers."""

    def start(self, action_name: str) -> None:
        """Do nothing."""

    stop = start

    def close(self) -> None:
        """Do nothing."""


def listen(trainer: Trainer, listener: Any, *, outermost: bool = False) -> None:
    """Report the actions of a trainer to a listener: a start after the trainer's profiler, and a stop before it.

    Of several listeners the last is the innermost, unless it is ``outermost``.
    """
    profiler = profiler_of(trainer)
    hooks = getattr(profiler, _ATTRIBUTE, None) or _ProfilerHooks(profiler, trainer.loggers)
    hooks.listeners = (listener, *hooks.listeners) if outermost else (*hooks.listeners, listener)


def stop_listening(trainer: Trainer, listener: Any) -> None:
    """Remove a listener; without any, profiler and loggers are as they were."""
    hooks = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    if hooks is not None:
        hooks.listeners = tuple(other for other in hooks.listeners if other is not listener)
        if not hooks.listeners:
            hooks.remove()


def close_slices(trainer: Trainer) -> None:
    """End the open slices of all listeners, the inner ones first: the recording ends."""
    hooks = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    for listener in reversed(hooks.listeners if hooks is not None else ()):
        listener.close()


class _ProfilerHooks:
    """Replaces methods of one profiler and of loggers. The tuple of listeners is replaced, since other threads iterate it."""

    def __init__(self, profiler: Any, loggers: Any) -> None:
        self.listeners: tuple[Any, ...] = ()
        self._replaced: list[tuple[Any, str]] = []
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

        self._put(profiler, "start", started)
        self._put(profiler, "stop", stopped)
        self._put(profiler, _ATTRIBUTE, self)
        for logger in loggers:
            for name in _LOGGER_METHODS:
                self._put(logger, name, _profiled(profiler, logger_action(logger, name), getattr(logger, name)))

    def _put(self, owner: Any, name: str, value: Any) -> None:
        # An object that takes no attributes, or has an attribute of this name, is left as it is.
        if name not in getattr(owner, "__dict__", {name: None}):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(owner, name, value)
                self._replaced.append((owner, name))

    def remove(self) -> None:
        for owner, name in self._replaced:
            with contextlib.suppress(AttributeError):
                delattr(owner, name)
        self._replaced.clear()


def _profiled(profiler: Any, action_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def profiled(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(action_name):
            return method(*args, **kwargs)

    return profiled
