"""The events of a cut or damaged Trace Event Format file, each as the bytes that stand there, and what was lost.

`TraceReader` reads traces to merge them: it gives events as fields, and stops at the end of the first document. To recover
a trace, nothing of an event may change, every loss must be told with its place, and events count wherever they stand:
after a tear, after a closing bracket, below a second header.

An event is found by the strict decoder of the standard library, which says where an object ends, and at which byte a broken one
breaks. It reads the text as Latin-1, in which a character is a byte, so that its positions are positions in the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.json_repair import repair_object, repair_text
from tracekit.formats.merged_head import MAX_HEAD_BYTES, MERGED_KEY
from tracekit.formats.rank_trace import BASE_TIME_KEY, METADATA_EVENT
from tracekit.formats.salvage_stream import SalvageStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["Fragment", "FragmentReader", "LostBytes"]

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""What does not end before this is no event; it also bounds the keys beside the events, but for what a merged trace tells."""

_MAX_REPAIR_BYTES: Final = 64 * 1024
_RUN_EVENTS: Final = 1000
_MAX_KEYS: Final = 256  # Perfetto's engine crashes on more
_KEPT_LOSSES: Final = 1000
_LOOK_AHEAD: Final = 256
_SHOWN: Final = 60
# Python's decoder gives up on some values a few characters before the end of the text, where they go on.
_UNDECIDED: Final = 12
# What is nested too deeply to be decoded is left behind in steps, or each of its levels would be tried.
_DEEP: Final = 500
_DEEP_STEP: Final = 4096

_BETWEEN: Final = re.compile(r"[ \t\r\n,]*")
_AFTER_NUMBER: Final = (" ", "\t", "\r", "\n", ",", "}", "]")
_PHASES: Final = "BEXIiCbneSTpFstfPNODMVvRc(),"  # of the Trace Event Format document
_EVENTS: Final = "traceEvents"
_KEY: Final = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_EVENTS_KEY: Final = re.compile(r'(?<!\\)"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_NEXT_KEY: Final = re.compile(r'\n[ \t]*,?[ \t]*"[^"\\\n]{1,80}"[ \t]*:')
_OBJECT: Final = re.compile(r'\{[ \t\r\n]*"')
_HEADER: Final = re.compile(r'\[[ \t\r\n]*\{[ \t\r\n]*"')
# Keys of the object form; no event has them.
_HEADER_KEYS: Final = frozenset(
    {"baseTimeNanoseconds", "deviceProperties", "displayTimeUnit", "distributedInfo", "metadata", "otherData"}
    | {"samples", "schemaVersion", "stackFrames", "systemTraceEvents", "traceName", "tracekit"}
)
# Arrays in arguments end, too, but these keys follow the array of events only.
_EVENTS_END: Final = re.compile(rf'\](?=[ \t\r\n]*,[ \t\r\n]*"(?:{"|".join(sorted(_HEADER_KEYS))})"[ \t\r\n]*:)')
_OBJECT_OR_END: Final = re.compile(f"{_OBJECT.pattern}|{_EVENTS_END.pattern}")
_EVENT: Final = re.compile(r'\{[ \t\r\n]*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"[ \t\r\n]*:')
# Where another event seems to begin, not an object in arguments.
_NEXT_EVENT: Final = re.compile(r'\}[ \t\r]*,?[ \t\r]*\n[ \t\r\n]*\{|\{[ \t\r\n]*"(?:ph|cat|pid|tid|ts)"[ \t\r\n]*:')
_PHASE: Final = re.compile(r'"ph"[ \t\r\n]*:')
_ESCAPED: Final = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse(word: str) -> None:
    raise ValueError(word)


# Decimals stay text: they are exact, and most are never looked at.
_decode_at = json.JSONDecoder(parse_float=str, parse_constant=_refuse).raw_decode


