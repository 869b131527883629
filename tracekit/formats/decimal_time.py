"""Microseconds as text and integer nanoseconds: the only place where the two meet.

Nothing here goes through a float: at epoch microseconds a double's step is a quarter of a microsecond.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

__all__ = ["format_all_us", "format_us", "parse_all_us", "parse_us"]

_DOT: Final = ord(".")
_NUMBER: Final = re.compile(rb'\s*"?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"?\s*')
_ALL_THREE_DECIMALS: Final = re.compile(rb"(?:\d{1,16}\.\d\d\d\n)*")
_ALL_WHOLE: Final = re.compile(rb"(?:\d{1,16}\n)*")
# Where the decimal point belongs; a pattern that matches no text is replaced without a call for each match.
_BEFORE_LAST_THREE: Final = re.compile(r"(?=\d\d\d[,\]])")
# Beyond this no viewer and no int64 can follow.
_LIMIT_NS: Final = 2**63 - 1


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
        ns = int((Decimal(match[1].decode()) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    except (InvalidOperation, ValueError):
        return None
    return ns if -_LIMIT_NS <= ns <= _LIMIT_NS else None


def format_us(ns: int) -> bytes:
    """Return ``ns`` as microseconds with exactly three decimals, as Kineto and tracekit write them."""
    if ns < 0:
        return b"-" + format_us(-ns)
    return b"%d.%03d" % divmod(ns, 1000)


def parse_all_us(texts: Sequence[Buffer]) -> list[int | None]:
    """Do `parse_us` for many numbers at once: several times as fast where all are written in one of the usual ways."""
    # The newline after each makes one pattern hold for all.
    text = b"\n".join([*texts, b""])
    found: list[int] | None = None
    if _ALL_THREE_DECIMALS.fullmatch(text):
        found = list(map(int, text.replace(b".", b"").split()))
    elif _ALL_WHOLE.fullmatch(text):
        found = [1000 * number for number in map(int, text.split())]
    if found is not None and max(found, default=0) <= _LIMIT_NS:
        return found  # type: ignore[return-value]
    return [parse_us(bytes(text)) for text in texts]


def format_all_us(times_ns: Sequence[int]) -> bytes:
    """Return the numbers as `format_us` writes them, as one JSON array."""
    if not times_ns or min(times_ns) < 1000:
        return b"[%b]" % b",".join(map(format_us, times_ns))
    # Lists of integers are printed by one call into C; then only the decimal points are missing.
    return _BEFORE_LAST_THREE.sub(".", repr(list(times_ns))).encode()
