"""Gzip with the fastest installed codec.

isal (``tracekit-ml[fast]``) compresses four times as fast as zlib, and as small. Both have the same interface. Each is
deterministic, but their compressed bytes differ.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from typing import BinaryIO

_codec: Any = zlib
with contextlib.suppress(ImportError):
    from isal import isal_zlib

    _codec = isal_zlib

InflateError: Final[type[Exception]] = _codec.error  # the exception raised for damaged data
_GZIP_WBITS: Final = 31
_LEVEL: Final = 1
_BLOCK_BYTES: Final = 1 << 16
_TOGETHER_BYTES: Final = 1 << 20  # size of the pieces that the compressing thread receives
_MOST_LEFT: Final = 3  # maximum number of waiting items: enough that the threads rarely wait for each other
_Item = TypeVar("_Item")


def inflater() -> Any:
    """Return an object that unpacks one gzip member, like those of `zlib.decompressobj`."""
    return _codec.decompressobj(_GZIP_WBITS)


class GzipWriter:
    """Compresses data into one gzip member, without a name or a time in it. Use it in a ``with``.

    Args:
        behind: Compress and write in a separate thread while the caller continues. The bytes are the same. That thread
            then owns the file until the end of the ``with``, and `write` may raise an exception of an earlier write.
    """

    def __init__(self, file: BinaryIO, *, behind: bool = False) -> None:
        self._file = file
        self._deflater = _codec.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        self._behind = Behind(self._pack) if behind else None
        self._together_bytes = _TOGETHER_BYTES if behind else _BLOCK_BYTES
        self._rest = bytearray()

    def __enter__(self) -> GzipWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        behind, self._behind = self._behind, None  # which refers to this writer: a cycle would keep both
        if behind is not None:
            behind.__exit__(kind, *others)
        if kind is None:
            self._pack(self._rest)
            self._file.write(self._deflater.flush())

    def write(self, data: bytes) -> int:
        """Compress more data."""
        self._rest += data
        if len(self._rest) >= self._together_bytes:
            whole = len(self._rest) // _BLOCK_BYTES * _BLOCK_BYTES
            blocks = self._rest[:whole]
            del self._rest[:whole]
            if self._behind is None:
                self._pack(blocks)
            else:
                self._behind.give(blocks)
        return len(data)

    def _pack(self, data: bytearray) -> None:
        # The output of isal depends on the sizes of its input pieces, and callers write any sizes.
        view = memoryview(data)
        for at in range(0, len(data), _BLOCK_BYTES):
            if piece := self._deflater.compress(view[at : at + _BLOCK_BYTES]):
                self._file.write(piece)


def packed(path: str, file: BinaryIO, *, behind: bool = False) -> AbstractContextManager[BinaryIO | GzipWriter]:
    """Return a writer to ``file`` that compresses if ``path`` ends with ``.gz``. For ``behind`` see `GzipWriter`."""
    return GzipWriter(file, behind=behind) if path.endswith(".gz") else contextlib.nullcontext(file)


class Behind(Generic[_Item]):
    """Calls a function for each item, in order, in a separate thread. Use it in a ``with``, from one thread.

    The end of the ``with`` waits for all items. After an error it waits only for the current item. If no thread can
    start, the caller's thread calls the function. The next `give` that waits, or the end, raises exceptions of the function.
    """

    def __init__(self, put: Callable[[_Item], object]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # slow to import, and most merges do not need it

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
        """Pass an item to the function. Wait while many items are waiting."""
        self._wait_for(_MOST_LEFT - 1)
        if not self._is_alone:
            try:
                future = self._thread.submit(self._put, item)
            except RuntimeError:  # no thread: submit no more, or a thread that starts later would repeat this item
                self._is_alone = True
            else:
                self._left.append(future)
                return
        self._wait_for(0)
        self._put(item)

    def _wait_for(self, most_left: int) -> None:
        while len(self._left) > most_left:
            self._left.popleft().result()
