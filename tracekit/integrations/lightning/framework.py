"""Lightning itself, under either of its names, and hooks in a Trainer: listen to its actions, and record its workers.

Lightning reports its actions to ``trainer.profiler``, by ``start`` and ``stop``, but not those of loggers. Hooks replace these
methods of single objects during a run. A listener has ``start(action_name)`` and ``stop(action_name)``, called on the thread of
the action, and ``close()``, which ends its open slices.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.integrations.hooks import method_hook, replace
from tracekit.integrations.lightning.actions import OWN_PREFIX
from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.profilers import Profiler as LightningProfiler

    from tracekit.recording.profiler import Profiler

__all__ = ["Callback", "LightningModule", "LightningProfiler", "Trainer"]

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
    Trainer = _package.Trainer
    LightningProfiler = _package.profilers.Profiler


def profiler_of(trainer: Trainer) -> LightningProfiler:
    """Return the profiler of a Trainer, which has always one."""
    found: LightningProfiler = trainer.profiler  # type: ignore[attr-defined]  # set where type checkers do not look
    return found


def device_waits(device: Any) -> Callable[[], None] | None:
    """Return a function that waits until a ``torch.device`` has done all of its work, or None if there is none."""
    import torch

    module = getattr(torch, device.type, None)
    wait: Callable[..., None] | None = getattr(module, "synchronize", None)
    if wait is None or device.type == "mps":  # a process has one MPS device
        return wait
    return functools.partial(wait, device)


def gathered(module: LightningModule, row: list[int]) -> list[list[int]]:
    """Return the rows of all ranks, of whole numbers. Collective: every rank calls it, with a row of the same length."""
    import torch

    rows = module.all_gather(torch.tensor(row, dtype=torch.int64, device=module.device))
    assert isinstance(rows, torch.Tensor)
    gathered_rows: list[list[int]] = rows.reshape(-1, len(row)).tolist()
    return gathered_rows


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


def listen(undo: ExitStack, trainer: Trainer, listener: Any, *, outermost: bool = False) -> None:
    """Report the actions of a trainer to a listener, until ``undo`` ends its slices and removes it.

    A start is reported after the trainer's profiler, and a stop before it. Of several listeners the last is the innermost,
    unless it is ``outermost``. After the last one, profiler and loggers are as they were.
    """
    profiler = profiler_of(trainer)
    hooks = getattr(profiler, _ATTRIBUTE, None) or _ProfilerHooks(profiler, trainer.loggers)
    hooks.listeners = (listener, *hooks.listeners) if outermost else (*hooks.listeners, listener)

    def stop_listening() -> None:
        listener.close()
        hooks.listeners = tuple(other for other in hooks.listeners if other is not listener)
        if not hooks.listeners:
            hooks.undo.close()

    undo.callback(stop_listening)


def close_slices(trainer: Trainer) -> None:
    """End the open slices of all listeners, the inner ones first: the recording ends."""
    hooks = getattr(profiler_of(trainer), _ATTRIBUTE, None)
    for listener in reversed(hooks.listeners if hooks is not None else ()):
        listener.close()


class _ProfilerHooks:
    """Replaces methods of one profiler and of loggers. The tuple of listeners is replaced, since other threads iterate it."""

    def __init__(self, profiler: Any, loggers: Any) -> None:
        self.listeners: tuple[Any, ...] = ()
        self.undo = ExitStack()
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
            replace(self.undo, profiler, name, value)
        for logger in loggers:
            for name in ("log_metrics", "save"):
                action_name = f"[Logger]{type(logger).__name__}.{name}"
                replace(self.undo, logger, name, _profiled(profiler, action_name, getattr(logger, name)))


def _profiled(profiler: Any, action_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def profiled(*args: Any, **kwargs: Any) -> Any:
        with profiler.profile(action_name):
            return method(*args, **kwargs)

    return profiled


def record_workers(undo: ExitStack, trainer: Trainer, profiler: Profiler) -> None:
    """Record the workers that the loaders of a Trainer start from now on, each into a trace next to that of its rank.

    Lightning passes every loader, in its final form, to its strategy. Loaders without workers, and objects other than
    torch DataLoaders, are left alone. ``undo`` restores strategy and loaders; running workers continue.
    """
    strategy: Any = trainer.strategy
    process: Callable[[Any], Any] = strategy.process_dataloader

    def processed(loader: Any) -> Any:
        found = process(loader)
        get_iterator = getattr(found, "_get_iterator", None)
        if get_iterator is not None and getattr(found, "num_workers", False):
            start_workers = functools.partial(_start_workers, found, get_iterator, profiler)
            replace(undo, found, "_get_iterator", method_hook(start_workers, found, "_get_iterator"))
        return found

    replace(undo, strategy, "process_dataloader", method_hook(processed, strategy, "process_dataloader"))


def _start_workers(loader: Any, get_iterator: Callable[[], Any], profiler: Profiler) -> Any:
    with recording_loader(loader, profiler):
        return get_iterator()
