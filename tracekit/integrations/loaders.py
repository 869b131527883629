"""Watches a data loader that some framework iterates over: how long it is waited for, and what its workers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.recording.profiler import Profiler

_END: Final = object()
_CLASS: Final = vars(object)["__class__"]  # Accelerate's loaders have a property of that name, to pass for a DataLoader


def watch(loader: Any, through: Callable[[Any, Callable[[], Iterator[Any]]], Iterator[Any]]) -> Callable[[], None]:
    """Pass every iteration over a loader through a generator; the loader stays the same object.

    ``iter()`` looks at the class, so the loader gets a subclass of its class; the returned function restores it. A
    loader that cannot have one is left alone. ``through`` gets the loader and what begins an iteration over it, and
    yields the batches.
    """
    kind = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        return through(self, lambda: kind.__iter__(self))

    names = {
        "__iter__": iterate,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    try:
        _CLASS.__set__(loader, type(kind.__name__, (kind,), names))
    except TypeError:  # a list, an object with slots ...
        return lambda: None

    def unwatch() -> None:
        _CLASS.__set__(loader, kind)

    return unwatch


def recorded_pass(profiler: Profiler, loader: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the batches of a loader, with a slice "dataloader" for each wait. Its workers also record."""
    marker = profiler.marker("dataloader")
    # Accelerate's loaders make the iterator that starts the workers with the first batch.
    with recording_loader(loader, profiler), marker:
        batches = begin()
        batch = next(batches, _END)
    while batch is not _END:
        yield batch
        with marker:
            batch = next(batches, _END)
