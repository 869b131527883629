"""Listening to what a Trainer does, whatever profiler it has.

Lightning tells ``trainer.profiler`` of everything that it does, by ``start`` and ``stop``. A `Tap` stands in front of these
two methods of that one object, and in front of what its loggers write with, which Lightning does not tell of. It is
taken away when the run is over.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.integrations.lightning.actions import logger_action
from tracekit.integrations.lightning.framework import profiler_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.integrations.lightning.framework import Trainer

__all__ = ["Deaf", "Listener", "close_slices", "listen", "stop_listening"]

_ATTRIBUTE: Final = "_tracekit_tap"
_LOGGER_METHODS: Final = ("log_metrics", "save")


class Listener(Protocol):
    """Who is told of actions. On whatever thread they happen."""

    def start(self, action_name: str) -> None:
        """Lightning begins something."""

    def stop(self, action_name: str) -> None:
        """It ends it."""

    def close(self) -> None:
        """The recording ends: end the slices that are open."""


class Deaf:
    """Who is told of everything, and does nothing: for a profiler that is to hear of the loggers, too."""

    def start(self, action_name: str) -> None:
        """Do nothing."""

    stop = start

    def close(self) -> None:
        """Do nothing."""


def listen(trainer: Trainer, listener: Listener, *, outermost: bool = False) -> None:
    """Tell a listener of everything that a trainer does from now on, inside of what its own profiler measures.

    Args:
        trainer: The trainer.
        listener: Who is told; of a start after those that listen already, and of a stop before them.
        outermost: Tell it of a start before, and of a stop after them.
    """
    tap = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    if tap is None:
        tap = _Tap(trainer)
    tap.listeners = (listener, *tap.listeners) if outermost else (*tap.listeners, listener)


def stop_listening(trainer: Trainer, listener: Listener) -> None:
    """Tell it no more; the profiler and the loggers are as they were when nobody listens."""
    tap = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    if tap is not None:
        tap.listeners = tuple(other for other in tap.listeners if other is not listener)
        if not tap.listeners:
            tap.remove()


def close_slices(trainer: Trainer) -> None:
    """Have all who listen end the slices that they have open, the inner ones first: the recording ends."""
    tap = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    for listener in reversed(tap.listeners if tap is not None else ()):
        listener.close()


class _Tap:
    def __init__(self, trainer: Trainer) -> None:
        self.listeners: tuple[Listener, ...] = ()  # replaced, never changed: other threads may be going through it
        self._replaced: list[tuple[Any, str]] = []
        profiler = profiler_of(trainer)
        self._put(profiler, "start", self._before(profiler.start))
        self._put(profiler, "stop", self._after(profiler.stop))
        self._put(profiler, _ATTRIBUTE, self)
        for logger in trainer.loggers:
            for method in _LOGGER_METHODS:
                self._put(logger, method, _told(profiler, logger_action(logger, method), getattr(logger, method)))

    def _put(self, owner: Any, name: str, value: Any) -> None:
        # An object that takes no attributes, or has one of its own of this name, is left as it is.
        if name not in getattr(owner, "__dict__", {name: None}):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(owner, name, value)
                self._replaced.append((owner, name))

    def remove(self) -> None:
        for owner, name in self._replaced:
            with contextlib.suppress(AttributeError):
                delattr(owner, name)
        self._replaced.clear()

    def _before(self, start: Callable[[str], None]) -> Callable[[str], None]:
        @functools.wraps(start)
        def started(action_name: str) -> None:
            start(action_name)
            for listener in self.listeners:
                listener.start(action_name)

        return started

    def _after(self, stop: Callable[[str], None]) -> Callable[[str], None]:
        @functools.wraps(stop)
        def stopped(action_name: str) -> None:
            for listener in reversed(self.listeners):
                listener.stop(action_name)
            stop(action_name)

        return stopped


def _told(profiler: Any, action_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(action_name):
            return method(*args, **kwargs)

    return told
