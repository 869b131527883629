"""The bytes of a file or URL, unpacked when they are gzip, in pieces of bounded size."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.storage import open_read, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["PIECE_BYTES", "ByteStream"]

PIECE_BYTES: Final = 256 * 1024
"""How much is unpacked at once: large enough to amortise what Python does for a piece (with 64 KiB, a quarter of the time of a
merge in C), small enough to stay in the processor's cache."""

_GZIP_MAGIC: Final = b"\x1f\x8b"


class ByteStream:
    """Reads a file, plain or gzip. Gzip is recognised by its content, may have several members, and may be cut.

    Use from one thread at a time.

    Attributes:
        foreign: What the file is instead of what is read: nothing.
        path: The file, as it may be printed.
        compressed: Whether the file is gzip.
        damage: Why unpacking stopped early ("the gzip data is cut off", ...), or None. What was unpacked until then
            counts.
        losses: What is not in the bytes although it is in the file, by kind: nothing.

    Raises:
        StorageError: The file is not there or cannot be read.
    """

    foreign: Final = ""
    losses: Mapping[str, int] = MappingProxyType({})

    def __init__(self, path: str) -> None:
        self.path = without_secrets(path)
        self.damage: str | None = None
        self._file = open_read(path)
        self._packed = self._read_file()
        self.compressed = self._packed.startswith(_GZIP_MAGIC)
        self._inflater: Any = inflater() if self.compressed else None
        self._pending = False
        self._first: bytes | None = None

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> bytes:
        """Return the next piece: `PIECE_BYTES`, less only at the end, so that pieces do not depend on the codec."""
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        if self._inflater is None:
            piece, self._packed = self._packed or self._read_file(), b""
            return piece
        pieces = []
        missing = PIECE_BYTES
        while missing and (piece := self._inflate(missing)):
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
            # The codec may hold more than it returned, although it has taken all of its input.
            self._pending = len(piece) == limit and not self._inflater.eof
            self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
            if piece:
                return piece
        return b""

    def _next_member(self) -> bool:
        """Start on the member that follows a complete one; gzip files may end with zeros as padding."""
        self._packed = self._packed.lstrip(b"\0")
        if not self._packed:
            return False
        self._inflater = inflater()
        self._pending = False
        return True

    def _read_file(self) -> bytes:
        try:
            return self._file.read(PIECE_BYTES)
        except Exception as error:
            # An object store has exceptions of its own.
            raise StorageError(f"{self.path}: cannot be read: {error}") from error
