"""What goes to a terminal: nothing that it would obey, and nothing that its encoding cannot write."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["printable"]

# C0, DEL and C1 control characters, and those that turn the direction of text: names in a trace come from anywhere.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str, stream: TextIO | None = None) -> str:
    """Return ``text`` with U+FFFD for what a terminal would obey, and ``?`` for what the stream cannot write.

    Args:
        text: One line.
        stream: Where it is written to; standard output if None.
    """
    encoding = (stream or sys.stdout).encoding or "utf-8"
    return _CONTROL.sub("\ufffd", text).encode(encoding, "replace").decode(encoding, "replace")
