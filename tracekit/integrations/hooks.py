"""Hooks that integrations put into objects of a training, which copies of these objects do not have."""

from __future__ import annotations

import functools
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
    """Return a hook for a model; a copy of the model has one that does nothing.

    The copy's hook is a function of the standard library, so that a saved model loads without tracekit.
    """
    return Hook(function, nullcontext(), "__exit__")


def method_hook(function: Callable[..., Any], owner: object, name: str) -> Hook:
    """Return a replacement of a method of an object; a copy of the object has the method itself."""
    return Hook(function, owner, name)


class Replacements:
    """Methods of single objects that are replaced until `restore`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace a method, unless the instance has an attribute of this name already, or takes no attributes."""
        if name not in getattr(owner, "__dict__", {name: None}):
            with suppress(AttributeError, TypeError):
                setattr(owner, name, value)
                self._replaced.append((owner, name))

    def restore(self) -> None:
        """Remove all replacements."""
        while self._replaced:
            owner, name = self._replaced.pop()
            with suppress(AttributeError):
                delattr(owner, name)
