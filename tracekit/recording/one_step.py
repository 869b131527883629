"""Steps of recording that no other thread interrupts, also on a CPython without the interpreter lock (GIL).

Recording relies on the GIL: a test and a store without a call in between are one step (see `tracekit.recording.marker`).
A free-threaded CPython runs several threads at once, so there the same methods hold one lock of the process. Threads
change where they change under the GIL at the latest: `outside_step` gives the lock up around everything that waits or
calls a user's code. With the GIL, every function here returns its argument, so recording costs what it did.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracekit.core import FREE_THREADED

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")
C = TypeVar("C", bound="type[Any]")
# The methods of markers and buffers that rely on the GIL
_STEPS: Final = frozenset(
    {
        "__enter__",
        "__exit__",
        "_clone",
        "_enter_slow",
        "_exit_slow",
        "_refuse",
        "_share",
        "abandon_in_child",
        "add",
        "add_edge",
        "attach",
        "counter",
        "detach",
        "finish",
        "forget_slice",
        "forget_track",
        "hold",
        "instant",
        "open_slices",
        "refuse",
        "set_recording",
        "take",
        "thread_track",
    }
)
_lock: Final = threading.RLock()
_is_finalizing: Final = sys.is_finalizing


def new_lock() -> Any:
    """Return a re-entrant lock for changes of a buffer and its markers. Without the GIL, the lock of all steps."""
    return _lock if FREE_THREADED else threading.RLock()


def one_step(function: F) -> F:
    """Return a function that no other step interrupts."""
    if not FREE_THREADED:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _is_finalizing():  # this is the last thread, and a daemon thread may have ended with the lock
            return function(*args, **kwargs)
        with _lock:
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def in_steps(methods: C) -> C:
    """Make the methods of a class that rely on the GIL one step each. A class decorator."""
    if FREE_THREADED:
        for name in _STEPS.intersection(vars(methods)):
            setattr(methods, name, one_step(getattr(methods, name)))
    return methods


def outside_step(function: F) -> F:
    """Return a function that lets other threads do their steps while it waits, or runs a user's code."""
    if not FREE_THREADED:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what `threading.Condition` does
            return function(*args, **kwargs)
        held = _lock._release_save()  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            return function(*args, **kwargs)
        finally:
            _lock._acquire_restore(held)  # type: ignore[attr-defined]  # noqa: SLF001

    return run  # type: ignore[return-value]


@outside_step
def _copied(values: Any) -> Any:
    with suppress(Exception):  # raised again by the step, which reports it
        return {**values}
    return values


def with_own_values(record: F) -> F:
    """Return a method that reads a user's mapping outside its step, because the mapping may wait for a lock."""
    if not FREE_THREADED:
        return record

    @functools.wraps(record)
    def run(marker: Any, values: Any) -> None:
        record(marker, values if type(values) is dict else _copied(values))

    return run  # type: ignore[return-value]


def copy_of(queue: deque[T]) -> deque[T]:
    """Return a copy of a queue that other threads append to. Without the GIL, an append may end the copy; try again."""
    while True:
        with suppress(RuntimeError):
            return queue.copy()


if FREE_THREADED and hasattr(os, "register_at_fork"):
    # A child would inherit the lock as another thread holds it.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
