"""Gzip by the fastest codec that is installed: isal (``tracekit[fast]``) packs four times as fast as zlib, and as small.

Both have the same interface; with either, the same input gives the same bytes, but not the same as with the other.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.behind import Behind

if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO

_codec: Any = zlib
with contextlib.suppress(ImportError):
    from isal import isal_zlib

    _codec = isal_zlib

__all__ = ["GzipWriter", "InflateError", "inflater"]

InflateError: Final[type[Exception]] = _codec.error
"""What unpacking damaged data raises."""

_GZIP_WBITS: Final = 31
_LEVEL: Final = 1
_TOGETHER_BYTES: Final = 1 << 20
"""So much is handed to the thread that packs at a time."""


def inflater() -> Any:
    """Return an object that unpacks one gzip member, like those of `zlib.decompressobj`."""
    return _codec.decompressobj(_GZIP_WBITS)


class GzipWriter:
    """Packs what is written to it into one gzip member, without a name and a time in it. Use it in a ``with``.

    Args:
        file: Where the member goes; it stays open.
        behind: Whether a thread of its own packs and writes, while the caller goes on; the bytes are the same. Until the end of
            the ``with`` the file is then that thread's, and `write` may raise what writing earlier data raised.
    """

    def __init__(self, file: BinaryIO, *, behind: bool = False) -> None:
        self._file = file
        self._deflater = _codec.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        self._behind = Behind(self._pack) if behind else None
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __enter__(self) -> GzipWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._behind is not None:
            self._behind.__exit__(kind, error, traceback)
        if kind is None:
            self._pack(self._held)
            self._file.write(self._deflater.flush())

    def write(self, data: bytes) -> int:
        """Pack more data."""
        if self._behind is None:
            self._pack([data])
            return len(data)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _TOGETHER_BYTES:
            self._behind.give(self._held)
            self._held, self._held_bytes = [], 0
        return len(data)

    def _pack(self, pieces: list[bytes]) -> None:
        # Piece by piece: isal's bytes depend on how much it gets at once.
        for piece in pieces:
            packed = self._deflater.compress(piece)
            if packed:
                self._file.write(packed)
