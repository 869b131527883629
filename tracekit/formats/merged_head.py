"""What a merged trace tells before its events: how large that may be, and how it begins.

It tells of each input, in one to some kB (the process groups of a rank take the most), so that of 10,000 ranks there are 11 to
45 MB. Whoever reads it holds it in memory.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["MAX_HEAD_BYTES", "MERGED_KEY", "begins_merged", "merged_ranks"]

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""A head that is larger is not read."""

MERGED_KEY: Final = "tracekit"
"""The key of the object form that holds most of it."""

_BEGINNING: Final = re.compile(rb'\s*\{\s*"schemaVersion"\s*:\s*\d{1,9}\s*,\s*"tracekit"\s*:\s*\{\s*"merge"\s*:')


def begins_merged(text: bytes) -> bool:
    """Tell whether a file that begins so is a merged trace in JSON."""
    return _BEGINNING.match(text) is not None


def merged_ranks(header: dict[str, Any]) -> dict[Any, int]:
    """Return the rank of each pid of a merged trace, as far as its header tells."""
    own = header.get(MERGED_KEY)
    table = own.get("processes") if isinstance(own, dict) else None
    return {
        entry["pid"]: entry["rank"]
        for entry in (table if isinstance(table, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int) and isinstance(entry.get("rank"), int)
    }
