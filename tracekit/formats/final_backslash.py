r"""Texts that end with a backslash, which Perfetto reads wrongly.

Perfetto v52 takes the quote behind ``\\`` for an escaped one: it refuses the file, or (where the text stands in arguments) shows
nothing of it, without a word. ``\u005c`` is the same character to every reader; Perfetto loads it, and shows it
as it is written.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["has_final_backslash", "without_final_backslash"]

_SIGN: Final = b'\\\\"'
# An even number of backslashes before a quote: the last two are the last character of the text.
_FINAL: Final = re.compile(rb'(?<!\\)((?:\\\\)*)\\\\(?=")')


def has_final_backslash(text: bytes) -> bool:
    """Tell whether a text in some JSON ends with a backslash that is written as two."""
    return _has_sign(text) and _FINAL.search(text) is not None


def without_final_backslash(text: bytes) -> bytes:
    r"""Return JSON that means the same, with ``\u005c`` for the backslash at the end of a text."""
    return _FINAL.sub(rb"\1\\u005c", text) if _has_sign(text) else text


def _has_sign(text: bytes) -> bool:
    # Most traces have no backslash at all; one character alone is searched for many times as fast as several.
    return b"\\" in text and _SIGN in text
