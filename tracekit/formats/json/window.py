"""Find where JSON values end; a window of the text of a trace, and a record of the damage in it."""

from __future__ import annotations

import json
import re
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tracekit import core
from tracekit.formats.byte_stream import Closing
from tracekit.formats.trace_event import REFUSED, decode_raw, decode_raw_list
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.formats.byte_stream import TraceStream

LOOK_AHEAD_BYTES: Final = 256  # the maximum length of the texts that tell what begins at a place
_MAX_KEPT_LOSSES: Final = 1000
# The reader gives up a file that begins with this many bytes, or broken events, without a readable one.
_MAX_UNREADABLE_BYTES: Final = 32 * 1024 * 1024
_MAX_UNREADABLE_EVENTS: Final = 50_000
_KEPT_BYTES: Final = 2  # in front of `at`, for patterns that look back
_SHOWN_BYTES: Final = 60
_OF_FILE: Final = frozenset({"cut_file", "second_events"})
_SPACE: Final = b" \t\r\n"
_SEPARATOR: Final = re.compile(rb"[ \t\r\n,]*")


class Finding(Struct):
    """One kind of damage in a file, counted, with its first place in the unpacked file."""

    kind: str  # for example "unescaped_quote"
    offset_bytes: int
    count: int
    detail: str  # a sentence, or the first characters of the damage
    event: int | None = None  # the number of the first damaged event, from 1; None for damage outside of the events


class LostBytes(Struct, frozen=True):
    """A part of the unpacked file that could not be read."""

    offset_bytes: int
    length_bytes: int
    events: int  # that seem to begin in it, a lower bound
    begins: str


