"""The workers of the data loaders that a Trainer iterates over: each records into a trace of its own, beside its rank."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from tracekit.integrations.hooks import method_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.integrations.lightning.framework import Trainer
    from tracekit.recording.profiler import Profiler

__all__ = ["LoaderWorkers"]

_PASSED: Final = "process_dataloader"
_MADE: Final = "_get_iterator"


class LoaderWorkers:
    """Has the workers record that loaders start from now on, until it is closed.

    Lightning hands every loader, in its final form, to its strategy. There the loader is told to start its workers with
    `Profiler.worker_init_fn` in front of its own ``worker_init_fn``; nothing else about it changes, and Lightning's own seeding
    of the workers stays. What has no workers, or is no torch DataLoader, is left alone.

    Args:
        trainer: Whose loaders.
        profiler: Under which the workers record.
    """

    def __init__(self, trainer: Trainer, profiler: Profiler) -> None:
        self._profiler = profiler
        self._strategy: Any = trainer.strategy
        self._loaders: list[Any] = []
        process = getattr(self._strategy, _PASSED)

        def processed(loader: Any) -> Any:
            found = process(loader)
            self._watch(found)
            return found

        setattr(self._strategy, _PASSED, method_hook(processed, self._strategy, _PASSED))

    def close(self) -> None:
        """Leave strategy and loaders as they were. Workers that run go on."""
        for owner, name in ((self._strategy, _PASSED), *((loader, _MADE) for loader in self._loaders)):
            with contextlib.suppress(AttributeError):
                delattr(owner, name)
        self._loaders.clear()

    def _watch(self, loader: Any) -> None:
        get_iterator = getattr(loader, _MADE, None)
        if get_iterator is None or not getattr(loader, "num_workers", 0) or _MADE in vars(loader):
            return
        setattr(loader, _MADE, method_hook(_starting_workers(loader, get_iterator, self._profiler), loader, _MADE))
        self._loaders.append(loader)


def _starting_workers(loader: Any, get_iterator: Callable[[], Any], profiler: Profiler) -> Callable[[], Any]:
    def iterator() -> Any:
        user_fn = loader.worker_init_fn
        loader.worker_init_fn = profiler.worker_init_fn(user_fn)
        try:
            return get_iterator()
        finally:
            loader.worker_init_fn = user_fn

    return iterator
