"""What the keys beside the events of an input say, as the merged trace keeps it: long values are left to the input.

A log, a whole configuration or the process groups of thousands of ranks would make the head of the merged trace so large that
no reader takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MOST_TOLD_BYTES", "MOST_TOLD_KEYS", "kept_of_header"]

MOST_TOLD_BYTES: Final = 4096
"""What takes more in JSON is not kept."""

MOST_TOLD_KEYS: Final = 64
"""No more than these are kept, the first."""

_INFO: Final = "distributedInfo"
# What the merged trace has in another form.
_MERGED_KEYS: Final = frozenset(
    {"traceEvents", "deviceProperties", "displayTimeUnit", "schemaVersion", "tracekit", STACK_FRAMES}
)


def kept_of_header(header: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what is kept of the keys beside the events, and the names of those that are not.

    Of ``distributedInfo`` that is too long, what is short in it is kept: rank, backend and the like.
    """
    kept: dict[str, Any] = {}
    left: list[str] = []
    for key, value in header.items():
        if key in _MERGED_KEYS:
            continue
        short, long = _short_part(value) if key == _INFO else (value, [])
        if len(kept) < MOST_TOLD_KEYS and not _is_long(short):
            kept[key] = short
            left += [f"{key}.{name}" for name in long]
        else:
            left.append(key)
    return kept, left


def _short_part(value: Any) -> tuple[Any, list[str]]:
    """Return a value without what is long in it, and the names of that."""
    if not isinstance(value, dict) or not _is_long(value):
        return value, []
    long = [name for name, item in value.items() if _is_long(item)]
    return {name: item for name, item in value.items() if name not in long}, long


def _is_long(value: Any) -> bool:
    return len(encode_json(value)) > MOST_TOLD_BYTES
