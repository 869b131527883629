"""TraceFile: one file of a rank trace, of which only what is new is read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.formats.trace_event import Event, decode_lines
from tracekit.watching.places import Part

if TYPE_CHECKING:
    from tracekit.watching.heads import Head
    from tracekit.watching.places import Entry

__all__ = ["PIECE_BYTES", "ChangedError", "TraceFile"]

PIECE_BYTES: Final = 1 << 20
"""How much is read at once. A line that is longer is passed over; tracekit writes none beyond some kilobytes."""

_CHECKED_BYTES: Final = 32
_CLOSING: Final = re.compile(rb"\n\]\s*\Z")
_BETWEEN: Final = b"},\n"
_PACKED_BYTES: Final = 256 << 10  # read at once of a packed file, of which megabytes come
_MOST_PACKED: Final = 64  # times as large as the part that is wanted may a packed file be
_MOST_UNPACKED_BYTES: Final = 32 << 20  # what comes of that; no trace is packed so densely


class ChangedError(Exception):
    """What was read before is not there any more: the file was cut back or written anew. Begin again."""


class TraceFile:
    """A file that is read as it grows, from where it was left, in whole records.

    The place between two records is *before* the comma: when a recording ends, its last comma becomes the closing bracket. The
    bytes before that place are looked at again each time: if they are others, the file is another.

    Args:
        entry: As the storage lists it.
        head: What its first lines say.

    Attributes:
        entry: As the storage lists it now.
        head: What its first lines say.
        lost_events: How many events its line of losses tells of.
        closed: Whether the end of the array is there.
        unreadable: How many lines are no events.
        skipped_bytes: How much was passed over; of a packed file, unpacked.
        packed: Whether it is gzip. Packed files are complete.
        from_ns: When it begins; negative where that is not known.
    """

    def __init__(self, entry: Entry, head: Head) -> None:
        self.entry = entry
        self.head = head
        self.lost_events = head.lost_events
        self.packed = entry.path.endswith(".gz")
        self.closed = self.packed
        self.from_ns = -1 if head.first_ns is None else head.first_ns
        self.unreadable = 0
        self.skipped_bytes = 0
        self._at = head.body_at  # in the unpacked file
        self._seen_bytes = -1  # how long the file was when it was read to its end
        self._checked = b""
        self._torn = False  # the next record begins somewhere
        self._unpack: _Unpack | None = None

    @property
    def unread_bytes(self) -> int:
        """How much has not been read yet."""
        if self._seen_bytes == self.entry.size_bytes:
            return 0
        if self.packed:
            return self.entry.size_bytes - (0 if self._unpack is None else self._unpack.taken_bytes)
        # A file that was cut back has to be looked at, too.
        return max(self.entry.size_bytes - self._at, 1)

    def pass_over(self) -> None:
        """Take it as read: whatever it holds is of no interest."""
        self.skipped_bytes += max(0, self.entry.size_bytes - self._at)
        self._seen_bytes = self.entry.size_bytes

    def skip_to_last(self, length: int) -> bool:
        """Go on with the last so many bytes; return whether anything is passed over."""
        if self.packed and self.unread_bytes > _MOST_PACKED * length:
            self.pass_over()  # it would all have to be unpacked
            return True
        if self.packed:
            self._unpack = self._unpack or _Unpack(self._at, length)
            return True
        start = self.entry.size_bytes - length
        if start <= self._at:
            return False
        self.skipped_bytes += start - self._at
        self._at = start
        self._checked, self._torn = b"", True
        return True

    def go_on_from(self, plain: TraceFile) -> None:
        """Go on where the plain file was left of which this is the packed one."""
        self.skipped_bytes, self.unreadable = plain.skipped_bytes, plain.unreadable
        if plain.closed and not plain.unread_bytes:
            self._seen_bytes = self.entry.size_bytes
        else:
            self._at, self._torn = plain._at, plain._torn
            self._unpack = _Unpack(self._at, None)

    def next_part(self) -> Part | None:
        """Return what to read next; None when there is nothing new."""
        if not self.unread_bytes:
            return None
        if self.packed:
            self._unpack = self._unpack or _Unpack(self._at, None)
            start = self._unpack.taken_bytes
            return Part(self.entry.path, start, min(start + _PACKED_BYTES, self.entry.size_bytes))
        start = self._at - len(self._checked)
        return Part(self.entry.path, start, max(self._at + 1, min(self.entry.size_bytes, self._at + PIECE_BYTES)))

    def take(self, part: Part, data: bytes) -> list[Event]:
        """Return the new events.

        Args:
            part: What `next_part` has asked for.
            data: What there was.

        Raises:
            ChangedError: The file is another.
        """
        whole = part.end >= self.entry.size_bytes
        if self.packed:
            return self._take_packed(data, whole=whole)
        if not data.startswith(self._checked) or len(data) + part.start < self._at:
            raise ChangedError
        events = self._take_records(data[len(self._checked) :], whole=whole)
        if whole:
            self._seen_bytes = self.entry.size_bytes
        return events

    def _take_packed(self, data: bytes, *, whole: bool) -> list[Event]:
        assert self._unpack is not None
        unpacked, skipped = self._unpack.take(data, whole=whole)
        self.unreadable += self._unpack.damaged
        if skipped:
            self.skipped_bytes += skipped
            self._torn = True
        if whole or self._unpack.damaged:
            self._seen_bytes = self.entry.size_bytes
        return [] if unpacked is None else self._take_records(unpacked, whole=whole)

    def _take_records(self, data: bytes, *, whole: bool) -> list[Event]:
        """Return the events of bytes that follow those before; keeps in mind up to where they are complete."""
        start = 0
        if self._torn:
            start = data.find(_BETWEEN) + 1
            if not start:
                passed = max(0, len(data) - len(_BETWEEN))
                self._at += passed
                self._keep(data[passed:])
                return []
            self._torn = False
        closing = _CLOSING.search(data, max(start, len(data) - 16))
        self.closed = closing is not None or self.packed
        end = closing.start() if closing else data.rfind(_BETWEEN, start) + 1
        if end <= start:
            end = start
            if len(data) - start >= PIECE_BYTES:
                # Nobody writes such lines; whatever it is must not be read again and again.
                self.unreadable += 1
                self._at += len(data)
                self._checked, self._torn = b"", True
                return []
        self._at += end
        self._checked = (self._checked + data[:end])[-_CHECKED_BYTES:]
        self._keep(data[end:])
        events, refused = decode_lines(data[start:end].lstrip(b",\r\n "))
        self.unreadable += refused
        return events

    def _keep(self, data: bytes) -> None:
        if self._unpack is not None:
            self._unpack.held = data


class _Unpack:
    """Unpacks a gzip file bit by bit.

    Args:
        passed_bytes: How much of the unpacked file is known already.
        window_bytes: Wait for the end, and give the last so many bytes only; None gives all, as it comes.

    Attributes:
        taken_bytes: How much of the packed file has come.
        held: Bytes that come before those that follow.
        damaged: Whether the rest of the file cannot be unpacked.
    """

    def __init__(self, passed_bytes: int, window_bytes: int | None) -> None:
        self.taken_bytes = 0
        self.held = b""
        self.damaged = False
        self._to_pass = passed_bytes
        self._window = window_bytes
        self._skipped = 0
        self._inflater: Any = inflater()

    def take(self, data: bytes, *, whole: bool) -> tuple[bytes | None, int]:
        """Return the bytes that follow, None if it is too early to tell, and how many before them were passed over."""
        self.taken_bytes += len(data)
        try:
            piece = self._inflater.decompress(data, _MOST_UNPACKED_BYTES)
            self.damaged = len(piece) == _MOST_UNPACKED_BYTES
        except InflateError:
            piece, self.damaged = b"", True
        passed = min(len(piece), self._to_pass)
        self._to_pass -= passed
        self.held += piece[passed:]
        if self._window is not None and len(self.held) > self._window:
            self._skipped += len(self.held) - self._window
            self.held = self.held[-self._window :]
        if self._window is not None and not whole and not self.damaged:
            return None, 0
        given, self.held = self.held, b""
        return given, self._skipped
