"""A streaming, tolerant reader of the Trace Event Format, in bounded memory: bytes in, runs of events out.

`find_events` finds the whole, well-formed events of a window, which are decoded together. Anything else is read as one event:
repaired where that is possible, else the bytes up to the next event are lost, and recorded with their place.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import HEAD_BYTES, seems_to_be
from tracekit.formats.json.repair import repair_object, repair_text
from tracekit.formats.json.window import LOOK_AHEAD_BYTES, LostBytes, Window, find_events
from tracekit.formats.merged_head import MAX_HEAD_BYTES, MERGED_KEY
from tracekit.formats.trace_event import REFUSED, Event, decode_any, decode_event, decode_run
from tracekit.formats.trace_stream import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.formats.byte_stream import TraceStream

    _Decode = Callable[[bytes, Sequence[int]], Any]

# No event up to this length is lost for its length, whether it is well-formed or needs repair.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
_REPAIR_AHEAD_BYTES: Final = 1024 * 1024
_MAX_KEY_BYTES: Final = 64 * 1024
# Skip deeply nested values in steps, instead of trying each level.
_DEEP: Final = 100
_DEEP_STEP_BYTES: Final = 4096
_MAX_TRIES: Final = 64

_NOTHING: Final = "nothing but white space"
_EVENTS_NAME: Final = b'"traceEvents"'
_IN_HEADER: Final = "in the keys beside traceEvents"
_BOM: Final = b"\xef\xbb\xbf"
_FIRST_KEY: Final = re.compile(rb'\{(?:[ \t]*"[^"\\]{1,20}")?')
_KEY: Final = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_EVENTS_KEY: Final = re.compile(rb'(?<!\\)"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
# The probable beginning of the next key, on its own line or not, or the end of the file.
_NEXT_KEY: Final = re.compile(rb'(?:\n[ \t]*,?|,)[ \t]*"[^"\\\n]{1,80}"[ \t]*:|[ \t\r\n]*\}[ \t\r\n]*\Z')
_NEXT_LINE_KEY: Final = re.compile(rb'\n[ \t]*,?[ \t]*"[^"\\\n]{1,80}"[ \t]*:')
_PHASE: Final = re.compile(rb'"ph"[ \t\r\n]*:')
# Objects in arguments often begin with a name or an id, but follow a key.
_EVENT_START: Final = re.compile(
    rb'\{[ \t\r\n]*"(?:ph|cat|pid|tid|ts)"[ \t\r\n]*:|(?<!:)(?<!: )\{[ \t\r\n]*"(?:name|dur|id|args)"[ \t\r\n]*:'
)
# Keys of the object form; no event has them.
HEADER_KEYS: Final = frozenset(
    {"baseTimeNanoseconds", "deviceProperties", "displayTimeUnit", "distributedInfo", "metadata", "otherData"}
    | {"samples", "schemaVersion", "stackFrames", "systemTraceEvents", "traceName", "tracekit"}
)
# These keys follow only the array of events, not an array in arguments.
_EVENTS_END: Final = re.compile(
    rb'\](?=[ \t\r\n]*,[ \t\r\n]*"(?:%b)"[ \t\r\n]*:)' % "|".join(sorted(HEADER_KEYS)).encode()
)
_EVENT_START_OR_END: Final = re.compile(b"%b|%b" % (_EVENT_START.pattern, _EVENTS_END.pattern))
# Texts, numbers and words in front of the first event of an array. An array of other things is not a trace.
_STRAY_VALUES: Final = re.compile(
    rb'(?:[ \t\r\n,]*(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)[ \t\r\n]*,)+[ \t\r\n,]*(?:' + _EVENT_START.pattern + rb")"
)


class RawEvent(NamedTuple):
    """An event with its text."""

    text: bytes  # of the file, or its repair
    event: Event
    offset_bytes: int  # in the unpacked file


class TraceReader(Window):
    """Reads one trace. Iterate `runs` once, to its end; then everything else is complete. One thread at a time.

    Callers that read the window themselves (`text` from `at` on) use `fill`, `pass_events`, `read_odd` and `end_events` instead
    of `runs`.

    Args:
        path: A file or URL of any form that `open_trace` reads.
        limit_bytes: The maximum that is read of the file; None for all.
        stream: The bytes to read in place of those of the file.

    Attributes:
        form: "array" or "object".
        foreign: The form of a file that is converted to JSON, else empty. Offsets and counts of bytes refer to the JSON.
        header: The top-level keys other than ``traceEvents``, decoded. Those after the events come at the end of `runs`.
        closed: True if the file ends as its form does.
        losses: The unreadable parts before the last event; the first 1000.
        lost_events: The number of events that seem to begin in them.
        tail: The unreadable part at the end, or None.
        events: The number of events read so far; at least 1 of those of a call of `pass_events`.
        run_text: The text of the last run; None if its events were read one by one.
        run_offset_bytes: The place of the last run in the unpacked file.
        text: The window: a part of the unpacked file.
        at: The present place in the window: everything before it is read.
        final: True if the file ends with the window.
        in_events: True until the events have ended, those of a second ``traceEvents`` included.
        separator: The text from the closing brace of an event to the first key of the next one; None while it is unknown.

    Raises:
        StorageError: The file is not there or cannot be read.
        TraceFormatError: It is not a trace.
    """

    max_run_bytes = 1024 * 1024  # the maximum distance from the beginning of a run to that of its last event

    def __init__(self, path: str, *, limit_bytes: int | None = None, stream: TraceStream | None = None) -> None:
        super().__init__(open_trace(path, limit_bytes) if stream is None else stream)
        self.path = self._stream.path
        self.compressed, self.foreign = self._stream.compressed, self._stream.foreign
        self.form = "array"
        self.header: dict[str, Any] = {}
        self.closed = False
        self.tail: LostBytes | None = None
        self.run_text: bytes | None = None
        self.run_offset_bytes = 0
        self.separator: bytes | None = None
        self._arrays = 0  # of events
        try:
            self._begin()
        except BaseException:
            self._stream.close()
            raise

    def runs(self, decode: Callable[[bytes], list[Event]] = decode_run) -> Iterator[list[Event]]:
        """Yield the events in the order of the file, run by run; of most runs, those that ``decode`` returns for their text."""
        return self._runs(lambda body, _: decode(body))

    def _runs(self, decode: _Decode, *, raw: bool = False) -> Iterator[Any]:
        try:
            while self.in_events:
                self._skip_separator()
                is_sound = self._lost_from is None and not self.closed
                spans, stop = find_events(self.text, self.at, self.max_run_bytes) if is_sound else ((), 0)
                if not spans and stop == len(self.text) and self._read_on(MAX_EVENT_BYTES):
                    continue
                self.run_offset_bytes = self._offset + self.at
                run = self._read_whole(spans, decode) if spans else None
                if run is None:
                    odd = self._read_singly(spans)
                    run = odd if raw else [one.event for one in odd]
                if run:
                    yield run
        finally:
            self._stream.close()

    def _read_whole(self, spans: Sequence[int], decode: _Decode) -> Any:
        """Return a run of well-formed events; None when they have to be read singly."""
        body = self.text[spans[0] : spans[-1]]
        try:
            run = None if repair_text(body)[1] else decode(body, spans)  # repairs are reported with event and byte
        except REFUSED:
            run = None
        if run is not None:
            self._note_commas(int(self._expects_comma), "between two events")
            self._expects_comma = True
            self.run_text = body
            if self.separator is None and len(spans) > 2:
                self.separator = _separator(self.text, spans[1] - 1, spans[2])
            self.events += len(spans) // 2
            self.at = spans[-1]
        return run

    def _read_singly(self, spans: Sequence[int]) -> list[RawEvent]:
        """Return the events of the spans, or the next odd one; end the events where they end."""
        self.run_text = None
        until = self._offset + (spans[-1] if spans else 0)
        run: list[RawEvent] = []
        while not run or self._offset + self.at < until:
            one = self._read_one()
            if one is None:
                self.end_events()
                break
            run.append(one)
        return run

    # The head of the file, up to the first event.

    def _begin(self) -> None:
        if not self.fill(HEAD_BYTES):
            damage = self._stream.damage
            words = f"{damage}; tracekit recover saves what can be read" if damage else "the file is empty"
            raise TraceFormatError(self.path, words)
        head = self.text[:HEAD_BYTES]
        self._skip_mark()
        if not self._skip_separator():
            words = f"this is not a trace: {self.bytes_read} bytes of it are {_NOTHING}"
            raise TraceFormatError(self.path, words if self._is_hopeless() else f"the file holds {_NOTHING}")
        if self.text.startswith(b"[", self.at):
            self.at += 1
            self.in_events = True
            if self._skip_separator():
                rest = self.text[self.at : self.at + HEAD_BYTES]
                if rest[:1] not in b"{]" and not _STRAY_VALUES.match(rest):
                    self._refuse(b"[" + rest, "the array holds no events")
            elif self._is_hopeless():
                self._refuse(b"", f"{self.bytes_read} bytes of it are {_NOTHING}")
        elif self.text.startswith(b"{", self.at):
            self.at += 1
            self.in_events = self._take_head() or self._read_keys()
            if not self._arrays:
                seen = f"it seems to be {kind}; " if (kind := seems_to_be(head)) else ""
                damage = f" ({self._stream.damage})" if self._stream.damage else ""
                advice = "; it holds events, which tracekit recover saves" if _PHASE.search(head) else ""
                words = f"{seen}no traceEvents in its first {self.bytes_read} bytes{damage}{advice}"
                raise TraceFormatError(self.path, f"this is not a trace: {words}")
            if not self.in_events:
                self._end_document()
        else:
            self._refuse(head, "JSON traces begin with [ or {")
        self._commas = 0

    def _skip_mark(self) -> None:
        if self.text.startswith(_BOM):
            self.at = len(_BOM)
            self._note("byte_order_mark", 0, "UTF-8 byte order mark")

    def _refuse(self, head: bytes, otherwise: str) -> None:
        seen = seems_to_be(head)
        words = f"it seems to be {seen}" if seen else otherwise
        raise TraceFormatError(self.path, f"this is not a trace: {words}", offset_bytes=self._offset + self.at)

    # The keys of the object form.

    def _take_head(self) -> bool:
        """Read all keys before the events at once; return False, with none read, where they are not valid JSON."""
        key = _KEY.match(self.text, max(self.text.find(_EVENTS_NAME, self.at), 0))
        if key is None or not self.text.startswith(b"[", key.end()):
            return False
        body = self.text[self.at : key.start()].strip(b" \t\r\n")
        if (body and not body.endswith(b",")) or not self._take_keys(body[:-1]):
            return False
        self._begin_events(key)
        self.at = key.end() + 1
        return True

    def _take_tail(self) -> bool:
        """Read all keys between the events and the end of the file in the same way."""
        self._look_ahead(LOOK_AHEAD_BYTES)
        rest = self.text[self.at : self.at + LOOK_AHEAD_BYTES].strip(b" \t\r\n")
        if not self.final or len(self.text) - self.at > LOOK_AHEAD_BYTES or rest[:1] + rest[-1:] not in (b",}", b"}}"):
            return False
        if not self._take_keys(rest[:-1].lstrip(b",").strip()):
            return False
        self._found()
        self.at, self.closed, self._commas = len(self.text), True, 0
        return True

    def _take_keys(self, body: bytes) -> bool:
        """Keep some keys of the object form and their values; return False, with none kept, if they need a closer look."""
        if repair_text(body)[1]:
            return False
        try:
            header = decode_any(b"{%b}" % body)
        except REFUSED:
            return False
        if "traceEvents" in header:
            return False
        self.header.update(header)
        return True

    def _read_keys(self) -> bool:
        """Read keys of the object up to its events; return False at its end, or when nothing more can be read."""
        while self._skip_separator():
            if self.text.startswith(b"}", self.at):
                self._found()
                self.at += 1
                self.closed, self._commas = self._arrays > 0, 0
                return False
            self._look_ahead(LOOK_AHEAD_BYTES)
            key = _KEY.match(self.text, self.at)
            if key is None or (key.end() == len(self.text) and not self.final):
                self._look_ahead(_MAX_KEY_BYTES)
                key = _KEY.match(self.text, self.at)
            if key is not None and key[1] == b"traceEvents" and self.text.startswith(b"[", key.end()):
                self._begin_events(key)
                self.at += key.end() - key.start() + 1
                self._commas, self._expects_comma = 0, False
                return True
            if (key is None or not self._read_value(key)) and not self._pass_key():
                return False
        return False

    def _begin_events(self, key: re.Match[bytes]) -> None:
        self._found()
        self.form = "object"
        self._arrays += 1
        if self._arrays > 1:
            self._note("second_events", self._offset + key.start(), "traceEvents stands twice; both are read")

    def _read_value(self, key: re.Match[bytes]) -> bool:
        name, ahead = key[1], key.end() - key.start()
        value = self._value_of(ahead, MAX_HEAD_BYTES if name == MERGED_KEY.encode() else _MAX_HEADER_BYTES)
        if value is None:
            return False
        text, length = value
        if name == b"traceEvents" and text == b"null":
            self._begin_events(key)
        else:
            text, kinds = repair_text(text)
            self._note_all(kinds, _IN_HEADER)
            self._take_key(name, text)
        self._found()
        self.at += ahead + length
        return True

    def _value_of(self, ahead: int, max_bytes: int) -> tuple[bytes, int] | None:
        """Return the value ``ahead`` bytes after the present place, repaired, and its length in the file."""
        found = None
        if (end := self._find_end(ahead, max_bytes)) is not None:
            found = self.text[self.at + ahead : end], end - self.at - ahead
            self._look_ahead(end - self.at + 1)
            after = self.at + ahead + found[1]
            if not self.text[after : after + 1].isalnum():
                return found
        self._look_ahead(_MAX_KEY_BYTES)
        begin = self.at + ahead
        # Kineto does not escape quotes here.
        for following in islice(_NEXT_KEY.finditer(self.text, begin, begin + _MAX_KEY_BYTES), _MAX_TRIES):
            pair = self.text[self.at : following.start()].rstrip(b" \t\r\n,")
            repaired = repair_object(b"{" + pair + b"}", 0, len(pair) + 2)
            if repaired is not None and repaired[1] == len(pair) + 2 and b"\0" not in pair:
                self._note_all(repaired[2], _IN_HEADER)
                key = _KEY.match(repaired[0], 1)  # without the white space
                assert key is not None
                return repaired[0][key.end() : -1], following.start() - begin
        return found

    def _take_key(self, name: bytes, value: bytes) -> None:
        try:
            self.header[decode_any(b'"%b"' % name)] = decode_any(value)
        except REFUSED:
            self._note("unreadable_header", self._offset + self.at, _IN_HEADER, lost=True)

    def _pass_key(self) -> bool:
        """Pass over an unreadable key; return True if another one, or the events, are found."""
        self._lose()
        self._look_ahead(_MAX_KEY_BYTES)
        events = None
        while not self._arrays and events is None:
            events = _EVENTS_KEY.search(self.text, self.at)
            if events is None and not self._read_on(_REPAIR_AHEAD_BYTES):
                break
        following = _NEXT_LINE_KEY.search(self.text, self.at + 1)
        if events is not None:
            self.at = events.start() if following is None else min(events.start(), following.start())
            return True
        # Keys of events are not keys of the object.
        if self._arrays and following and not _EVENT_START.search(self.text, self.at, following.start()):
            self.at = following.start()
            return True
        return False

    # The events.

    def _read_one(self) -> RawEvent | None:
        """Return the next event, behind any damage; None at the end of the array and of the file."""
        while self._skip_separator():
            if self._enter_document():
                continue
            char = self.text[self.at]
            if char == ord("{"):
                one = self._read_event()
                if one is not None:
                    return one
            elif char == ord("]") and (
                self._lost_from is None or (self.form == "object" and self._looks_like(_EVENTS_END))
            ):
                return None
            self._pass_over()
        return None

    def _enter_document(self) -> bool:
        """Enter another document; return False if none begins here."""
        return False

    def _read_event(self) -> RawEvent | None:
        """Read the object at the present place; return None if it is not an event, even when repaired."""
        end = self._find_end(0, MAX_EVENT_BYTES)
        if end is None:
            found = self._mend()
        else:
            text, kinds = repair_text(self.text[self.at : end])
            found = text, end, kinds
        event = None if found is None else decode(found[0])
        if found is None or event is None or not self._accepts(event, found[0]):
            return None
        text, end, kinds = found
        self._note_all(kinds, "in an event")
        self._note_commas(int(self._expects_comma), "between two events")
        self._found()
        self._expects_comma = True
        self.events += 1
        one = RawEvent(text, event, self._offset + self.at)
        self.at = end
        return one

    def _accepts(self, event: Event, text: bytes) -> bool:
        """Return True if an object is an event of this trace."""
        del event, text
        return True

    def _may_mend(self, text: bytes) -> bool:
        """Return False if a repair would join two torn events."""
        return len(_PHASE.findall(text)) <= 1

    def _mend(self) -> tuple[bytes, int, list[str]] | None:
        """Return the event at the present place repaired, its end, and the kinds of repair."""
        self._look_ahead(_REPAIR_AHEAD_BYTES)
        while True:
            limit = self.at + MAX_EVENT_BYTES
            following = _EVENT_START_OR_END.search(self.text, self.at + 1, limit)
            repaired = repair_object(self.text, self.at, following.start() if following else limit)
            if repaired is not None or following or not self._read_on(MAX_EVENT_BYTES):
                break
        if repaired is None or not self._may_mend(self.text[self.at : repaired[1]]):
            return None
        text, kinds = repair_text(repaired[0])
        return text, repaired[1], repaired[2] + kinds

    def _pass_over(self) -> None:
        """Go to the next place where an event may begin; the bytes before it are lost."""
        self._lose()
        self._broken_places += 1
        near = self.text[self.at : self.at + _DEEP_STEP_BYTES]
        levels = near.count(b"{") + near.count(b"[") - near.count(b"}") - near.count(b"]")
        step = _DEEP_STEP_BYTES if levels > _DEEP else 1
        pattern = _EVENT_START_OR_END if self.form == "object" else _EVENT_START
        while True:
            following = pattern.search(self.text, self.at + step)
            end = following.start() if following else len(self.text)
            if following is None and not self.final:
                # The window may end within the next match.
                end = max(self.at, end - LOOK_AHEAD_BYTES)
            phases = _PHASE.finditer(self.text, self.at, min(end + LOOK_AHEAD_BYTES, len(self.text)))
            self._phases += sum(phase.start() < end for phase in phases)
            step = step if end == self.at else 0
            self.at = end
            if following is not None or not self.fill():
                return

    def read_odd(self) -> list[Event]:
        """Read the next event, past damage; nothing at the end of the array and of the file."""
        one = self._read_one()
        return [] if one is None else [one.event]

    # The end of the events.

    def end_events(self) -> None:
        """Read on behind the closing bracket of the events, or note the end of the file; see `in_events`."""
        if self.at == len(self.text):
            self._end_file()
            return
        self._note_commas(0, "after the last event")
        self._found()
        self.at += 1
        self._expects_comma = False
        self._end_array()

    def _end_array(self) -> None:
        if self.form == "array":
            self.closed = True
        elif not self._take_tail() and self._read_keys():
            return
        self._end_document()

    def _end_document(self) -> None:
        self.in_events = False
        self._found()
        rest = False
        while True:
            if not rest and self.closed and self.text[self.at :].strip(b" \t\r\n\0"):
                rest = True
                what = f"data after the {self.form} is passed over"
                self._note("data_after_end", self._offset + self.at, what, lost=True)
            self.at = len(self.text)
            if self.final or not self.fill():
                break
        self._end_file()

    def _end_file(self) -> None:
        at = self._offset + len(self.text)
        if self.in_events and self._is_hopeless():
            words = f"no event in the first {self.bytes_read} bytes; the rest is not read"
            self._note("broken_event", at, words, lost=True)
        elif self._stream.damage or not self.closed:
            self._note("cut_file", at, self._stream.damage or f"the {self.form} is not closed")
        if self._lost_from is not None:
            self.tail = self._loss()
            kind = "cut_event" if self.tail.begins.startswith("{") else "not_an_event"
            kind = "broken_event" if self._is_hopeless() else kind
            self._note(kind, self.tail.offset_bytes, self.tail.begins, lost=True, event=self._lost_event)
            self.closed = False
        self.in_events = False


def decode(text: bytes) -> Event | None:
    """Decode an event; return None if it cannot be decoded."""
    with suppress(*REFUSED):
        return decode_event(text)
    return None


def _separator(text: bytes, brace: int, begin: int) -> bytes:
    while text[brace - 1] in b" \t\r\n":
        brace -= 1
    first = _FIRST_KEY.match(text, begin)
    assert first is not None
    return text[brace : first.end()]
