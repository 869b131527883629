"""Behind: a thread that puts away what its caller is done with, while the caller goes on."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["Behind"]

_Item = TypeVar("_Item")

_MOST_LEFT: Final = 3
"""So many items wait at most: enough that neither side waits for the other at every turn, and not much memory."""


class Behind(Generic[_Item]):
    """Gives items to a function, one after the other, in a thread of its own; use it in a ``with``, from one thread.

    Worth it for work that leaves Python's lock alone, as packing and writing do: it then runs on a second processor. The end of
    the ``with`` waits until all is put away; where an error ends it, only for the item that is under way. Where no thread can be
    started, the caller's puts away.

    Args:
        put: Takes an item. What it raises is raised by the next call of `give` that waits, or by the end of the ``with``.
    """

    def __init__(self, put: Callable[[_Item], object]) -> None:
        self._put = put
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracekit-behind")
        self._left: deque[Future[Any]] = deque()
        self._is_alone = False

    def __enter__(self) -> Behind[_Item]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait_for(0)
        finally:
            self._thread.shutdown(cancel_futures=True)

    def give(self, item: _Item) -> None:
        """Have an item put away, after those before it. Waits while many are left."""
        self._wait_for(_MOST_LEFT - 1)
        if not self._is_alone:
            try:
                future = self._thread.submit(self._put, item)
            except RuntimeError:  # from now on, since the thread that may yet start must not do it as well
                self._is_alone = True
            else:
                self._left.append(future)
                return
        self._wait_for(0)
        self._put(item)

    def _wait_for(self, most_left: int) -> None:
        while len(self._left) > most_left:
            self._left.popleft().result()
