"""Read the new whole records of a file that grows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import BytesStream
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.formats.json.reader import TraceReader
from tracekit.traces.trace_store import Entry, Part

if TYPE_CHECKING:
    from tracekit.formats.trace_event import Event
    from tracekit.traces.rank_head import Head

PIECE_BYTES: Final = 1 << 20
"""The size of one read. A longer line is skipped; tracekit's lines have at most some kilobytes."""

_CHECKED_BYTES: Final = 32
_CLOSING: Final = re.compile(rb"\n\]\s*\Z")
_BETWEEN: Final = b"},\n"
_PACKED_BYTES: Final = 256 << 10  # they unpack to megabytes
_MAX_PACKED: Final = 64  # maximum size of a packed file, in windows
_MAX_UNPACKED_BYTES: Final = 32 << 20  # of one read; no trace is packed so densely


class ChangedError(Exception):
    """The file was truncated or written anew: read it from its start."""


class FileTail:
    """A file that is read in whole records, from where the last read ended.

    Each read stops before a comma, because the last comma becomes the closing bracket when a recording ends. The next read
    compares the bytes before that place with those of the last read.
    """

    def __init__(self, entry: Entry, head: Head) -> None:
        self.entry = entry  # as the storage lists it now
        self.head = head
        self.lost_events = head.lost_events  # in its line of losses
        self.packed = entry.path.endswith(".gz")  # packed files are complete
        self.from_ns = -1 if head.first_ns is None else head.first_ns  # the first time in it; negative if unknown
        self.restart()

    def restart(self) -> None:
        """Read it from its start."""
        self.closed = self.packed  # the end of the array was read
        self.unreadable = 0  # places without a readable event
        self.skipped_bytes = 0  # bytes that are never read; of a packed file, unpacked
        self._at = self.head.body_at  # in the unpacked file
        self._seen_bytes = -1  # the size when it was read to its end
        self._checked = b""
        self._is_torn = False  # the place may be inside a record
        self._unpack: _Unpack | None = None

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are not read yet."""
        if self._seen_bytes == self.entry.size_bytes:
            return 0
        if self.packed:
            return self.entry.size_bytes - (0 if self._unpack is None else self._unpack.taken_bytes)
        return max(self.entry.size_bytes - self._at, 1)  # a truncated file is read too

    def skip(self) -> None:
        """Read nothing more of what there is."""
        self.skipped_bytes += max(0, self.entry.size_bytes - self._at)
        self._seen_bytes = self.entry.size_bytes

    def skip_to_last(self, length: int) -> bool:
        """Continue with the last ``length`` bytes; return True if any are skipped."""
        if self.packed:
            if self.unread_bytes > _MAX_PACKED * length:
                self.skip()  # all of it would have to be unpacked
            else:
                self._unpack = self._unpack or _Unpack(self._at, length)
            return True
        start = self.entry.size_bytes - length
        if start <= self._at:
            return False
        self.skipped_bytes += start - self._at
        self._at, self._checked, self._is_torn = start, b"", True
        return True

    def continue_from(self, plain: FileTail) -> None:
        """Continue where the plain file of this packed one ended."""
        self.skipped_bytes, self.unreadable, self.from_ns = plain.skipped_bytes, plain.unreadable, plain.from_ns
        if plain.closed and not plain.unread_bytes:
            self._seen_bytes = self.entry.size_bytes
        else:
            self._at, self._is_torn = plain._at, plain._is_torn
            self._unpack = _Unpack(self._at)

    def next_part(self) -> Part | None:
        """Return the part to read next; None if nothing is new."""
        if not self.unread_bytes:
            return None
        if self.packed:
            self._unpack = self._unpack or _Unpack(self._at)
            start = self._unpack.taken_bytes
            return Part(self.entry.path, start, min(start + _PACKED_BYTES, self.entry.size_bytes))
        start = self._at - len(self._checked)
        return Part(self.entry.path, start, max(self._at + 1, min(self.entry.size_bytes, self._at + PIECE_BYTES)))

    def take(self, part: Part, data: bytes) -> list[Event]:
        """Return the events in the bytes of a part; raise ChangedError if the file is another one."""
        is_last = part.end >= self.entry.size_bytes
        if self._unpack is None:
            if not data.startswith(self._checked) or len(data) + part.start < self._at:
                raise ChangedError
            events = self._take_records(data[len(self._checked) :])
        else:
            unpack = self._unpack
            unpacked, skipped = unpack.take(data, is_last=is_last)
            is_last = is_last or unpack.damaged
            self.unreadable += unpack.damaged
            self.skipped_bytes += skipped
            self._is_torn = self._is_torn or skipped > 0
            events = self._take_records(unpacked) if unpacked is not None else []
        if is_last:
            self._seen_bytes = self.entry.size_bytes
        return events

    def _take_records(self, data: bytes) -> list[Event]:
        """Return the events of the whole records in bytes, and note the place behind them."""
        start = 0
        if self._is_torn:
            start = data.find(_BETWEEN) + 1
            if not start:
                self._pass(data, max(0, len(data) - len(_BETWEEN)))
                return []
            self._is_torn = False
        closing = _CLOSING.search(data, max(start, len(data) - 16))
        self.closed = closing is not None or self.packed
        end = max(start, closing.start() if closing else data.rfind(_BETWEEN, start) + 1)
        if end == start and len(data) - start >= PIECE_BYTES:
            # No tool writes such lines; they must not be read again and again.
            self.unreadable += 1
            self._at += len(data)
            self._checked, self._is_torn = b"", True
            return []
        self._checked = (self._checked + data[:end])[-_CHECKED_BYTES:]
        self._pass(data, end)
        return self._read(data[start:end].lstrip(b",\r\n "))

    def _pass(self, data: bytes, size: int) -> None:
        self._at += size
        if self._unpack is not None:
            self._unpack.held = data[size:]

    def _read(self, records: bytes) -> list[Event]:
        if not records:
            return []
        try:
            with TraceReader(self.entry.path, stream=BytesStream(self.entry.path, b"[" + records)) as reader:
                events = [event for run in reader.runs() for event in run]
                self.unreadable += reader.lost_parts + (reader.tail is not None)
                return events
        except TraceFormatError:
            self.unreadable += 1
            return []


class _Unpack:
    """Unpacks a gzip file in parts, behind bytes that were read before; with a window, only the last bytes of the file."""

    def __init__(self, known_bytes: int, window_bytes: int | None = None) -> None:
        self.taken_bytes = 0  # packed bytes so far
        self.held = b""  # returned before the next ones
        self.damaged = False  # the rest cannot be unpacked
        self._known = known_bytes
        self._window = window_bytes
        self._skipped = 0
        self._inflater: Any = inflater()

    def take(self, data: bytes, *, is_last: bool) -> tuple[bytes | None, int]:
        """Return the next bytes, None if it is too early, and the number of bytes skipped before them."""
        self.taken_bytes += len(data)
        try:
            piece = self._inflater.decompress(data, _MAX_UNPACKED_BYTES)
            self.damaged = len(piece) == _MAX_UNPACKED_BYTES
        except InflateError:
            piece, self.damaged = b"", True
        known = min(len(piece), self._known)
        self._known -= known
        self.held += piece[known:]
        if self._window is not None:
            cut = max(0, len(self.held) - self._window)
            self._skipped += cut
            self.held = self.held[cut:]
            if not is_last and not self.damaged:
                return None, 0
        given, self.held = self.held, b""
        return given, self._skipped
