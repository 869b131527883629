"""Streams of the bytes of a trace, in pieces of limited size: unpacked from a file or URL, or converted from it."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.errors import MissingExtraError, StorageError, TraceFormatError
from tracekit.formats.file_kinds import packing_of
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.storage import open_read, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

PIECE_BYTES: Final = 256 * 1024
"""Size of a piece: large enough to amortise the Python code per piece (with 64 KiB, a quarter of a merge in C), and
small enough for the processor's cache."""

# 4 bytes of zstd can yield 128 KiB.
_MAX_PACKED_BYTES: Final = 2048
_MAX_NAMED: Final = 5
_TRACE: Final = re.compile(r"\.(?:json|jsonl|pftrace|json\.tmp)(?:\.gz|\.zst)?$")


class Closing:
    """An object that is closed at the end of a ``with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError


class TraceStream(Closing):
    """The bytes of a trace. Use it from one thread at a time.

    Attributes:
        foreign: The form of a file that is converted to Chrome JSON; empty for any other.
        damage: The reason why reading stopped early ("the gzip data is cut off", ...), or None. The bytes before it are
            valid.
        losses: Number of parts that are unreadable or have no form in JSON, by kind.
    """

    foreign = ""
    compressed = False
    damage: str | None = None
    losses: Mapping[str, int] = MappingProxyType({})

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        raise NotImplementedError


class ByteStream(TraceStream):
    """Reads a file: plain, gzip, zstd, or a zip archive with one trace. The content decides, not the name.

    Gzip may have several members, and may be cut.

    Attributes:
        packing: "gzip", "zstd" or "zip"; empty for a plain file.

    Args:
        limit_bytes: The maximum number of packed bytes that is read; None for all. A zip archive is always read whole.

    Raises:
        StorageError: The file is not there or cannot be read.
        TraceFormatError: A zip archive is damaged or does not hold one trace.
        MissingExtraError: The package that unpacks the file is not installed.
    """

    _new_inflater = staticmethod(inflater)

    def __init__(self, path: str, limit_bytes: int | None = None) -> None:
        super().__init__(without_secrets(path))
        self._file = open_read(path)
        self._left = 1 << 62 if limit_bytes is None else limit_bytes
        self._head = b""
        self._unpack: Callable[[int], bytes] | None = None
        self.packing = ""
        try:
            self._head = self._read_file()
            if (packing := packing_of(self._head)) in ("zstd", "zip"):
                self.packing = packing
                self._unpack = (
                    _ZstdReader(self._read_plain, self.path)
                    if packing == "zstd"
                    else _open_member(self._file, self.path)
                ).read
            self._packed = self._read_file()
        except BaseException:
            self._file.close()
            raise
        self._is_gzip = packing_of(self._packed) == "gzip"
        self.packing = self.packing or ("gzip" if self._is_gzip else "")
        self.compressed = bool(self.packing)
        self._inflater: Any = self._new_inflater() if self._is_gzip else None
        self._pending = False
        self._first: bytes | None = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> bytes:
        """Return the next piece, of `PIECE_BYTES` except at the end, so that pieces do not depend on the codec."""
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        if not self._is_gzip:
            piece, self._packed = self._packed or self._read_file(), b""
            return piece
        pieces = []
        missing = PIECE_BYTES
        while missing > 0 and (piece := self._inflate(missing)):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def peek(self) -> bytes:
        """Return the first piece, before anything is read."""
        self._first = self.read()
        return self._first

    def _inflate(self, limit: int) -> bytes:
        """Return up to ``limit`` unpacked bytes; empty at the end."""
        while self._inflater is not None:
            if not self._packed and not self._pending:
                self._packed = self._read_file()
            if not self._packed and not self._pending:
                inflater, self._inflater = self._inflater, None
                if not inflater.eof:
                    self._note_damage("the gzip data is cut off")
                rest: bytes = inflater.flush()
                return rest
            if piece := self._next_member() if self._inflater.eof else self._decompress(limit):
                return piece
        return b""

    def _next_member(self) -> bytes:
        """Start the member after a complete one. Gzip files may end with zeros as padding."""
        self._packed, self._pending = self._packed.lstrip(b"\0"), False
        if self._packed:
            self._inflater = self._new_inflater()
        return b""

    def _decompress(self, limit: int) -> bytes:
        try:
            piece: bytes = self._inflater.decompress(self._packed, limit)
        except InflateError as error:
            self._inflater = None
            self._note_damage(f"the gzip data is damaged ({error})")
            return b""
        # The codec may have more output, even if it has consumed all of its input.
        self._pending = len(piece) == limit and not self._inflater.eof
        self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
        return piece

    def _read_file(self) -> bytes:
        """Return the next piece without zstd and zip, but not without gzip."""
        try:
            return (self._unpack or self._read_plain)(PIECE_BYTES)
        except _damage_errors() as error:
            self._unpack = lambda _: b""
            self._note_damage(f"the {self.packing} data is damaged ({str(error) or 'it is cut off'})")
            return b""
        except Exception as error:
            # An object store raises other exceptions.
            raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def _read_plain(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        piece = self._file.read(min(size, self._left))
        self._left -= len(piece)
        return piece

    def _note_damage(self, sentence: str) -> None:
        self.damage = self.damage or sentence


class BytesStream(TraceStream):
    """Bytes in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path)
        self._data = data

    def read(self) -> bytes:
        """Return all bytes, once."""
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        """Do nothing."""


class ConvertedStream(TraceStream):
    """A file of another form, converted to Chrome JSON."""

    def __init__(self, source: ByteStream) -> None:
        super().__init__(source.path)
        self.compressed = source.compressed
        self.losses: Counter[str] = Counter()
        self._source = source
        self._pieces = filter(None, self._convert())

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        piece = next(self._pieces, b"")
        if not piece:
            self.damage = self.damage or self._source.damage
        return piece

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _convert(self) -> Iterator[bytes]:
        """Yield the JSON."""
        raise NotImplementedError


class _ZstdReader:
    """Unpacks zstd with one frame or several."""

    def __init__(self, read: Callable[[int], bytes], path: str) -> None:
        module = _zstd_module()
        if module is None:
            raise MissingExtraError("the package zstandard", "zstd", f"{path}: unpacking zstd")
        make = module.ZstdDecompressor
        self._make: Callable[[], Any] = (lambda: make().decompressobj()) if module.__name__ == "zstandard" else make
        self._packed_read = read
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
            except _damage_errors() as error:
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


def _damage_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that unpacking zstd and zip raises at damaged data."""
    import zipfile  # only damaged data needs it

    usual = (EOFError, ValueError, zipfile.BadZipFile, zlib.error)
    module = _zstd_module()
    return usual if module is None else (*usual, module.ZstdError)


def _open_member(file: BinaryIO, path: str) -> Any:
    import zipfile

    from tracekit.formats.archive_file import MANIFEST_NAME  # only zip archives need it

    if not file.seekable():
        raise TraceFormatError(path, "a zip archive cannot be read from a pipe; write it to a file first")
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
