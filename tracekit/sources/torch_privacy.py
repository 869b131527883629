"""Hides the host name and the file path that Kineto writes into a trace."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 14
_HOST: Final = re.compile(rb'("host_name"\s*:\s*")[^"]*"')
_NAME: Final = re.compile(rb'("traceName"\s*:\s*")[^"]*"')


def hide_origin(trace: Path, host: str) -> None:
    """Replace the host name in a trace of torch.profiler, and remove the folder from its ``traceName``; in place.

    Kineto writes ``host_name`` before the events and ``traceName`` after them. Both keep their length, so that nothing has to
    move: a long name is cut, and a short one is padded with spaces after the value.

    Args:
        trace: The file, not compressed.
        host: The new host name.
    """
    size = trace.stat().st_size
    with trace.open("r+b") as file:
        for pattern, value, position in (
            (_HOST, host.encode(), 0),
            (_NAME, os.fsencode(trace.name), max(0, size - _TAIL_BYTES)),
        ):
            file.seek(position)
            text = file.read(_HEAD_BYTES if position == 0 else _TAIL_BYTES)
            for found in pattern.finditer(text):
                room = len(found[0]) - len(found[1]) - 1
                fitting = value[:room] + b'"'
                file.seek(position + found.end(1))
                file.write(fitting + b" " * (room + 1 - len(fitting)))
