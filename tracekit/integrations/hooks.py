"""Hooks that integrations put into objects of a training: models, trainers and data loaders. Copies do not have them."""

from __future__ import annotations

import functools
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.recording.loaders import recording_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.recording.profiler import Profiler

_END: Final = object()
_CLASS: Final = vars(object)["__class__"]  # Accelerate's loaders have a property of that name, to pass for a DataLoader


class Hook:
    """A function that is neither copied nor pickled: a copy has the method ``name`` of ``owner`` instead.

    Models are copied and saved whole while they are trained (averages of weights, models of reference), and a bound
    method would take the profiler along.
    """

    def __init__(self, function: Callable[..., Any], owner: object, name: str) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._instead = owner, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function."""
        return self._function(*args, **named)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, str]]:
        return getattr, self._instead


def model_hook(function: Callable[..., Any]) -> Hook:
    """Return a hook for a model; a copy has one of the standard library that does nothing, and loads without tracekit."""
    return Hook(function, nullcontext(), "__exit__")


def hook_forward(undo: ExitStack, model: Any, before: Callable[..., Any], after: Callable[..., Any]) -> None:
    """Call functions before and after each forward pass of a model, also one that raises, until ``undo`` closes."""
    undo.callback(model.register_forward_pre_hook(model_hook(before), with_kwargs=True).remove)
    undo.callback(model.register_forward_hook(model_hook(after), always_call=True).remove)


def replace_method(undo: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """`replace` a method; a copy of the object has the method itself."""
    replace(undo, owner, name, Hook(function, owner, name))


def replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until ``undo`` closes, unless the instance has it already, or takes no attributes."""
    if name not in getattr(owner, "__dict__", {name: None}):
        with suppress(AttributeError, TypeError):
            setattr(owner, name, value)
            undo.callback(_restore, owner, name)


def _restore(owner: Any, name: str) -> None:
    with suppress(AttributeError):
        delattr(owner, name)


def watch(loader: Any, through: Callable[[Any, Callable[[], Iterator[Any]]], Iterator[Any]]) -> Callable[[], None]:
    """Pass every iteration over a loader through a generator; the loader stays the same object.

    ``iter()`` looks at the class, so the loader gets a subclass of its class; the returned function restores it. A
    loader that cannot have one is left alone. ``through`` gets the loader and what begins an iteration over it, and
    yields the batches.
    """
    kind = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        return through(self, lambda: kind.__iter__(self))

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    try:
        _CLASS.__set__(loader, type(kind.__name__, (kind,), {**names, "__iter__": iterate}))
    except TypeError:  # a list, an object with slots ...
        return lambda: None
    return functools.partial(_CLASS.__set__, loader, kind)


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
