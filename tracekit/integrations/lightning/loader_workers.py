"""record_workers: record the workers of a Trainer's data loaders, each into its own trace next to that of its rank."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit.integrations.hooks import method_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.integrations.lightning.framework import Trainer
    from tracekit.recording.profiler import Profiler

__all__ = ["record_workers"]

_PROCESS: Final = "process_dataloader"
_GET_ITERATOR: Final = "_get_iterator"


def record_workers(trainer: Trainer, profiler: Profiler) -> Callable[[], None]:
    """Record the workers that the loaders of a Trainer start from now on.

    Lightning passes every loader, in its final form, to its strategy. A loader then starts its workers with
    `Profiler.worker_init_fn` in front of its own ``worker_init_fn``; nothing else about it changes. Loaders without workers,
    and objects other than torch DataLoaders, are left alone.

    Returns:
        A function that restores strategy and loaders. Running workers continue.
    """
    strategy: Any = trainer.strategy
    process: Callable[[Any], Any] = getattr(strategy, _PROCESS)
    replaced: list[tuple[Any, str]] = [(strategy, _PROCESS)]

    def processed(loader: Any) -> Any:
        found = process(loader)
        get_iterator = getattr(found, _GET_ITERATOR, None)
        if get_iterator is not None and getattr(found, "num_workers", False) and _GET_ITERATOR not in vars(found):
            starting = partial(_start_workers, found, get_iterator, profiler)
            setattr(found, _GET_ITERATOR, method_hook(starting, found, _GET_ITERATOR))
            replaced.append((found, _GET_ITERATOR))
        return found

    def restore() -> None:
        for owner, name in replaced:
            with contextlib.suppress(AttributeError):
                delattr(owner, name)
        replaced.clear()

    setattr(strategy, _PROCESS, method_hook(processed, strategy, _PROCESS))
    return restore


def _start_workers(loader: Any, get_iterator: Callable[[], Any], profiler: Profiler) -> Any:
    user_fn = loader.worker_init_fn
    loader.worker_init_fn = profiler.worker_init_fn(user_fn)
    try:
        return get_iterator()
    finally:
        loader.worker_init_fn = user_fn
