"""Lightning itself, under either of its names, and hooks in a Trainer: listen to its actions, and record its workers."""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.integrations.hooks import replace, replace_method
from tracekit.integrations.lightning.actions import OWN_PREFIX
from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.profilers import Profiler as LightningProfiler

    from tracekit.recording.profiler import Profiler

__all__ = ["Callback", "LightningModule", "LightningProfiler"]

_ATTRIBUTE: Final = "_tracekit_hooks"


def _lightning() -> Any:
    """Return the package that the user's Trainer comes from: the one that is imported, else the one that is installed."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        return sys.modules["pytorch_lightning"]
    with suppress(ImportError):
        return importlib.import_module("lightning.pytorch")
    with suppress(ImportError):
        return importlib.import_module("pytorch_lightning")
    raise ConfigError("tracekit.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)")


if not TYPE_CHECKING:
    # Both packages call the same hooks and ask for no base class, so that objects made here serve the Trainer of either.
    _package = _lightning()
    Callback = _package.Callback
    LightningModule = _package.LightningModule
    LightningProfiler = _package.profilers.Profiler


def device_waits(device: Any) -> Callable[[], None] | None:
    """Return a function that waits until a ``torch.device`` has done all of its work, or None if it has no such function."""
    import torch

    module = getattr(torch, device.type, None)
    wait: Callable[..., None] | None = getattr(module, "synchronize", None)
    if wait is None or device.type == "mps":  # a process has one MPS device
        return wait
    return functools.partial(wait, device)


def gathered(module: Any, row: list[int]) -> list[list[int]]:
    """Return the rows of all ranks, of whole numbers. Collective: every rank calls it, with a row of the same length."""
    import torch

    rows = module.all_gather(torch.tensor(row, dtype=torch.int64, device=module.device))
    found: list[list[int]] = rows.reshape(-1, len(row)).tolist()
    return found


class RunCallback(Callback):
    """A callback of tracekit. The end of a run, or its exception, undoes all changes to the Trainer."""

    def __init__(self) -> None:
        self._at_end = ExitStack()

    @property
    def state_key(self) -> str:
        """Lightning's name for this callback."""
        return f"{OWN_PREFIX}{type(self).__qualname__}"

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Complete the run."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Complete a run that fails, which Lightning does not tear down."""
        self._end(exception)

    def _end(self, error: BaseException | None = None) -> None:
        at_end, self._at_end = self._at_end, ExitStack()
        at_end.__exit__(None if error is None else type(error), error, None)

    def __getstate__(self) -> dict[str, Any]:
        # Lightning sends its callbacks to the processes that it spawns, before a run.
        return {**self.__dict__, "_at_end": ExitStack()}


class ActionHooks:
    """Reports the actions of a Trainer to listeners, during a run.

    Lightning reports them to ``trainer.profiler``, by ``start`` and ``stop``, except those of loggers. Methods of these objects
    are replaced from the first listener to the last. A listener has ``start(action_name)``, called after the profiler's,
    and ``stop(action_name)``, called before it, on the thread of the action, and ``close()``, which ends its open slices.
    """

    def __init__(self, profiler: Any, loggers: Any) -> None:
        self.listeners: tuple[Any, ...] = ()  # replaced, since other threads iterate it
        self._undo = ExitStack()
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
            replace(self._undo, profiler, name, value)
        for logger in loggers:
            for name in ("log_metrics", "save"):
                action_name = f"[Logger]{type(logger).__name__}.{name}"
                replace_method(self._undo, logger, name, _profiled(profiler, action_name, getattr(logger, name)))

    def remove(self, listener: Any) -> None:
        """End the slices of a listener, and report to it no more."""
        listener.close()
        self.listeners = tuple(other for other in self.listeners if other is not listener)
        if not self.listeners:
            self._undo.close()


class NullListener:
    """A listener that does nothing, for a profiler that records the actions itself and needs those of the loggers."""

    def start(self, *_: str) -> None:
        """Do nothing."""

    stop = close = start


def listen(undo: ExitStack, trainer: Any, listener: Any, *, outermost: bool = False) -> None:
    """Report the actions of a trainer to a listener, as the innermost or outermost one, until ``undo`` removes it."""
    hooks = getattr(trainer.profiler, _ATTRIBUTE, None) or ActionHooks(trainer.profiler, trainer.loggers)
    hooks.listeners = (listener, *hooks.listeners) if outermost else (*hooks.listeners, listener)
    undo.callback(hooks.remove, listener)


def close_slices(trainer: Any) -> None:
    """End the open slices of all listeners, the inner ones first: the recording ends."""
    for listener in reversed(getattr(getattr(trainer.profiler, _ATTRIBUTE, None), "listeners", ())):
        listener.close()


def _profiled(profiler: Any, action_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def profiled(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(action_name):
            return method(*args, **kwargs)

    return profiled


def record_workers(undo: ExitStack, trainer: Any, profiler: Profiler) -> None:
    """Record the workers that the loaders of a Trainer start from now on, each into a trace next to that of its rank.

    Lightning passes every loader, in its final form, to its strategy. Loaders without workers, and objects other than
    torch DataLoaders, are left alone. ``undo`` restores strategy and loaders; running workers continue.
    """
    strategy = trainer.strategy
    process = strategy.process_dataloader

    def processed(loader: Any) -> Any:
        found = process(loader)
        get_iterator = getattr(found, "_get_iterator", None)
        if get_iterator is not None and getattr(found, "num_workers", False):

            def start_workers() -> Any:
                with recording_loader(found, profiler):
                    return get_iterator()

            replace_method(undo, found, "_get_iterator", start_workers)
        return found

    replace_method(undo, strategy, "process_dataloader", processed)