class Window(Closing):
    """A part of an unpacked file, read from front to back. `TraceReader` documents the attributes."""

    def __init__(self, stream: TraceStream) -> None:
        self._stream = stream
        self.text = b""
        self.at = 0
        self.final = False
        self.bytes_read = 0
        self.events = 0
        self.in_events = False
        self.losses: list[LostBytes] = []
        self.lost_parts = self.lost_events = self.lost_bytes = 0
        self._offset = 0  # of the text
        self._findings: dict[tuple[bool, str], Finding] = {}
        self._commas = 0  # since the last event
        self._expects_comma = False
        # The part that is being passed over: its beginning, its first characters, the events and places in it.
        self._lost_from: int | None = None
        self._lost_event = 0
        self._begins = b""
        self._phases = 0
        self._broken_places = 0

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def fill(self, wanted_bytes: int = 0) -> bool:
        """Drop the window up to `at`, and append a piece, or until ``wanted_bytes`` follow; return False at the file's end."""
        kept = max(0, self.at - _KEPT_BYTES)
        rest = self.text[kept:]
        self._offset += kept
        self.at -= kept
        missing = wanted_bytes - len(rest) + self.at
        pieces: list[bytes] = []
        while not self.final and (not pieces or missing > 0):
            piece = b"" if self._is_hopeless() else self._stream.read()
            self.final = not piece or self._stream.ended
            pieces.append(piece)
            missing -= len(piece)
            self.bytes_read += len(piece)
        self.text = b""  # a large event takes much memory
        self.text = b"".join([rest, *pieces] if rest else pieces)  # a piece alone is not copied
        return len(self.text) > len(rest)

    def pass_events(self, at: int) -> None:
        """Go to a place in the window, behind events that the caller has read, and at most one comma behind each."""
        passed = self.text[max(self.at, at - LOOK_AHEAD_BYTES) : at].strip(_SPACE)
        if not passed and at - self.at > LOOK_AHEAD_BYTES:
            passed = self.text[self.at : at].strip(_SPACE)
        self.at = at
        if passed == b",":
            self._commas += 1
        elif passed:
            self._commas = int(passed.endswith(b","))
            self._expects_comma = True
            self.events += 1

    def _look_ahead(self, length: int) -> None:
        """Read on until the window holds this much from `at` on, or the rest of the file."""
        if len(self.text) - self.at < length and not self.final:
            self.fill(length)

    def _read_on(self, max_bytes: int) -> bool:
        """Double the window, so that the work stays linear; return False at a limit."""
        length = len(self.text) - self.at
        return length < max_bytes and not self.final and self.fill(min(2 * length, max_bytes) + 1)

    def _skip_separator(self) -> bool:
        """Skip white space, and commas, which are counted; return False at the end of the file."""
        while True:
            separator = _SEPARATOR.match(self.text, self.at)
            assert separator is not None
            self._commas += separator[0].count(b",")
            self.at = separator.end()
            if self.at < len(self.text):
                return True
            if not self.fill():
                return False

    def _is_hopeless(self) -> bool:
        """Return True if too much of the beginning is unreadable. A packed file can be a thousand times its size."""
        return not self.events and (
            (self.bytes_read > _MAX_UNREADABLE_BYTES and (self.in_events or not self.text.strip()))
            or self._broken_places > _MAX_UNREADABLE_EVENTS
        )

    def _looks_like(self, pattern: re.Pattern[bytes]) -> bool:
        self._look_ahead(LOOK_AHEAD_BYTES)
        return pattern.match(self.text, self.at) is not None

    def _find_end(self, ahead: int, max_bytes: int) -> int | None:
        """Return the end of the value ``ahead`` bytes further, reading on up to a limit; None if it is broken."""
        while True:
            end, is_whole = scan_value(self.text, self.at + ahead)
            if is_whole:
                return end
            if end < len(self.text) or not self._read_on(max_bytes):
                return None

    # The record of damage.

    @property
    def repairs(self) -> list[Finding]:
        """Damage that was repaired without loss, in order of kind."""
        return [self._findings[key] for key in sorted(self._findings) if not key[0]]

    @property
    def drops(self) -> list[Finding]:
        """Damage that lost events, in order of kind; each place is one event or more."""
        found = [self._findings[key] for key in sorted(self._findings) if key[0]]
        return found + [Finding(kind, 0, count, "") for kind, count in sorted(self._stream.losses.items())]

    def _lose(self) -> None:
        """Record that the file is unreadable from the present place on."""
        if self._lost_from is None:
            self._look_ahead(_SHOWN_BYTES)
            self._lost_from, self._lost_event, self._phases = self._offset + self.at, self.events + 1, 0
            self._begins = self.text[self.at : self.at + _SHOWN_BYTES]

    def _loss(self) -> LostBytes:
        assert self._lost_from is not None
        length = self._offset + self.at - self._lost_from
        # Count an event that is torn before its phase.
        events = max(self._phases, int(self._begins.startswith(b"{")))
        return LostBytes(self._lost_from, length, events, self._begins[:length].decode(errors="replace"))

    def _found(self) -> None:
        """Record that the file is readable again from the present place on."""
        if self._lost_from is None:
            return
        loss = self._loss()
        self._lost_from = None
        self.lost_parts += 1
        self.lost_events += loss.events
        self.lost_bytes += loss.length_bytes
        if len(self.losses) < _MAX_KEPT_LOSSES:
            self.losses.append(loss)
        if self.in_events:
            kind = "broken_event" if loss.begins.startswith("{") else "not_an_event"
            self._note(kind, loss.offset_bytes, loss.begins, lost=True, event=self._lost_event)
        else:
            self._note("unreadable_header", loss.offset_bytes, loss.begins, lost=True)

    def _note_commas(self, expected: int, where: str) -> None:
        commas, self._commas = self._commas, 0
        if commas != expected and self._lost_from is None:
            kind = "missing_comma" if commas < expected else "trailing_comma"
            self._note(kind, self._offset + self.at, where)

    def _note_all(self, kinds: list[str], detail: str) -> None:
        for kind in kinds:
            self._note(kind, self._offset + self.at, detail)

    def _note(self, kind: str, offset: int, detail: str, *, lost: bool = False, event: int | None = None) -> None:
        finding = self._findings.get((lost, kind))
        if finding is None:
            if event is None and self.in_events and not lost and kind not in _OF_FILE:
                event = self.events + 1
            self._findings[lost, kind] = Finding(kind, offset, 1, detail, event)
        else:
            finding.count += 1


