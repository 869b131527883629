"""Find where JSON values end in a text."""

from __future__ import annotations

import json
import re
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tracekit import core
from tracekit.formats.trace_event import REFUSED, decode_raw, decode_raw_list

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        else:
            # The core leaves unusual events to Python.
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
        if length > _LARGE_BYTES and _is_cut(text, at):
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
