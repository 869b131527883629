"""Times of many events at once, as they stand in a trace: several times as fast as one by one.

The work is moved into few calls of C code: a column of numbers is one JSON array, which is decoded or encoded as a whole.
Nothing is rounded that `tracekit.formats.decimal_time` would not round.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.trace_reader import decode_floats, decode_integers, encode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.formats.trace_reader import Raw

__all__ = ["format_all_us", "parse_all_us", "parse_column_us"]

_THREE_DECIMALS: Final = re.compile(rb"\[(?:\d{1,16}\.\d\d\d[,\]])*")
_WHOLE: Final = re.compile(rb"\[(?:\d{1,16}[,\]])*")
# A double holds so many digits times 1000 with an error below a tenth.
_UP_TO_THREE_DECIMALS: Final = re.compile(rb"\[(?:\d{1,12}(?:\.\d{1,3})?[,\]])*")
# Where the decimal point belongs; a pattern that matches no text is replaced without a call for each match.
_BEFORE_LAST_THREE: Final = re.compile(rb"(?=\d\d\d[,\]])")
# Beyond this no viewer and no int64 can follow.
_LIMIT_NS: Final = 2**63 - 1


def parse_all_us(texts: Sequence[Raw]) -> list[int | None]:
    """Do `parse_us` for a column of numbers, which are JSON."""
    if not texts:
        return []
    found = parse_column_us(encode_json(texts))
    return [parse_us(bytes(text)) for text in texts] if found is None else found  # type: ignore[return-value]


def parse_column_us(text: bytes) -> list[int] | None:
    """Do `parse_us` for a JSON array of numbers; None when they are not written in one of the usual ways."""
    # "0.500" without its point is no JSON number.
    if b",0" not in text and not text.startswith(b"[0") and _THREE_DECIMALS.fullmatch(text):
        found = decode_integers(text.replace(b".", b""))
    elif _UP_TO_THREE_DECIMALS.fullmatch(text):
        return [int(number * 1000.0 + 0.5) for number in decode_floats(text)]
    elif _WHOLE.fullmatch(text):
        found = [1000 * number for number in decode_integers(text)]
    else:
        return None
    return found if max(found) <= _LIMIT_NS else None


def format_all_us(times_ns: Sequence[int]) -> bytes:
    """Return the numbers as `format_us` writes them, as one JSON array."""
    if not times_ns or min(times_ns) < 1000:
        return b"[%b]" % b",".join(map(format_us, times_ns))
    text = encode_json(times_ns)
    width = len(text) // len(times_ns)
    if len(text) != width * len(times_ns) + 1 or len(str(min(times_ns))) != len(str(max(times_ns))):
        return _BEFORE_LAST_THREE.sub(b".", text)
    # All have the same number of digits: the points are put in by copying one column of characters after the other.
    wide = width + 1
    out = bytearray(wide * len(times_ns) + 1)
    out[0] = text[0]
    point = width - 3
    out[point::wide] = b"." * len(times_ns)
    for column in range(1, width + 1):
        out[column + (column >= point) :: wide] = text[column::width]
    return bytes(out)
