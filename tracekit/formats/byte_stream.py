"""Recognise packed files and files that are not traces; streams of the bytes of a trace, unpacked or converted."""

from __future__ import annotations

import contextlib
import errno
import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.errors import MissingExtraError, StorageError, TraceFormatError
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.storage import open_read, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

# Size of a piece: large enough to amortise the Python code per piece (with 64 KiB, a quarter of a merge in C), and
# small enough for the processor's cache.
PIECE_BYTES: Final = 256 * 1024
# 4 bytes of zstd can yield 128 KiB.
_MAX_PACKED_BYTES: Final = 2048
_MAX_NAMED: Final = 5
_MAX_DAMAGES: Final = 20
_TRACE: Final = re.compile(r"\.(?:json|jsonl|pftrace|json\.tmp)(?:\.gz|\.zst)?$")


class Closing:
    """An object that is closed at the end of a ``with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if there is one."""


class TraceStream(Closing):
    """The bytes of a trace. Use it from one thread at a time."""

    foreign = ""  # the form of a file that is converted to Chrome JSON
    compressed = False
    packing = ""  # "gzip", "zstd" or "zip"
    ended = False  # True if nothing follows for certain
    damage: str | None = None  # why reading stopped early; the bytes before it are valid
    losses: Mapping[str, int] = MappingProxyType({})  # parts that are unreadable or have no form in JSON, by kind

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        raise NotImplementedError


class ByteStream(TraceStream):
    """Reads a file: plain, gzip, zstd, or a zip archive with one trace. The content decides, not the name.

    Gzip may have several members, and may be cut.

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
        self._read_bytes = 0
        self.damages: list[str] = []  # the first few sentences about data that could not be unpacked
        self._head = b""  # of a file that another codec unpacks
        self._unpack: Callable[[int], bytes] | None = None
        try:
            self._packed = self._read_file()
            kind = packing_of(self._packed)
            if kind in ("zstd", "zip"):
                self.packing, self._head = kind, self._packed
                self._unpack = (
                    _ZstdReader(self._read_plain, self.path) if kind == "zstd" else _open_member(self._file, self.path)
                ).read
                self._packed = self._read_file()
                kind = packing_of(self._packed)
        except BaseException:
            self._file.close()
            raise
        self._read_bytes = len(self._packed)  # without what another codec has read
        self._is_gzip = kind == "gzip"
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
            self.ended = not self._left and not self.packing
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
            piece = (self._unpack or self._read_plain)(PIECE_BYTES)
        except StorageError:
            raise
        except Exception as error:
            # The clients of object stores raise any exceptions.
            if self._unpack is None or not is_damage(error):
                raise StorageError(f"{self.path}: cannot be read: {error}") from error
            self._unpack = lambda _: b""
            self._note_damage(f"the {self.packing} data is damaged ({str(error) or 'it is cut off'})")
            return b""
        self._read_bytes += len(piece)
        return piece

    def _read_plain(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        piece = self._file.read(min(size, self._left))
        self._left -= len(piece)
        return piece

    def _note_damage(self, sentence: str) -> None:
        self.damage = self.damage or sentence
        if len(self.damages) < _MAX_DAMAGES:
            self.damages.append(sentence)


class BytesStream(TraceStream):
    """Bytes in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path)
        self._data = data

    def read(self) -> bytes:
        """Return all bytes, once."""
        data, self._data = self._data, b""
        return data


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
            except Exception as error:  # noqa: BLE001 - each module for zstd has its own
                self._error = ValueError(str(error))
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


def is_damage(error: Exception) -> bool:
    """Return True if an exception of a reader of archives, or of zstd, means damaged data and not a failing storage."""
    import tarfile  # only damaged data needs these
    import zipfile
    import zlib

    if isinstance(error, OSError):
        return error.errno in (None, errno.EINVAL)  # of bzip2, or of an offset before the file
    # Names, offsets and methods in a damaged archive may be anything.
    kinds = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, IndexError, RuntimeError, ValueError)
    return isinstance(error, kinds) or type(error).__name__ == "LZMAError"  # its module is optional


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
    except Exception as error:
        if not is_damage(error):
            raise StorageError(f"{path}: cannot be read: {error}") from error
        raise TraceFormatError(path, f"this zip archive cannot be read: {error}") from error
    if not traces:
        raise TraceFormatError(path, "this zip archive is empty")
    shown = ", ".join(traces[:_MAX_NAMED]) + (" ..." if len(traces) > _MAX_NAMED else "")
    raise TraceFormatError(
        path,
        f"this zip archive holds {len(traces)} files ({shown}); unpack it, and name the folder or the files to read",
    )


