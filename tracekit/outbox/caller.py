"""Caller: makes calls with a timeout, and abandons calls that hang."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracekit.storage import TooSlowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Calls: TypeAlias = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]

T = TypeVar("T")
_MOST_HANGING: Final = 8


class Caller:
    """A thread that makes calls for another thread, which waits for each call with a timeout.

    A client of an object store can hang if a server accepts a connection and never answers. Such a call cannot be ended from
    outside. Its thread is abandoned, and a new one replaces it. The first thread is started immediately, because some Python
    versions start no threads while the interpreter shuts down.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._left_behind: list[threading.Thread] = []
        self._current: Future[Any] | None = None
        self._start()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function on the other thread; return its result or raise its exception.

        Raises:
            TooSlowError: The call did not return in time, or too many earlier calls still hang.
        """
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= _MOST_HANGING:
            raise TooSlowError(f"the storage hangs: {_MOST_HANGING} calls have not returned")
        if self._thread is None:
            self._start()
        answer: Future[T] = Future()
        self._current = answer
        self._calls.put((function, answer))
        if not wait([answer], timeout_s).done:
            self._abandon()
            raise TooSlowError(f"the storage gave no answer within {timeout_s:g} s")
        return answer.result()

    def close(self) -> None:
        """End a pending call with `TooSlowError`, and end the thread as soon as possible."""
        answer, self._left_behind = self._current, []
        self._calls.put(None)
        if answer is not None and not answer.done():
            with suppress(InvalidStateError):  # it has come just now
                answer.set_exception(TooSlowError("it was not waited for any longer"))
        elif self._thread is not None:
            self._thread.join(1.0)  # it is idle

    def _start(self) -> None:
        self._thread: threading.Thread | None = None
        self._calls: _Calls = queue.SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is ending
            raise TooSlowError(f"the storage hangs, and no other thread can be started ({error})") from error
        self._thread = thread

    def _abandon(self) -> None:
        self._calls.put(None)  # ends the thread if its call ever returns
        if self._thread is not None:
            self._left_behind.append(self._thread)
        self._thread = None


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        function, answer = call
        with suppress(InvalidStateError):  # `Caller.close` has answered for it
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                answer.set_exception(error)
        del call, function, answer