_FIRST_BYTES: Final = 4096
_END_BYTES: Final = 64 * 1024
_MAX_TRIES: Final = 4
_LARGE_BYTES: Final = 1024 * 1024
# Python's decoder gives up on some values a few characters before the end of the text.
_UNDECIDED_BYTES: Final = 12
_CUT: Final = "Input data was truncated"  # msgspec
_COMMA: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_BETWEEN: Final = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*\{")
_AFTER_NUMBER: Final = frozenset(" \t\r\n,}]")


def _refuse(word: str) -> None:
    raise ValueError(word)


# The text is read as Latin-1: a character is a byte. Numbers stay text: they may have any length.
_decode_at = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse).raw_decode


def find_events(text: bytes, at: int, max_bytes: int = 1 << 62) -> tuple[Sequence[int], int]:
    """Find whole, well-formed events from ``at`` on: objects with one comma between them.

    Args:
        text: The text.
        at: The beginning of the first event.
        max_bytes: The maximum distance from there to the beginning of an event.

    Returns:
        The begin and end of each, in turn; and the byte at which the next one breaks, which is the end of the text if it is cut.
    """
    spans = array("q")
    limit = min(at + max_bytes, len(text))
    while at < limit and text.startswith(b"{", at):
        if core.merge is not None:
            found = core.merge.find_events(text, at, limit)
        else:
            found = b"" if spans else _find_events(text, at, limit)
        if found:
            spans.frombytes(found)
        else:  # the core leaves unusual events to Python
            end, is_whole = scan_value(text, at)
            if not is_whole:
                return spans, end
            spans.extend((at, end))
        comma = _COMMA.match(text, spans[-1])
        if comma is None:
            return spans, spans[-1]
        at = comma.end()
    return spans, at


def _find_events(text: bytes, at: int, limit: int) -> bytes:
    """Decode the events together up to a place that looks like the end of one; a wrong place is refused."""
    spans = array("q")
    for between in [*_BETWEEN.finditer(text, max(at, limit - _END_BYTES), limit)][: -_MAX_TRIES - 1 : -1]:
        with suppress(*REFUSED):
            for raw in decode_raw_list(b"[%b]" % text[at : between.start() + 1]):
                if text[at] != ord("{"):
                    break
                spans.extend((at, at + len(raw)))
                comma = _COMMA.match(text, spans[-1])
                at = comma.end() if comma else spans[-1]
            break
    return spans.tobytes()


def scan_value(text: bytes, at: int) -> tuple[int, bool]:
    """Return the end of the value at ``at``, and True; or the byte at which it breaks, and False.

    A value that is cut breaks at the end of the text. So does a number before it, which may go on.
    """
    if core.merge is not None and text.startswith(b"{", at) and (found := core.merge.find_events(text, at, at + 1)):
        return array("q", found)[1], True
    length = _FIRST_BYTES
    while True:
        if length == 4 * _LARGE_BYTES and _is_cut(text, at):  # once, when the value is known to be large
            return len(text), False
        part = text[at : at + length].decode("latin-1")
        try:
            end = _decode_at(part)[1]
        except json.JSONDecodeError as error:
            if error.pos < len(part) - _UNDECIDED_BYTES and not error.msg.startswith("Unterminated"):
                return at + error.pos, False
        except (ValueError, RecursionError):
            return at, False
        else:
            if part[0] not in "-0123456789" or part[end : end + 1] in _AFTER_NUMBER:
                return at + end, True
            if end < len(part) - _UNDECIDED_BYTES:
                return at + end, False
        if at + length >= len(text):
            return len(text), False
        length *= 4


def _is_cut(text: bytes, at: int) -> bool:
    """Return True if the value at ``at`` is certainly cut. Unlike Python's decoder, it takes no memory for a large value."""
    try:
        decode_raw(memoryview(text)[at:])
    except REFUSED as error:
        return str(error) == _CUT and b"\\u" not in text  # half a surrogate pair has the same message
    return False
