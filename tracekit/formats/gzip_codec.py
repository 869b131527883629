"""Gzip by the fastest codec that is installed: isal (``tracekit[fast]``) packs four times as fast as zlib, and as small.

Both have the same interface; with either, the same input gives the same bytes, but not the same as with the other.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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


def inflater() -> Any:
    """Return an object that unpacks one gzip member, like those of `zlib.decompressobj`."""
    return _codec.decompressobj(_GZIP_WBITS)


class GzipWriter:
    """Packs what is written to it into one gzip member, without a name and a time in it. Use it in a ``with``.

    Args:
        file: Where the member goes; it stays open.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._deflater = _codec.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)

    def __enter__(self) -> GzipWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._file.write(self._deflater.flush())

    def write(self, data: bytes) -> int:
        """Pack more data."""
        packed = self._deflater.compress(data)
        if packed:
            self._file.write(packed)
        return len(data)
