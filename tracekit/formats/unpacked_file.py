"""Unpack zstd, or a zip archive with one trace. `ByteStream` unpacks gzip."""

from __future__ import annotations

import contextlib
import re
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.errors import MissingExtraError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

# 4 bytes of zstd can yield 128 KiB.
_MAX_PACKED_BYTES: Final = 2048
_MAX_NAMED: Final = 5
_TRACE: Final = re.compile(r"\.(?:json|jsonl|pftrace|json\.tmp)(?:\.gz|\.zst)?$")


def unpacker(packing: str, file: BinaryIO, read: Callable[[int], bytes], path: str) -> Callable[[int], bytes]:
    """Return a function that returns up to a number of unpacked bytes; empty at the end.

    Args:
        packing: "zstd" or "zip".
        file: The packed file.
        read: Reads the packed file from its beginning.
        path: The file, for display.

    Raises:
        TraceFormatError: A zip archive is damaged or does not hold one trace.
        MissingExtraError: zstd needs a package that is not installed.
    """
    unpacked = _ZstdReader(read, path) if packing == "zstd" else _open_member(file, path)
    return unpacked.read


class _ZstdReader:
    """Unpacks zstd with one frame or several."""

    def __init__(self, read: Callable[[int], bytes], path: str) -> None:
        self._packed_read = read
        self._make = _zstd_decompressor(path)
        self._decompressor = self._make()
        self._packed = b""
        self._unpacked = bytearray()
        self._is_whole = True
        self._error: Exception | None = None

    def read(self, size: int) -> bytes:
        while len(self._unpacked) < size and self._error is None:
            packed = self._packed or self._packed_read(_MAX_PACKED_BYTES)
            if not packed:
                self._error = None if self._is_whole else EOFError()
                break
            try:
                if self._decompressor.eof:
                    self._decompressor = self._make()
                self._unpacked += self._decompressor.decompress(packed)
            except damage_errors() as error:
                self._error = error
                break
            self._is_whole = self._decompressor.eof
            self._packed = self._decompressor.unused_data if self._is_whole else b""
        if self._error is not None and not self._unpacked:
            raise self._error
        piece = bytes(self._unpacked[:size])
        del self._unpacked[:size]
        return piece


def _zstd_module() -> Any:
    """Return Python's own module for zstd (3.14), else the package zstandard, else None."""
    with contextlib.suppress(ImportError):
        from compression import zstd

        return zstd
    with contextlib.suppress(ImportError):
        import zstandard

        return zstandard
    return None


def damage_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that an `unpacker` raises at damaged data."""
    import zipfile  # only damaged data needs it

    module = _zstd_module()
    usual = (EOFError, ValueError, zipfile.BadZipFile, zlib.error)
    return usual if module is None else (*usual, module.ZstdError)


def _zstd_decompressor(path: str) -> Callable[[], Any]:
    module = _zstd_module()
    if module is None:
        raise MissingExtraError("the package zstandard", "zstd", f"{path}: unpacking zstd")
    if module.__name__ == "zstandard":
        return lambda: module.ZstdDecompressor().decompressobj()
    decompressor: Callable[[], Any] = module.ZstdDecompressor
    return decompressor


def _open_member(file: BinaryIO, path: str) -> Any:
    import zipfile

    if not file.seekable():
        raise TraceFormatError(path, "a zip archive cannot be read from a pipe; write it to a file first")
    from tracekit.formats.archive_file import MANIFEST_NAME  # only zip archives need it

    try:
        archive = zipfile.ZipFile(file)
        names = [
            name
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith(("__MACOSX/", ".")) and name != MANIFEST_NAME
        ]
        traces = [name for name in names if _TRACE.search(name)] or names
        if len(traces) == 1:
            return archive.open(traces[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise TraceFormatError(path, f"this zip archive cannot be read: {error}") from error
    if not traces:
        raise TraceFormatError(path, "this zip archive is empty")
    shown = ", ".join(traces[:_MAX_NAMED]) + (" ..." if len(traces) > _MAX_NAMED else "")
    raise TraceFormatError(
        path,
        f"this zip archive holds {len(traces)} files ({shown}); unpack it, and name the folder or the files to read",
    )
