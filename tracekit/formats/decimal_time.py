"""Microseconds as text and integer nanoseconds, and the times that viewers read to the nanosecond.

Nothing here goes through a float: at epoch microseconds a double's step is a quarter of a microsecond. Perfetto, however, takes
``ts`` for a double of microseconds, multiplies it by 1000 and rounds. That gives back every nanosecond but in two places: from
2^42 to 2^52 / 1000 µs after the base (day 50.9 to 52.1) the product's own rounding makes every fourth time one nanosecond too
late, and from 2^43 µs (day 101.8) on a double has no room for every nanosecond. A slice that begins where the one before it
ends overlaps it then, and Perfetto drops it. `base_time_ns` keeps traces that start shortly before the first place away from
it; a longer run comes there all the same. So its times are moved back to those that are read as they are written: by 10 ns at
most in the first place, by 1 ns in the second. Begins and ends are moved alike, so that what nested and what did not overlap
stays so.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

__all__ = ["EPOCH_NS", "EXACT_NS", "EXACT_SPANS_NS", "exact_time", "format_us", "is_exact", "parse_us"]

EPOCH_NS: Final = 10**18
"""Times from here on (September 2001) are ns since the epoch; smaller ones count from some start."""

_DOT: Final = ord(".")
_NUMBER: Final = re.compile(rb'\s*"?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"?\s*')
# Beyond this no viewer and no int64 can follow.
_LIMIT_NS: Final = 2**63 - 1
_NANOSECOND: Final = Decimal("0.001")

EXACT_NS: Final = 2**43 * 1000
"""From here on, counted from the base, a double of microseconds does not hold every nanosecond."""

EXACT_SPANS_NS: Final = ((0, 2**42 * 1000), (2**52, EXACT_NS))
"""From where to where every time is read to the nanosecond."""


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


def exact_time(ns: int) -> int:
    """Return the latest time up to this one that a viewer reads as it is written, in ns after the base."""
    while not is_exact(ns):
        ns -= 1
    return ns


def is_exact(ns: int) -> bool:
    """Tell whether a viewer reads a time to the nanosecond."""
    read = ns / 1000 * 1000
    whole = int(read)
    return whole + (read - whole >= 0.5) == ns  # not round(): halves are rounded up there, and to even numbers here
