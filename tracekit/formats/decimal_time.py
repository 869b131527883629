"""Conversion between decimal microseconds and integer nanoseconds, and times that viewers read exactly.

This module uses no floats: for microseconds since the epoch, the resolution of a double is a quarter of a microsecond.
Perfetto, however, parses ``ts`` as a double of microseconds, multiplies it by 1000 and rounds. The result is exact
except in two ranges after the base. From 2^42 to 2^52 / 1000 µs (day 50.9 to 52.1), the rounding of the product makes
every fourth time one nanosecond too late. From 2^43 µs (day 101.8) on, a double cannot represent every nanosecond. A
slice that begins at the end of the previous slice then overlaps it, and Perfetto drops it.

`base_time_ns` moves traces that start shortly before the first range away from it. A longer run still reaches it. Its
times are moved back to times that Perfetto reads exactly: by at most 10 ns in the first range, and by 1 ns in the
second. Starts and ends are moved by the same rule, so that nested slices stay nested and separate slices stay separate.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

EPOCH_NS: Final = 10**18  # (September 2001): times from it on are ns since the epoch, others since an unknown start
_DOT: Final = ord(".")
_NUMBER: Final = re.compile(rb'\s*"?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"?\s*')
# The limit of int64, and of all viewers.
_LIMIT_NS: Final = 2**63 - 1
_NANOSECOND: Final = Decimal("0.001")

EXACT_NS: Final = 2**43 * 1000  # from here on, a double of microseconds cannot represent every nanosecond
EXACT_SPANS_NS: Final = ((0, 2**42 * 1000), (2**52, EXACT_NS))  # where viewers read every time to the nanosecond


def parse_us(text: bytes) -> int | None:
    """Convert a JSON number of microseconds, optionally in quotes, to nanoseconds; None if it is none, or beyond 64 bits.

    Rounds more than three decimals to the nearest nanosecond, halves away from zero, like Perfetto's importer.
    """
    try:
        # Kineto and tracekit write exactly three decimals. Other numbers take the slow path.
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
        # Round once, and first: Decimal arithmetic rounds to 28 digits.
        ns = int(Decimal(match[1].decode()).quantize(_NANOSECOND, rounding=ROUND_HALF_UP) * 1000)
    except (InvalidOperation, ValueError):
        return None
    return ns if -_LIMIT_NS <= ns <= _LIMIT_NS else None


def whole_number(value: Any, below: int = 2**63) -> int | None:
    """Return a decoded integer from 0 on, which may be a string of digits; None for any other value."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 0 <= value < below else None


def format_us(ns: int) -> bytes:
    """Return ``ns`` as microseconds with exactly three decimals, like Kineto."""
    if ns < 0:
        return b"-" + format_us(-ns)
    return b"%d.%03d" % divmod(ns, 1000)


def exact_time(ns: int) -> int:
    """Return the latest time up to this one that a viewer reads exactly, in ns after the base."""
    while not is_exact(ns):
        ns -= 1
    return ns


def is_exact(ns: int) -> bool:
    """Return True if a viewer reads a time to the nanosecond."""
    read = ns / 1000 * 1000
    whole = int(read)
    return whole + (read - whole >= 0.5) == ns  # not round(): Perfetto rounds halves up, Python to even
