"""A streaming, tolerant reader of Trace Event Format files: bytes in, runs of events out.

It reads the array form and the object form, plain or gzip, of bounded memory whatever the size. What a strict parser refuses
is repaired event by event, or dropped and counted: the reader never stops at a broken event and never loses one silently.

How a run is cut: the text between the first two events is remembered (Kineto: newline, indent, brace, comma), each
piece of the file is cut at its last occurrence, and the part before is decoded as one JSON array. A wrong cut, inside a
string or inside arguments, cannot pass, since the part before it is then no complete array; it is read event by event.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from tracekit.errors import TraceFormatError
from tracekit.formats.file_kinds import HEAD_BYTES, seems_to_be
from tracekit.formats.json_repair import follow_brackets, object_end, repair_object, repair_text
from tracekit.formats.merged_head import MAX_HEAD_BYTES, begins_merged
from tracekit.formats.trace_event import REFUSED, Event, decode_any, decode_event, decode_run, decode_unusual
from tracekit.formats.trace_stream import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["Finding", "TraceReader"]

_MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
_MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_MAX_REPAIR_BYTES: Final = 1024 * 1024
# How far the end of an event is looked for where it probably is not; less with every event that cannot be read, so that
# the time stays linear in the size of the file, whatever is in it.
_LEAST_REACH_BYTES: Final = 512
# After so many events in a row that cannot be read, and without a known layout, none is repaired any more.
_MAX_MISSES: Final = 1000
# A file that begins with so much, or so many events, of which none can be read is not read any further.
_MAX_UNREADABLE_BYTES: Final = 32 * 1024 * 1024
_MAX_UNREADABLE_EVENTS: Final = 50_000
_SHORT_REACH_BYTES: Final = 16 * 1024

_UTF8_BOM: Final = b"\xef\xbb\xbf"
_EVENTS_KEY: Final = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*(\[|null)')
_GUESSED_BETWEEN: Final = re.compile(
    rb'\n[ \t]*\}[ \t]*,[ \t\r]*\n\s*\{|\}[ \t]*,[ \t\r]*\n?[ \t]*\{[ \t]*"(?:ph|name|cat|pid|tid|ts|args)"'
)
_SEPARATOR: Final = re.compile(rb"[\s,]*")
_CLOSERS: Final = bytes.maketrans(b"{[", b"}]")
_BETWEEN_EVENTS: Final = b" \t\r\n,"
_BEFORE_EVENT: Final = re.compile(rb"[ \t\r\n,]*")
_BETWEEN: Final = re.compile(rb'\s*,\s*\{(?:[ \t]*"[^"\\]{1,20}")?')
_BETWEEN_LINES: Final = re.compile(rb"[ \t\r]*,[ \t\r]*\n\s*\{")
_EVENT_START: Final = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:')
# Texts, numbers and words in front of the first event of an array. An array of other things is no trace.
_STRAY_VALUES: Final = re.compile(
    rb'(?:[ \t\r\n,]*(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)[ \t\r\n]*,)+[ \t\r\n,]*' + _EVENT_START.pattern
)
_TORN: Final = re.compile(rb'\{\s*\\"(?:ph|name|cat|pid|tid|ts|dur|id|args)\\"\s*:')


@dataclass(slots=True)
class Finding:
    """Something wrong in a file, counted.

    Attributes:
        kind: A word for it, for example "unescaped_quote".
        offset_bytes: Where it was met first, in the unpacked file.
        count: How often.
        detail: A sentence, or what stood there.
        event: At which event it was met first, counted from 1; None when it is not in the events.
    """

    kind: str
    offset_bytes: int
    count: int
    detail: str
    event: int | None = None


class _EventsKeys:
    """Finds the key of the events among the keys of the object form, in a text that only grows.

    Args:
        opened: The brackets that are open before the text.
    """

    def __init__(self, opened: bytes) -> None:
        self._opened = bytearray(opened)
        self._followed = self._searched = 0
        self._nested: re.Match[bytes] | None = None

    def find(self, text: bytes) -> re.Match[bytes] | None:
        """Return the key where it is one of the outermost object; those inside of other values are passed over."""
        for match in _EVENTS_KEY.finditer(text, self._searched):
            if not self._opened and self._followed:
                break  # of another document
            follow_brackets(text, self._followed, match.start(), self._opened)
            self._followed = match.start()
            # Where it stands in an array, something is broken.
            if self._opened == b"{" or self._opened.endswith(b"["):
                return match
            if self._nested is None and self._opened and not self._is_sound(text[: match.start()]):
                self._nested = match
        # The key itself may be cut by the end of the piece.
        self._searched = max(self._followed, len(text) - 64)
        return None

    def doubtful(self) -> re.Match[bytes] | None:
        """Return the first key that seems to be inside of another value, but that stands after something broken."""
        return self._nested

    def _is_sound(self, text: bytes) -> bool:
        closers = self._opened[::-1].translate(_CLOSERS)
        try:
            decode_any(text.rstrip(b", \t\r\n") + closers)
        except REFUSED:
            return False
        return True


class TraceReader:
    """Reads one trace. Iterate `runs` once, to its end; then everything else is complete. One thread at a time.

    Args:
        path: A file or URL, plain or gzip: JSON, a native trace of Perfetto, or a dump of torch's flight recorder. The content
            decides, not the name.

    Attributes:
        path: The file, as it may be printed.
        form: "array" or "object".
        compressed: Whether the file is gzip.
        foreign: What the file is instead of Chrome JSON, "pftrace" or "flight recorder", else empty; what is said of bytes is
            then true of the JSON that it was read as.
        header: The top-level keys other than ``traceEvents``, decoded. Those before the events are there from the
            start, those after them once `runs` has ended.
        repairs: What was wrong and could be repaired, without loss.
        drops: Events that could not be read and are lost; ``count`` is the number of places, each one event or more.
        events: How many events were read so far.
        run_text: The run that was yielded last as it stands in the file; None when it was read event by event.
        run_offset_bytes: Where in the unpacked file the run begins that was yielded last.
        bytes_read: How much of the unpacked file was read so far.

    Raises:
        StorageError: The file is not there or cannot be read.
        TraceFormatError: It is no trace.
    """

    def __init__(self, path: str) -> None:
        self._stream = open_trace(path)
        self.path = self._stream.path
        self.compressed = self._stream.compressed
        self.foreign = self._stream.foreign
        self.form = "array"
        self.header: dict[str, Any] = {}
        self.events = 0
        self.run_text: bytes | None = None
        self.run_offset_bytes = 0
        self.bytes_read = 0
        self._reading: list[Event] | None = None  # what was read of the piece that is read event by event
        self._findings: dict[tuple[bool, str], Finding] = {}
        self._separator: bytes | None = None
        self._separator_tail = 0
        self._buffer = b""
        self._offset = 0
        self._ended = False
        self._in_step = True
        self._reach_bytes = _SHORT_REACH_BYTES
        self._misses = 0
        try:
            self._open()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It is also closed when `runs` ends."""
        self._stream.close()

    @property
    def repairs(self) -> list[Finding]:
        """What was repaired, in order of kind."""
        return [self._findings[key] for key in sorted(self._findings) if not key[0]]

    @property
    def drops(self) -> list[Finding]:
        """What was lost, in order of kind."""
        found = [self._findings[key] for key in sorted(self._findings) if key[0]]
        return found + [Finding(kind, 0, count, "") for kind, count in sorted(self._stream.losses.items())]

    def runs(self) -> Iterator[list[Event]]:
        """Yield the events of the file, run by run, in the order of the file.

        Raises:
            StorageError: The file can no longer be read.
        """
        return cast("Iterator[list[Event]]", self._close_after(self._runs(None, None)))

    def runs_or_taken(self, take: Callable[[bytes], int]) -> Iterator[list[Event] | bytes]:
        """Yield the same runs as `runs`, but as they stand in the file where ``take`` did what there is to do.

        Args:
            take: Given a run as it stands in the file, before it is decoded. It returns how many events that are, or 0 if it
                does not accept the run; what it accepts must be what `decode_run` decodes.

        Raises:
            StorageError: The file can no longer be read.
        """
        return self._close_after(self._runs(None, take))

    def runs_or_text(self, text_size: Callable[[int], int]) -> Iterator[list[Event] | bytes]:
        """Yield the same runs as `runs`, but some of them as they stand in the file, not decoded.

        Args:
            text_size: How long the text of a run is, by its number from 0; 0 where it is not wanted as text. It must have been
                decoded before, with a `run_text` of this size: nothing else is checked.

        Raises:
            StorageError: The file can no longer be read.
        """
        return self._close_after(self._runs(text_size, None))

    def _close_after(self, runs: Iterator[list[Event] | bytes]) -> Iterator[list[Event] | bytes]:
        try:
            yield from runs
        finally:
            self._stream.close()

    # The head of the file, up to the first event.

    def _open(self) -> None:
        if not self._more():
            damage = self._stream.damage
            raise TraceFormatError(
                self.path, f"{damage}; tracekit recover saves what can be read" if damage else "the file is empty"
            )
        head = self._buffer[:HEAD_BYTES]
        if self._buffer.startswith(_UTF8_BOM):
            self._skip(len(_UTF8_BOM))
            self._note("byte_order_mark", 0, "UTF-8 byte order mark")
        while not self._buffer.lstrip():
            self._skip_space()
            if not self._more():
                raise TraceFormatError(self.path, "the file holds nothing but white space")
        self._skip(len(self._buffer) - len(self._buffer.lstrip()))
        if self._buffer.startswith(b"["):
            self._skip(1)
            self._check_array()
        elif self._buffer.startswith(b"{"):
            self.form = "object"
            self._read_head()
        else:
            seen = seems_to_be(head)
            words = f"it seems to be {seen}" if seen else "JSON traces begin with [ or {"
            raise TraceFormatError(self.path, f"this is no trace: {words}", offset_bytes=self._offset)

    def _skip_space(self) -> None:
        """Pass over a buffer of nothing but white space."""
        self._skip(len(self._buffer))
        if self._offset > _MAX_UNREADABLE_BYTES:
            raise TraceFormatError(
                self.path, f"this is no trace: {self._offset} bytes of it are nothing but white space"
            )

    def _check_array(self) -> None:
        while not self._buffer.strip(_BETWEEN_EVENTS):
            self._skip_space()
            if not self._more():
                break
        first = self._buffer.lstrip(b" \t\r\n,")[:1]
        if first not in (b"{", b"]", b"") and not _STRAY_VALUES.match(self._buffer, 0, HEAD_BYTES):
            seen = seems_to_be(b"[" + self._buffer[:HEAD_BYTES])
            words = f"it seems to be {seen}" if seen else "the array holds no events"
            raise TraceFormatError(self.path, f"this is no trace: {words}", offset_bytes=self._offset)

    def _read_head(self) -> None:
        keys = _EventsKeys(b"")
        limit = MAX_HEAD_BYTES if begins_merged(self._buffer) else _MAX_HEADER_BYTES
        while True:
            match = keys.find(self._buffer)
            if match:
                break
            # Twice as much each time, so that the work stays linear.
            if len(self._buffer) > limit or not self._more(len(self._buffer)):
                match = keys.doubtful()
                if match:
                    break
                seen = seems_to_be(self._buffer[:HEAD_BYTES])
                raise TraceFormatError(
                    self.path,
                    (f"this is no trace: it seems to be {seen}; " if seen else "this is no trace: ")
                    + f"no traceEvents in its first {len(self._buffer)} bytes"
                    + (f" ({self._stream.damage})" if self._stream.damage else ""),
                )
        self._read_header(self._buffer[: match.start()].rstrip(b" \t\r\n,") + b"}", self._offset)
        self._begin_events(match)

    def _begin_events(self, key: re.Match[bytes]) -> None:
        self._ended = key[1] == b"null"
        self._separator = None
        self._skip(key.end())

    def _read_header(self, text: bytes, offset: int) -> None:
        text, kinds = repair_text(text)
        try:
            header = decode_any(text)
        except REFUSED:
            repaired = repair_object(text, 0, len(text))
            header = {}
            if repaired is not None:
                kinds += repaired[2]
                try:
                    header = decode_any(repaired[0])
                except REFUSED:
                    repaired = None
            if repaired is None:
                kinds = []
                header = self._read_header_lines(text)
                self._note("unreadable_header", offset, "some of the keys beside traceEvents cannot be read", lost=True)
        for kind in kinds:
            self._note(kind, offset, "in the keys beside traceEvents")
        if isinstance(header, dict):
            self.header.update(header)

    @staticmethod
    def _read_header_lines(text: bytes) -> dict[str, Any]:
        """Read what can be read of a header that cannot be repaired as a whole: one key a line, as Kineto writes it."""
        found: dict[str, Any] = {}
        for line in text.splitlines():
            with contextlib.suppress(*REFUSED):
                found.update(decode_any(b"{" + line.strip().strip(b",{}") + b"}"))
        return found

    # The events.

    def _runs(
        self, text_size: Callable[[int], int] | None, take: Callable[[bytes], int] | None
    ) -> Iterator[list[Event] | bytes]:
        wanted = 0
        count = 0
        more = final = True
        while self._ended or more or not final:
            if self._ended:
                if not self._read_tail():
                    return
                more = final = True
                continue
            # At the end, what holds complete events is read first, like all before it, and then what is left.
            final = not more
            more = self._more()
            # An event larger than a piece: read on until the buffer has doubled, so that the work stays linear.
            if more and len(self._buffer) < wanted:
                continue
            cut = len(self._buffer) if final else self._cut()
            run = self._take(cut, take, final=final, text_size=0 if text_size is None else text_size(count))
            if run:
                yield run
                count += 1
            wanted = 2 * len(self._buffer)
            if not count and (self.bytes_read > _MAX_UNREADABLE_BYTES or self._misses > _MAX_UNREADABLE_EVENTS):
                # Packed, such a file can be a thousand times as large as it seems.
                words = f"no event in the first {self.bytes_read} bytes; the rest is not read"
                self._note("broken_event", self._offset, words, lost=True)
                return
        what = self._stream.damage or f"the {self.form} is not closed"
        self._note("cut_file", self._offset, what)

    def _take(
        self, cut: int, take: Callable[[bytes], int] | None, *, final: bool, text_size: int
    ) -> list[Event] | bytes:
        """Return the events of the buffer up to ``cut``; what does not form events yet stays in the buffer."""
        self.run_offset_bytes = self._offset
        self.run_text = None
        between = _BEFORE_EVENT.match(self._buffer)
        start, end = between.end() if between else 0, cut
        while end > start and self._buffer[end - 1] in _BETWEEN_EVENTS:  # a run is large: it is copied once
            end -= 1
        body = self._buffer[start:end]
        if len(body) == text_size > 0:
            self._skip(cut)
            return body
        used = cut
        body, kinds = repair_text(body)
        run: list[Event] | bytes | None = None
        count = 0
        if not kinds:  # what is repaired is told by event and byte, so it is read event by event
            if take is not None and body:
                count = take(body)
            if count:
                run = body
            else:
                with contextlib.suppress(*REFUSED):
                    run = decode_run(body)
                    self.run_text = body
        if run is None:
            run, used = self._read_one_by_one(self._buffer[:cut], final=final)
        else:
            self._in_step = True
            self._reach_bytes = _SHORT_REACH_BYTES
            self._misses = 0
        self._reading = None
        self._skip(used)
        self.events += count or len(run)
        return run

    def _cut(self) -> int:
        """Return where the last event in the buffer that is known to be complete ends, or the end of the buffer."""
        buffer = self._buffer
        if self._separator is None:
            self._learn_separator()
        if self._separator is not None:
            at = buffer.rfind(self._separator)
            if at < 0:
                # The layout has changed, or an event is larger than the buffer.
                self._learn_separator(guess=False)
                at = buffer.rfind(self._separator)
            if at >= 0:
                return at + len(self._separator) - self._separator_tail
        # The layout is unknown: let the reading event by event find the ends.
        return len(buffer)

    def _learn_separator(self, *, guess: bool = True) -> None:
        start = self._buffer.find(b"{")
        end = object_end(self._buffer, start, len(self._buffer)) if start >= 0 else -1
        between = _BETWEEN_LINES.match(self._buffer, end) or _BETWEEN.match(self._buffer, end) if end > 0 else None
        if between is None:
            # The first event is broken, or cut by the end of the piece.
            found = _GUESSED_BETWEEN.search(self._buffer) if guess else None
            if found is not None:
                self._separator = found[0]
                self._separator_tail = len(found[0]) - found[0].index(b"}") - 1
            return
        # White space before the closing brace is part of the layout: "\n  }".
        close = end - 1
        while close > start and self._buffer[close - 1] in b" \t\r\n":
            close -= 1
        self._separator = self._buffer[close : between.end()]
        self._separator_tail = between.end() - end

    def _read_one_by_one(self, text: bytes, *, final: bool) -> tuple[list[Event], int]:
        """Read events singly, repairing what is broken.

        Returns:
            The events, and how much of ``text`` is dealt with; the rest needs more of the file.
        """
        events: list[Event] = []
        self._reading = events
        at = 0
        while True:
            space = _SEPARATOR.match(text, at)
            start = space.end() if space else at
            if events and b"," not in text[at:start] and text[start : start + 1] == b"{" and at > 0:
                self._note("missing_comma", self._offset + start, "between two events")
            at = start
            if at >= len(text):
                return events, len(text)
            if text[at] == ord("]"):
                if b"," in text[at - 1 : at] or (space and b"," in space[0]):
                    self._note("trailing_comma", self._offset + at, "after the last event")
                self._ended = True
                return events, at
            if text[at] == ord("{"):
                end = self._read_event(text, at, events, final=final)
                if end > 0:
                    at = end
                    continue
                if end == 0 and not final and len(text) - at < _MAX_EVENT_BYTES:
                    return events, at
            resume = self._resume(text, at + 1)
            if resume < 0:
                if not final and len(text) - at < _MAX_EVENT_BYTES:
                    return events, at
                resume = len(text)
            whole = text[at] == ord("{")
            kind = ("cut_event" if final and resume == len(text) else "broken_event") if whole else "not_an_event"
            self._note(kind, self._offset + at, text[at : at + 60].decode(errors="replace"), lost=True)
            self._in_step = False
            self._reach_bytes = max(self._reach_bytes // 2, _LEAST_REACH_BYTES)
            self._misses += 1
            at = resume

    def _read_event(self, text: bytes, start: int, events: list[Event], *, final: bool) -> int:
        """Read one event and append it.

        Returns:
            Where it ends; 0 when it may be complete with more of the file; -1 when it cannot be read.
        """
        # The repair must not run past the event; where the layout is known, the next separator is its limit.
        limit = min(len(text), start + _MAX_REPAIR_BYTES)
        separator = -1 if self._separator is None else text.find(self._separator, start, limit)
        if self._separator is not None and separator >= 0:
            end = separator + len(self._separator) - self._separator_tail
            event = self._decode_one(text[start:end], start)
            if event is not None:
                events.append(event)
                return end
            repaired = self._repair_one(text, start, end, events)
            if repaired > 0:
                return repaired
            reach = end + self._reach_bytes
        else:
            # After an event that could not be read, quotes may be odd for long: do not search all of the text each time.
            reach = len(text) if self._in_step else start + self._reach_bytes
        end = object_end(text, start, min(len(text), reach))
        if end > 0:
            event = self._decode_one(text[start:end], start)
            if event is not None:
                events.append(event)
                return end
        if separator >= 0:
            return -1
        patience = _MAX_REPAIR_BYTES if self._in_step else self._reach_bytes
        if end < 0 and not final and len(text) - start < patience:
            return 0
        if self._misses > _MAX_MISSES:
            return -1
        return self._repair_one(text, start, limit if self._in_step else min(limit, reach), events)

    def _repair_one(self, text: bytes, start: int, limit: int, events: list[Event]) -> int:
        """Repair one event and append it; returns where it ends, or -1."""
        repaired = repair_object(text, start, limit)
        if repaired is None or _TORN.search(repaired[0]):
            return -1
        body, end, kinds = repaired
        event = self._decode_one(body, start)
        if event is None:
            return -1
        for kind in kinds:
            self._note(kind, self._offset + start, "in an event")
        events.append(event)
        return end

    def _decode_one(self, text: bytes, start: int) -> Event | None:
        text, kinds = repair_text(text)
        try:
            event = decode_event(text)
        except REFUSED:
            try:
                event = decode_unusual(text)
            except REFUSED:
                return None
        for kind in kinds:
            self._note(kind, self._offset + start, "in an event")
        return event

    def _resume(self, text: bytes, at: int) -> int:
        """Return where the next event may begin, or -1."""
        if self._separator is not None:
            separator = text.find(self._separator, at)
            torn = text.find(b'{"ph"', at)
            if separator >= 0 and not 0 <= torn < separator:
                return separator + len(self._separator) - self._separator_tail
        match = _EVENT_START.search(text, at)
        return match.start() if match else -1

    # The end of the file.

    def _read_tail(self) -> bool:
        """Read what follows the closing bracket, the further keys of the object form; returns whether events are among them."""
        if self._buffer.startswith(b"]"):
            self._skip(1)
        offset = self._offset
        keys = _EventsKeys(b"{") if self.form == "object" else None
        while True:
            match = keys.find(self._buffer) if keys is not None else None
            if match:
                self._note("second_events", offset + match.start(), "traceEvents stands twice; both are read")
                self._read_header(b"{" + self._buffer[: match.start()].strip(b", \t\r\n") + b"}", offset)
                self._begin_events(match)
                return True
            if not self._more():
                break
            if len(self._buffer) > _MAX_HEADER_BYTES:
                self._note("data_after_end", offset, "data after the events is passed over", lost=True)
                self._skip(len(self._buffer))
                keys = None
        text = self._buffer.strip(b" \t\r\n\0")
        if self.form == "object":
            if self._stream.damage or not text.endswith(b"}"):
                self._note("cut_file", offset, self._stream.damage or "the object is not closed")
                text = text.rstrip(b",") + b"}"
            text = b"{" + text.lstrip(b", \t\r\n")
            end = object_end(text, 0, len(text))
            if 0 < end < len(text):
                self._note("data_after_end", offset + end, "data after the object is passed over", lost=True)
                text = text[:end]
            self._read_header(text, offset)
        elif self._stream.damage:
            self._note("cut_file", offset, self._stream.damage)
        elif text:
            self._note("data_after_end", offset, "data after the array's closing bracket is passed over", lost=True)
        return False

    # Small helpers.

    def _more(self, missing: int = 1) -> bool:
        """Read on until so many bytes have come, in pieces; tell whether any has."""
        pieces = [self._buffer]
        while missing > 0 and (piece := self._stream.read()):
            pieces.append(piece)
            missing -= len(piece)
            self.bytes_read += len(piece)
        self._buffer = b"".join(pieces)
        return len(pieces) > 1

    def _skip(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count

    def _note(self, kind: str, offset: int, detail: str, *, lost: bool = False) -> None:
        finding = self._findings.get((lost, kind))
        if finding is None:
            event = None if self._reading is None else self.events + len(self._reading) + 1
            self._findings[lost, kind] = Finding(kind, offset, 1, detail, event)
        else:
            finding.count += 1
