"""Hook: what integrations put into objects of a training, and what a copy of these objects is without."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hook", "method_hook", "model_hook"]


class Hook:
    """A function that is neither copied nor pickled: in its place stands a method of something else.

    Models are copied and saved whole while they are trained (averages of weights, models of reference), and a bound method
    would take the profiler along.

    Args:
        function: What is called.
        owner: Whose method a copy has instead.
        name: The name of that method.
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

    That one takes any arguments and returns None, and is of the standard library: who loads a saved model need not have
    tracekit.
    """
    return Hook(function, nullcontext(), "__exit__")


def method_hook(function: Callable[..., Any], owner: object, name: str) -> Hook:
    """Return what replaces a method of an object; a copy of the object has its own."""
    return Hook(function, owner, name)
