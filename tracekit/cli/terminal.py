"""What goes to standard output: text of which a terminal obeys nothing and that its encoding can write, or JSON for machines."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["print_json", "printable"]

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


def print_json(document: Any) -> None:
    """Print a document as JSON, bit by bit: the steps of many ranks as one text would take several times their memory."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()
