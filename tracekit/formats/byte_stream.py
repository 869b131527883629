"""Streams of the bytes of a trace, in pieces of limited size: unpacked from a file or URL, or converted from it."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError
from tracekit.formats.file_kinds import packing_of
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.formats.unpacked_file import damage_errors, unpacker
from tracekit.storage import open_read, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

PIECE_BYTES: Final = 256 * 1024
"""Size of a piece: large enough to amortise the Python code per piece (with 64 KiB, a quarter of a merge in C), and
small enough for the processor's cache."""


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
        path: The file, for display.
        compressed: True for a compressed file.
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
        path: The file or URL.
        limit_bytes: The maximum number of packed bytes that is read; None for all. A zip archive is always read whole.

    Raises:
        StorageError: The file is not there or cannot be read.
        TraceFormatError: A zip archive is damaged or does not hold one trace.
        MissingExtraError: The package that unpacks the file is not installed.
    """

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
                self._unpack = unpacker(packing, self._file, self._read_plain, self.path)
            self._packed = self._read_file()
        except BaseException:
            self._file.close()
            raise
        self._is_gzip = packing_of(self._packed) == "gzip"
        self.packing = self.packing or ("gzip" if self._is_gzip else "")
        self.compressed = bool(self.packing)
        self._inflater: Any = inflater() if self._is_gzip else None
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
        while self.damage is None:
            if not self._packed and not self._pending:
                self._packed = self._read_file()
                if not self._packed:
                    if not self._inflater.eof:
                        self.damage = "the gzip data is cut off"
                    break
            if self._inflater.eof and not self._next_member():
                continue
            try:
                piece: bytes = self._inflater.decompress(self._packed, limit)
            except InflateError as error:
                self.damage = f"the gzip data is damaged ({error})"
                break
            # The codec may have more output, even if it has consumed all of its input.
            self._pending = len(piece) == limit and not self._inflater.eof
            self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
            if piece:
                return piece
        return b""

    def _next_member(self) -> bool:
        """Start the member after a complete one. Gzip files may end with zeros as padding."""
        self._packed = self._packed.lstrip(b"\0")
        if not self._packed:
            return False
        self._inflater = inflater()
        self._pending = False
        return True

    def _read_file(self) -> bytes:
        """Return the next piece without zstd and zip, but not without gzip."""
        try:
            return (self._unpack or self._read_plain)(PIECE_BYTES)
        except damage_errors() as error:
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
    """Bytes in memory.

    Args:
        path: The original file, for display.
        data: The bytes.
    """

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
    """A file of another form, converted to Chrome JSON.

    Args:
        source: The unread file.
    """

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
