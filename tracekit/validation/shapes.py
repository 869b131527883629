"""The shape of a value: all that the event schema can tell apart.

Millions of events have a handful of shapes, and a JSON Schema takes a tenth of a millisecond for each event, so each
shape is checked once. The schema looks at types, at ranges of numbers and at a few words; so does `shape`.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["shape"]

_HEXADECIMAL: Final = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")
_WORDS: Final = frozenset({"ph", "s", "bp"})


def shape(value: Any, key: str = "") -> Any:
    """Return something hashable that is equal for values which the event schema cannot tell apart.

    Args:
        value: A decoded JSON value.
        key: The key it stands under.
    """
    if isinstance(value, str):
        if key in _WORDS:
            return value
        return "" if not value else "hexadecimal" if key == "id" and _HEXADECIMAL.fullmatch(value) else "text"
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, (int, float)):
        # 1.0 is an integer to JSON Schema.
        whole = isinstance(value, int) or value.is_integer()
        return whole, value < -(2**63), value < 0, value == 0, value == 1, value < 2**32, value < 2**63
    if isinstance(value, dict):
        # "name" says which metadata event it is, and so which schema its args have.
        of_metadata = value.get("ph") == "M"
        return tuple(
            (inner, item if of_metadata and inner == "name" and isinstance(item, str) else shape(item, inner))
            for inner, item in value.items()
        )
    return ("list", *(shape(item) for item in value))
