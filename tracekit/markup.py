"""Any text as it may stand in HTML and SVG."""

from __future__ import annotations

import html
import re
from typing import Final

__all__ = ["plain", "visible"]

# What XML cannot hold, and what turns the direction of text.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Return a text in which nothing is left that markup cannot hold, or that changes how what surrounds it is read."""
    return _UNFIT.sub("\ufffd", text)


def plain(text: str) -> str:
    """Return any text as it may stand in HTML and SVG, within an element or an attribute."""
    return html.escape(visible(text))
