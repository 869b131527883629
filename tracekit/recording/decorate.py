"""Wrappers that record the runs of functions, coroutines and generators as slices of a marker."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Protocol

    class _Marker(AbstractContextManager[Any], AbstractAsyncContextManager[Any], Protocol):
        """The context manager around a run, in a thread or a task."""


def decorate(marker: _Marker, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` wrapped so that each call, or each run of a generator, is a slice of the marker."""
    if inspect.iscoroutinefunction(function):
        return _coroutine(marker, function)
    if inspect.isasyncgenfunction(function):
        return _async_generator(marker, function)
    if inspect.isgeneratorfunction(function):
        return _generator(marker, function)
    return _function(marker, function)


def _function(marker: _Marker, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with marker:
            return function(*args, **kwargs)

    return wrapper


def _coroutine(marker: _Marker, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        async with marker:
            return await function(*args, **kwargs)

    return wrapper


def _generator(marker: _Marker, function: Callable[..., Any]) -> Callable[..., Any]:
    # The slice ends at every yield, because the caller runs between two values and may record slices.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume = functools.partial(inner.send, None)
        try:
            while True:
                finished = False
                with marker:
                    try:
                        value = resume()
                    except StopIteration as stop:  # a normal end, not an exception of the slice
                        finished, value = True, stop.value
                if finished:
                    return value
                try:
                    resume = functools.partial(inner.send, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on to the generator it was thrown into
                    resume = functools.partial(inner.throw, error)
        finally:
            inner.close()

    return wrapper


def _async_generator(marker: _Marker, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        inner = function(*args, **kwargs)
        resume = functools.partial(inner.asend, None)
        try:
            while True:
                finished = False
                async with marker:
                    try:
                        value = await resume()
                    except StopAsyncIteration:
                        finished = True
                if finished:
                    return
                try:
                    resume = functools.partial(inner.asend, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on to the generator it was thrown into
                    resume = functools.partial(inner.athrow, error)
        finally:
            await inner.aclose()

    return wrapper
