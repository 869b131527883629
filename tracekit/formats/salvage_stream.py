"""The bytes of a damaged file or URL: plain, or gzip that is cut off, torn, or damaged in the middle of a member."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.formats.byte_stream import PIECE_BYTES
from tracekit.storage import open_read, without_secrets

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["TEAR", "SalvageStream"]

TEAR: Final = b"\0"
"""Stands in the text where something of the packed file could not be unpacked: no JSON holds it, so nothing grows together."""

_MAGIC: Final = b"\x1f\x8b"
_MEMBER: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_GZIP_WBITS: Final = 31
_TRIAL_BYTES: Final = 4096
# Unpacking runs past the end of a torn member into the next one before it notices.
_LOOK_BACK_BYTES: Final = 64 * 1024
_KEPT_DAMAGES: Final = 20


class SalvageStream:
    """Reads a file in pieces of bounded size, and all of a gzip file that can be unpacked.

    Where `ByteStream` ends at the first damage, this one gives every byte that was unpacked before it, then looks for the
    next member of the gzip file and goes on there. Use from one thread at a time.

    Attributes:
        path: The file, as it may be printed.
        compressed: Whether the file is gzip.
        damages: Sentences on what could not be unpacked, with offsets in the packed file; the first few.

    Raises:
        StorageError: The file is not there or cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = without_secrets(path)
        self.damages: list[str] = []
        self._file = open_read(path)
        self._read_bytes = 0
        try:
            self._packed = self._read_file()
        except BaseException:
            self._file.close()
            raise
        self.compressed = self._packed.startswith(_MAGIC)
        self._inflater = zlib.decompressobj(_GZIP_WBITS) if self.compressed else None
        self._damaged_at = 0
        self._unpacked = b""  # the last of the packed bytes of this member that were unpacked

    def __enter__(self) -> SalvageStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self) -> bytes:
        """Return the next piece, of about `PIECE_BYTES` at most; empty at the end."""
        if not self.compressed:
            piece, self._packed = self._packed or self._read_file(), b""
            return piece
        while self._inflater is not None:
            if not self._packed and not self._more():
                return self._end(self._inflater)
            if self._inflater.eof:
                # Gzip files may have several members, and end with zeros as padding.
                self._packed = self._packed.lstrip(b"\0")
                if self._packed:
                    if len(self._packed) < len(_MAGIC):
                        self._more()
                    if not self._packed.startswith(_MAGIC):
                        self._damaged_at = self._read_bytes - len(self._packed)
                        self._next_member("what follows is no gzip data")
                        return TEAR
                    self._inflater = zlib.decompressobj(_GZIP_WBITS)
                    self._unpacked = b""
                continue
            spare = self._inflater.copy()
            try:
                piece = self._inflater.decompress(self._packed, PIECE_BYTES)
            except zlib.error as error:
                piece = self._crumbs(spare)
                self._next_member(str(error).partition("decompressing data: ")[2] or str(error))
                return piece + TEAR
            rest = self._inflater.unconsumed_tail or self._inflater.unused_data
            self._unpacked = (self._unpacked + self._packed[: len(self._packed) - len(rest)])[-_LOOK_BACK_BYTES:]
            self._packed = rest
            if piece:
                return piece
        return b""

    def _end(self, inflater: zlib._Decompress) -> bytes:
        self._inflater = None
        if inflater.eof:
            return b""
        self._damage("the gzip data is cut off")
        return inflater.flush()

    def _crumbs(self, inflater: zlib._Decompress) -> bytes:
        """Unpack byte by byte what comes before the damage; it lies within one piece."""
        crumbs = []
        self._unpacked += self._packed
        for at in range(len(self._packed)):
            try:
                crumbs.append(inflater.decompress(self._packed[at : at + 1]))
            except zlib.error:
                self._damaged_at = self._read_bytes - len(self._packed) + at
                self._packed = self._unpacked
                break
        return b"".join(crumbs)

    def _next_member(self, reason: str) -> None:
        """Find the next member that can be unpacked to text, and go on there; or end."""
        self._inflater, self._unpacked = None, b""
        at = 1
        while True:
            found = _MEMBER.search(self._packed, at)
            # A member shows what it is within a few bytes, which may not have been read yet.
            if found is None or len(self._packed) - found.start() < _TRIAL_BYTES:
                at = max(0, len(self._packed) - 3) if found is None else found.start()
                self._packed, at = self._packed[at:], 0
                if self._more():
                    continue
                found = _MEMBER.match(self._packed)
                if found is None:
                    break
            if _holds_text(self._packed[found.start() : found.start() + _TRIAL_BYTES]):
                self._packed = self._packed[found.start() :]
                self._inflater = zlib.decompressobj(_GZIP_WBITS)
                break
            at = found.start() + 1
        goes_on = (
            f"reading goes on at byte {self._read_bytes - len(self._packed)}" if self._inflater else "the rest is lost"
        )
        self._damage(f"the gzip file is damaged at byte {self._damaged_at} ({reason}); {goes_on}")

    def _damage(self, sentence: str) -> None:
        if len(self.damages) < _KEPT_DAMAGES:
            self.damages.append(sentence)

    def _more(self) -> bool:
        piece = self._read_file()
        self._packed += piece
        return bool(piece)

    def _read_file(self) -> bytes:
        try:
            piece = self._file.read(PIECE_BYTES)
        except Exception as error:
            # An object store has exceptions of its own.
            raise StorageError(f"{self.path}: cannot be read: {error}") from error
        self._read_bytes += len(piece)
        return piece


def _holds_text(packed: bytes) -> bool:
    # The magic of gzip also appears in packed data by chance; what follows it there unpacks to noise, if at all.
    try:
        text = zlib.decompressobj(_GZIP_WBITS).decompress(packed, _TRIAL_BYTES)
    except zlib.error:
        return False
    return bool(text) and not _NO_TEXT.search(text)