HEAD_BYTES: Final = 4096  # number of first bytes that identify the kind of a file
GZIP_MAGIC: Final = b"\x1f\x8b"
_ZIP_MAGIC: Final = b"PK\x03\x04"
# A frame of zstd, or a skippable one as pzstd writes.
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
_TAR_MAGIC: Final = slice(257, 262)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
# The first plane: its size, its optional number, and its name.
_XSPACE: Final = re.compile(
    rb"\n[\x80-\xff]*[\x00-\x7f](?:\x08[\x80-\xff]*[\x00-\x7f])?\x12[\x00-\x7f](?:/host:|/device:|Task Environment)"
)
# The first bytes of each binary kind.
_BINARY: Final = (
    (_ZIP_MAGIC, "a zip archive (or a file of torch.save); unpack it and merge what is in it"),
    (GZIP_MAGIC, "packed twice with gzip; unpack it once"),
    (b"BZh", "packed with bzip2; unpack it"),
    (b"\xfd7zXZ\0", "packed with xz; unpack it"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it"),
    (b"SQLite format 3\0", "an SQLite database, such as Nsight Systems exports"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "a picture"),
    ((b"\xff\xfe", b"\xfe\xff"), "text in UTF-16; save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file itself with git lfs pull"),
)
# The first bytes of text kinds, after optional white space, in any case.
_TEXT: Final = (
    ((b"<!doctype html", b"<html"), "an HTML page, such as a login or error page that was saved in place of a file"),
    ((b"<?xml", b"<error"), "an XML document, such as the error message of an object store"),
)
# Patterns in the first bytes of kinds of JSON.
_JSON: Final = (
    (re.compile(rb'\A\{\s*"perfetto_manifest"'), "the manifest of an archive; merge the traces beside it"),
    (re.compile(rb'"schema"\s*:\s*"[^"]*chakra'), "an execution trace of torch, which is no timeline"),
    (
        re.compile(rb'"tracekit_index"'),
        "the index of a recording on a remote storage; merge the segments that it names",
    ),
    (re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope'), "a profile for speedscope"),
    (re.compile(rb'\A\{\s*"nodes"(?s:.*)"(?:samples|startTime)"'), "a CPU profile of a browser"),
    (re.compile(rb"\A\[\s*\[[\s\d,.]*\]"), "a memory timeline of torch.profiler, or another table of numbers"),
)
_MEMORY_SNAPSHOT: Final = re.compile(rb"device_traces|segments")


def packing_of(head: bytes) -> str:
    """Return the packing of a file from its first bytes: "gzip", "zstd", "zip" or "tar"; empty for any other file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    if _ZSTD.match(head):
        return "zstd"
    return "tar" if head[_TAR_MAGIC] == b"ustar" else ""


def seems_to_be(head: bytes) -> str:
    """Return the kind of a file that is not a trace, from its first unpacked bytes, and what to do; empty if unknown."""
    if not head.strip(b"\0"):
        return "nothing but zeros, as after a crash of the machine that wrote it" if head else ""
    for magic, words in _BINARY:
        if head.startswith(magic):
            return words
    if packing_of(head) == "tar":
        return "a tar archive; unpack it and merge what is in it"
    if _PICKLE.match(head):
        snapshot = "a memory snapshot of torch; look at it with memory_viz (a pickle)"
        return snapshot if _MEMORY_SNAPSHOT.search(head) else "a pickle of Python"
    text = head.lstrip()
    for starts, words in _TEXT:
        if text[:20].lower().startswith(starts):
            return words
    if text.startswith((b"{", b"[")):
        return next((words for pattern, words in _JSON if pattern.search(text)), "")
    if _XSPACE.match(head):
        return "a protobuf of XLA's profiler (xplane.pb), whose trace.json.gz is not next to it; merge that"
    # The first byte of Perfetto's protobuf is a line break in text.
    return "a protobuf trace of Perfetto (pftrace)" if head.startswith(b"\n") and _CONTROL.search(head) else ""