class Fragment(NamedTuple):
    """An event.

    Attributes:
        text: The event as it stands in the file, or repaired.
        fields: It decoded; numbers with decimals as text, other text with a character for each byte.
        offset_bytes: Where it stands in the unpacked file.
    """

    text: bytes
    fields: dict[str, Any]
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LostBytes:
    """A part of a file that could not be read.

    Attributes:
        offset_bytes: Where it begins, in the unpacked file.
        length_bytes: How long it is.
        events: How many events are seen to have begun in it; there may have been more.
        begins: The first characters.
    """

    offset_bytes: int
    length_bytes: int
    events: int
    begins: str


class FragmentReader:
    """Reads one file. Iterate `runs` once, to its end; then everything else is complete. One thread at a time.

    Args:
        path: A file or URL, plain or gzip.

    Attributes:
        path: The file, as it may be printed.
        compressed: Whether it is gzip.
        form: "array" or "object"; known when the first run is there.
        keys: The keys beside ``traceEvents`` of the object form that could be read, as the text of their values; those
            before the events are there with the first run.
        closed: Whether the file ends as its form does.
        repairs: What was wrong without a loss, and how often.
        losses: The parts that could not be read and that readable ones follow; the first 1000.
        lost_parts: How many such parts there are.
        lost_events: How many events are seen to have been in them.
        lost_bytes: How long they are together.
        tail: What stands unread at the end, or None.
        damages: What could not be unpacked, in sentences.
        bytes_read: How long the unpacked file is, as far as it was read.

    Raises:
        StorageError: The file is not there or cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._stream = SalvageStream(path)
        self.path = self._stream.path
        self.compressed = self._stream.compressed
        self.form = "array"
        self.keys: dict[str, bytes] = {}
        self.closed = False
        self.repairs: dict[str, int] = {}
        self.losses: list[LostBytes] = []
        self.lost_parts = self.lost_events = self.lost_bytes = 0
        self.tail: LostBytes | None = None
        self.damages = self._stream.damages
        self.bytes_read = 0
        self._text = ""
        self._at = 0  # in the text
        self._offset = 0  # of the text in the file
        self._final = False
        self._by_tracekit = False
        self._expects_comma = False
        self._commas = 0  # since the last event
        # The part that is being passed over: where it began, the events in it, its first characters.
        self._lost_from: int | None = None
        self._lost_here = 0
        self._begins = ""

    def __enter__(self) -> FragmentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, traceback)

    def runs(self) -> Iterator[list[Fragment]]:
        """Yield the events in the order of the file, in runs of bounded size.

        Raises:
            StorageError: The file can no longer be read.
        """
        self._more()
        in_events, ended = self._read_head(), False
        while not ended:
            if not in_events:
                in_events = self._read_keys()
                continue
            run: list[Fragment] = []
            in_events, ended = self._read_events(run)
            if run:
                yield run
        if self._lost_from is not None:
            self.tail = self._loss(self._lost_from, self._offset + len(self._text))
            self.closed = False

    # The head.

    def _read_head(self) -> bool:
        """Find out the form; return whether the events are next."""
        if self._text.startswith("\xef\xbb\xbf"):
            self._at = 3
            self._repair("byte_order_mark")
        self._skip_space()
        if self._looks_like(_EVENT):
            # An object form may begin with a key of that name, too.
            first = self._decode()
            if first is not None and isinstance(first[0].get("ph"), str):
                self._repair("missing_bracket")
                return True
        if self._text.startswith("[", self._at):
            self._at += 1
        elif self._text.startswith("{", self._at):
            self._at += 1
            return False
        elif self._at < len(self._text):
            self._lose()
        return True

    # The keys beside the events, of the object form.

    def _read_keys(self) -> bool:
        """Read keys until the events begin, the object ends or one is broken; return whether events are to be read next."""
        while True:
            self._skip_between()
            if self._at >= len(self._text):
                if not self._more():
                    return True
                continue
            if self._text.startswith("}", self._at):
                self._found()
                self._at += 1
                self.closed = self.form == "object"
                self._expects_comma, self._commas = False, 0
                return True
            key = self._match_key()
            if key is None:
                return self._pass_key()
            if key[1] == _EVENTS and self._text.startswith("[", key.end()):
                self._found()
                self.form = "object"
                self._at = key.end() + 1
                self._expects_comma, self._commas = False, 0
                return True
            if not self._read_value(key[1], key.end() - self._at):
                return self._pass_key()

    def _match_key(self) -> re.Match[str] | None:
        while True:
            key = _KEY.match(self._text, self._at)
            if (key is not None and key.end() < len(self._text)) or len(self._text) - self._at > _MAX_REPAIR_BYTES:
                return key
            if not self._more():
                return _KEY.match(self._text, self._at)

    def _read_value(self, name: str, key_bytes: int) -> bool:
        """Read the value that stands ``key_bytes`` after the present place, where its key is."""
        found = self._decode(key_bytes, MAX_HEAD_BYTES if name == MERGED_KEY else MAX_EVENT_BYTES)
        if found is None:
            self._look_ahead(_MAX_REPAIR_BYTES)
        begin = self._at + key_bytes
        if found is not None:
            text, end = self._text[begin : found[1]], found[1]
        else:
            # Kineto does not escape quotes here; its keys stand on lines of their own.
            following = _NEXT_KEY.search(self._text, begin, begin + _MAX_REPAIR_BYTES)
            if following is None:
                return False
            pair = self._text[self._at : following.start()].rstrip(" \t\r\n,").encode("latin-1")
            repaired = repair_object(b"{" + pair + b"}", 0, len(pair) + 2)
            if repaired is None or repaired[1] != len(pair) + 2 or b"\0" in pair:
                return False
            for kind in repaired[2]:
                self._repair(kind)
            text, end = repaired[0][1 + key_bytes : -1].decode("latin-1"), following.start()
        if name == _EVENTS and text == "null":
            self.form = "object"
        elif name in self.keys:
            if name == BASE_TIME_KEY and self.keys[name] != text.encode("latin-1"):
                self.damages.append(
                    f"a second document in the file counts its times from {text} ns; its events are at wrong times"
                )
        elif len(self.keys) < _MAX_KEYS:
            self.keys[name], kinds = repair_text(text.encode("latin-1"))
            for kind in kinds:
                self._repair(kind)
        self._found()
        self._at = end
        return True

    def _pass_key(self) -> bool:
        """Pass over a key that cannot be read; return whether events are to be read next."""
        if self._lost_from is None:
            self._lose()
        self._look_ahead(_MAX_REPAIR_BYTES)
        while self.form == "array" and not self._final and len(self._text) - self._at < MAX_EVENT_BYTES:
            if _EVENTS_KEY.search(self._text, self._at):
                break
            self._more()
        following = _NEXT_KEY.search(self._text, self._at + 1)
        events = _EVENTS_KEY.search(self._text, self._at) if self.form == "array" else None
        if events is not None:
            self._at = events.start() if following is None else min(events.start(), following.start())
            return False
        # Keys of events are no keys of the object.
        if self.form == "object" and following and not _EVENT.search(self._text, self._at, following.start()):
            self._at = following.start()
            return False
        # Whatever this is, events are looked for in it.
        return True

    # The events.

    def _read_events(self, run: list[Fragment]) -> tuple[bool, bool]:
        """Read the events of the text that is there; return whether more follow, and whether the file has ended."""
        while len(run) < _RUN_EVENTS:
            self._skip_between()
            if self._at >= len(self._text):
                if run:
                    return True, False
                if not self._more():
                    return True, True
                continue
            char = self._text[self._at]
            if char == "{":
                if self.closed and self.form == "object" and not self._looks_like(_EVENT):
                    self._at += 1
                    self.closed = False
                    self._repair("second_header")
                    return False, False
                if self._read_event(run):
                    continue
            if char == "]" and (self._lost_from is None or (self.form == "object" and self._looks_like(_EVENTS_END))):
                self._end_events()
                if self.form == "object":
                    return False, False
            elif char == "[" and self._lost_from is None and self._looks_like(_HEADER):
                self._at += 1
                self._expects_comma, self._commas = False, 0
                self._repair("second_header")
            else:
                self._pass_over()
        return True, False

    def _end_events(self) -> None:
        self._note_commas(0)
        self._found()
        self._at += 1
        self._expects_comma = False
        if self.closed:
            self._repair("data_after_end")
        self.closed = self.form == "array"

    def _read_event(self, run: list[Fragment]) -> bool:
        found = self._decode()
        if found is None:
            repaired = self._mend()
            if repaired is None:
                return False
            text, fields, end = repaired
        else:
            fields, end = found
            start = self._at
            # After a tear, what is no event is a part of one.
            if (self._lost_from is not None or self.closed) and not _is_event(fields):
                return False
            if self._text.count('"ph"', start, end) > 1 and _is_fused(self._text[start:end]):
                return False
            if self.form == "object" and not _HEADER_KEYS.isdisjoint(fields):
                return False
            raw = self._text[start:end]
            text = raw.encode("latin-1")
            if not raw.isascii() or _ESCAPED.search(raw):
                text, kinds = repair_text(text)
                for kind in kinds:
                    self._repair(kind)
        if self.closed:
            self.closed = False
            self._repair("data_after_end")
        self._note_commas(int(self._expects_comma))
        self._found()
        self._expects_comma = True
        self._by_tracekit = self._by_tracekit or fields.get("name") == METADATA_EVENT
        run.append(Fragment(text, fields, self._offset + self._at))
        self._at = end
        return True

    def _mend(self) -> tuple[bytes, dict[str, Any], int] | None:
        """Repair an event of another tool; tracekit itself writes none that needs it, so that a broken one is a torn one."""
        if self._by_tracekit or self._lost_from is not None:
            return None
        self._look_ahead(_MAX_REPAIR_BYTES)
        window = self._text[self._at : self._at + _MAX_REPAIR_BYTES]
        repaired = repair_object(window.encode("latin-1"), 0, len(window))
        if repaired is None:
            return None
        body, length, kinds = repaired
        # The repair must not sew two torn events together.
        if len(_PHASE.findall(window, 0, length)) != 1 or "\0" in window[:length]:
            return None
        if _EVENTS_END.search(window, 0, length) or _NEXT_EVENT.search(window, 1, length):
            return None
        body, more = repair_text(body)
        try:
            fields, end = _decode_at(body.decode("latin-1"))
        except (ValueError, RecursionError):
            return None
        if "ph" not in fields or end != len(body):
            return None
        for kind in [*kinds, *more]:
            self._repair(kind)
        return body, fields, self._at + length

    def _decode(self, ahead: int | None = None, most_bytes: int = MAX_EVENT_BYTES) -> tuple[Any, int] | None:
        """Decode a value, reading on while it may be cut by the end of the text.

        Args:
            ahead: How far after the present place it stands; without, it stands here, and is an object.
            most_bytes: What does not end before this is broken.

        Returns:
            The value and where it ends, or None when it is broken.
        """
        while True:
            begin = self._at + (ahead or 0)
            try:
                value, end = _decode_at(self._text, begin)
            except json.JSONDecodeError as error:
                undecided = error.pos >= len(self._text) - _UNDECIDED or error.msg.startswith("Unterminated")
                if not undecided or self._final:
                    return None
            except (ValueError, RecursionError):
                return None
            else:
                # Of all values only a number can go on after what looks like its end.
                number = self._text[begin] in "-0123456789"
                if not number or self._text[end : end + 1] in _AFTER_NUMBER:
                    return (value, end) if ahead is not None or isinstance(value, dict) else None
                if end < len(self._text) - _UNDECIDED or self._final:
                    return None
            length = len(self._text) - self._at
            if length > most_bytes:
                return None
            # Twice as much each time, so that the work stays in proportion to the file.
            self._look_ahead(2 * length + 1)

    def _pass_over(self) -> None:
        """Go to where the next event may begin, and count what is passed over as lost."""
        if self._lost_from is None:
            self._lose()
        step = 1
        if self._text.startswith("{", self._at) and self._text.count("{", self._at, self._at + _DEEP_STEP) > _DEEP:
            step = _DEEP_STEP
        pattern = _OBJECT_OR_END if self.form == "object" else _OBJECT
        while True:
            following = pattern.search(self._text, self._at + step)
            end = following.start() if following else len(self._text)
            if following is None and not self._final:
                # The beginning of what is looked for may be there already.
                end = max(self._at, end - _LOOK_AHEAD)
            phases = _PHASE.finditer(self._text, self._at, min(end + _LOOK_AHEAD, len(self._text)))
            self._lost_here += sum(phase.start() < end for phase in phases)
            step = step if end == self._at else 0
            self._at = end
            if following is not None or not self._more():
                return

    # Small helpers.

    def _lose(self) -> None:
        self._look_ahead(_SHOWN)
        self._lost_from = self._offset + self._at
        self._lost_here = 0
        self._begins = self._text[self._at : self._at + _SHOWN]

    def _loss(self, start: int, end: int) -> LostBytes:
        # An event that is torn before its phase is one, too.
        events = max(self._lost_here, int(self._begins.startswith("{")))
        return LostBytes(
            start, end - start, events, self._begins[: end - start].encode("latin-1").decode("utf-8", "replace")
        )

    def _found(self) -> None:
        """Note that the file is readable again from the present place on."""
        if self._lost_from is None:
            return
        loss = self._loss(self._lost_from, self._offset + self._at)
        self._lost_from = None
        self.lost_parts += 1
        self.lost_events += loss.events
        self.lost_bytes += loss.length_bytes
        if len(self.losses) < _KEPT_LOSSES:
            self.losses.append(loss)

    def _skip_between(self) -> None:
        """Skip white space, and commas, which are counted."""
        match = _BETWEEN.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        self._commas += match[0].count(",")

    def _note_commas(self, expected: int) -> None:
        commas, self._commas = self._commas, 0
        if commas != expected and self._lost_from is None:
            self._repair("missing_comma" if commas < expected else "trailing_comma")

    def _skip_space(self) -> None:
        while True:
            self._at = len(self._text) - len(self._text[self._at :].lstrip(" \t\r\n"))
            if self._at < len(self._text) or not self._more():
                return

    def _looks_like(self, pattern: re.Pattern[str]) -> bool:
        self._look_ahead(_LOOK_AHEAD)
        return pattern.match(self._text, self._at) is not None

    def _look_ahead(self, length: int) -> None:
        """Read on until so much of the text is there, or all."""
        if len(self._text) - self._at < length and not self._final:
            self._more(length)

    def _repair(self, kind: str) -> None:
        self.repairs[kind] = self.repairs.get(kind, 0) + 1

    def _more(self, wanted: int = 0) -> bool:
        """Read another piece of the file, or until so much is there, and forget what is dealt with."""
        pieces = [self._text[self._at :]]
        length, more = len(pieces[0]), True
        while more and (len(pieces) == 1 or length < wanted):
            piece = self._stream.read()
            pieces.append(piece.decode("latin-1"))
            length, more = length + len(piece), bool(piece)
        self._final = not more
        self.bytes_read += length - len(pieces[0])
        self._text = "".join(pieces)
        self._offset += self._at
        self._at = 0
        return length > len(pieces[0])


def _is_event(fields: dict[str, Any]) -> bool:
    """Tell whether an object is an event, not a value in the arguments of a torn one."""
    phase = fields.get("ph")
    return (
        isinstance(phase, str)
        and len(phase) == 1
        and phase in _PHASES
        and "pid" in fields
        and (phase == "M" or "ts" in fields)
    )


def _is_fused(text: str) -> bool:
    """Tell whether an object grew together from two events, between which a part of the file is missing."""
    fused = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal fused
        fields = dict(items)
        fused = fused or ("ph" in fields and len(fields) < len(items))
        return fields

    json.JSONDecoder(object_pairs_hook=pairs).decode(text)
    return fused
