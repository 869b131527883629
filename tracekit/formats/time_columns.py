"""Times of many events at once, as they stand in a trace: several times as fast as one by one.

The work is moved into few calls of C code: a column of numbers is one JSON array, which is decoded or encoded as a whole.
Nothing is rounded that `tracekit.formats.decimal_time` would not round.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.event_fields import time_field
from tracekit.formats.trace_event import REFUSED, UNSET, Raw, decode_floats, decode_integers, encode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.formats.trace_event import Event

__all__ = ["durations_of", "format_all_us", "have_three_decimals", "parse_all_us", "parse_column_us", "times_of"]

_THREE_DECIMALS: Final = re.compile(rb"\[(?:\d{1,16}\.\d\d\d[,\]])*")
_FOUR_DECIMALS: Final = re.compile(rb"\.\d\d\d\d")
# Below it a double holds microseconds with three decimals so well that a thousandfold is off by less than a tenth.
_EXACT_US: Final = 1e12
# Where the decimal point belongs; a pattern that matches no text is replaced without a call for each match.
_BEFORE_LAST_THREE: Final = re.compile(rb"(?=\d\d\d[,\]])")
_DIGITS_AND_SIGNS: Final = b"0123456789[.,]"
_LEAST_WIDTH: Final = 5  # of a time from a microsecond on, in ns, with the comma
_NO_DURATION: Final = Raw(b"0.000")  # written so that it does not spoil the column it stands in
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
    if text.count(b"[") > 1:
        return None  # one of them is an array
    # "0.500" without its point is no JSON number.
    if b",0" not in text and not text.startswith(b"[0") and have_three_decimals(text):
        found = decode_integers(text.replace(b".", b""))
        return found if max(found) <= _LIMIT_NS else None
    if text.translate(None, _DIGITS_AND_SIGNS) or _FOUR_DECIMALS.search(text):
        return None
    try:
        numbers = decode_floats(text)
    except REFUSED:
        return None  # more than 308 digits
    if max(numbers) < _EXACT_US:
        return [int(number * 1000.0 + 0.5) for number in numbers]
    if b"." in text:
        # As Python's json writes doubles: without the zeros at the end.
        parts = [number.partition(b".") for number in text[1:-1].split(b",")]
        found = [int(whole + (decimals + b"000")[:3]) for whole, _, decimals in parts]
    else:
        found = [1000 * number for number in decode_integers(text)]
    return found if max(found) <= _LIMIT_NS else None


def times_of(run: list[Event]) -> list[int | None]:
    """Return the time of every event of a run in ns, None where it has no usable one."""
    try:
        return parse_all_us([event.ts for event in run])  # type: ignore[misc]
    except TypeError:
        # An event without ts.
        return [time_field(event.ts) for event in run]


def durations_of(run: list[Event]) -> list[int]:
    """Return the duration of every event of a run in ns, 0 where it has no usable one or is no ``X``."""
    found = parse_all_us([_NO_DURATION if event.dur is UNSET else event.dur for event in run])
    return [max(duration or 0, 0) for duration in found]


def have_three_decimals(text: bytes) -> bool:
    """Tell whether a JSON array holds nothing but positive numbers with three decimals."""
    width = text.find(b",")
    if 5 < width < 20 and _stand_in_columns(text, width) and not text.translate(None, _DIGITS_AND_SIGNS):
        return text[width - 4 :: width].count(b".") == text.count(b".") == len(text) // width
    return _THREE_DECIMALS.fullmatch(text) is not None


def _stand_in_columns(text: bytes, width: int) -> bool:
    """Tell whether the items of an array of numbers are all of the same width, counted with the comma."""
    ends = text[width::width]
    return len(text) == width * len(ends) + 1 and ends.count(b",") == len(ends) - 1 == text.count(b",")


def format_all_us(times_ns: Sequence[int]) -> bytes:
    """Return the numbers as `format_us` writes them, as one JSON array."""
    if not times_ns:
        return b"[]"
    text = encode_json(times_ns)
    width = text.find(b",")
    if width < _LEAST_WIDTH or not _stand_in_columns(text, width) or b"-" in text:
        if min(times_ns) < 1000:
            return b"[%b]" % b",".join(map(format_us, times_ns))
        return _BEFORE_LAST_THREE.sub(b".", text)
    # All have the same number of digits: the points are put in by copying one column of characters after the other.
    count = len(text) // width
    wide = width + 1
    out = bytearray(wide * count + 1)
    out[0] = text[0]
    point = width - 3
    out[point::wide] = b"." * count
    for column in range(1, width + 1):
        out[column + (column >= point) :: wide] = text[column::width]
    return bytes(out)
