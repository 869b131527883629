"""Ids that become unique among the inputs."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from tracekit.formats.trace_event import decode_integers, encode_json

__all__ = ["NAMESPACE", "add_to_column", "move_arg_ids"]

NAMESPACE: Final = 10**10
"""Ids of input n are moved by n * NAMESPACE: room for CUPTI's 32-bit ids, readable, and below 2**53 for 900,000 inputs."""

# A pattern that begins with plain text is searched for several times as fast, and without a quote faster still.
_NUMBER: Final = rb"\s*:\s*)(0|[1-9]\d{0,9})(?=[\s,}\]])"
_ARG_IDS: Final = [
    re.compile(rb'(xternal id"(?<="[Ee]xternal id")' + _NUMBER),
    re.compile(rb'(correlation"(?<="correlation")' + _NUMBER),
]


def add_to_column(numbers: list[bytes], offset: int) -> list[bytes]:
    """Return the numbers, which are JSON integers, each with ``offset`` added."""
    found = decode_integers(b"[%b]" % b",".join(numbers))
    return encode_json([number + offset for number in found])[1:-1].split(b",")


def move_arg_ids(text: bytes, offset: int) -> bytes:
    """Add to the ids in ``args`` that tie events together: ``correlation`` and ``External id``, as in Kineto's traces."""
    escapes = b"\\" in text
    for pattern in _ARG_IDS:
        if escapes:
            text = pattern.sub(partial(_move_unless_escaped, offset), text)
            continue
        pieces = pattern.split(text)
        if len(pieces) > 1:
            pieces[2::3] = add_to_column(pieces[2::3], offset)
            text = b"".join(pieces)
    return text


def _move_unless_escaped(offset: int, match: re.Match[bytes]) -> bytes:
    # Inside a string the quotes of what looks like a key are escaped: that is text.
    quote = match.string.rindex(b'"', 0, match.start() + 1)
    if match.string[quote - 1 : quote] == b"\\":
        return match[0]
    return b"%b%d" % (match[1], int(match[2]) + offset)
