"""Microseconds as text and integer nanoseconds: with `tracekit.formats.time_columns`, the only place where the two meet.

Nothing here goes through a float: at epoch microseconds a double's step is a quarter of a microsecond.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

__all__ = ["format_us", "parse_us"]

_DOT: Final = ord(".")
_NUMBER: Final = re.compile(rb'\s*"?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"?\s*')
# Beyond this no viewer and no int64 can follow.
_LIMIT_NS: Final = 2**63 - 1
_NANOSECOND: Final = Decimal("0.001")


def parse_us(text: bytes) -> int | None:
    """Return the nanoseconds that a JSON number of microseconds (or such a number in quotes) stands for.

    More than three decimals are rounded to the nearest nanosecond, halves away from zero, as Perfetto's importer does.

    Returns:
        Nanoseconds, or None when the text is no finite number or does not fit 64 bits.
    """
    try:
        # Kineto and tracekit write exactly three decimals; everything else takes the general way.
        if len(text) > 4 and text[-4] == _DOT:
            ns = int(text[:-4] + text[-3:])
            return ns if -_LIMIT_NS <= ns <= _LIMIT_NS else None
        if text.isdigit():
            ns = int(text) * 1000
            return ns if ns <= _LIMIT_NS else None
    except ValueError:
        pass
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        # Rounded once, and before anything else: Decimal's arithmetic rounds to 28 digits.
        ns = int(Decimal(match[1].decode()).quantize(_NANOSECOND, rounding=ROUND_HALF_UP) * 1000)
    except (InvalidOperation, ValueError):
        return None
    return ns if -_LIMIT_NS <= ns <= _LIMIT_NS else None


def format_us(ns: int) -> bytes:
    """Return ``ns`` as microseconds with exactly three decimals, as Kineto and tracekit write them."""
    if ns < 0:
        return b"-" + format_us(-ns)
    return b"%d.%03d" % divmod(ns, 1000)
