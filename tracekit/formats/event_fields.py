"""What the fields of an event hold, which a reader leaves as they stand in the file."""

from __future__ import annotations

from typing import Any

from tracekit.formats.decimal_time import parse_us
from tracekit.formats.trace_event import UNSET

__all__ = ["raw_field", "raw_number", "time_field"]


def raw_field(field: Any) -> bytes:
    """Return the JSON text of a field; empty where there is none."""
    return b"" if field is UNSET else bytes(field)


def raw_number(value: Any) -> Any:
    """Return the one spelling of a ``pid`` or ``tid``: 0 where it is absent or null, whole numbers without a fraction."""
    if value is UNSET or value is None:
        return 0
    if isinstance(value, float):
        return int(value) if abs(value) < 2**63 else 0
    return value


def time_field(field: Any) -> int | None:
    """Return the ns of a ``ts`` or ``dur``; None where there is none, or no number; see `parse_us`."""
    return None if field is UNSET else parse_us(bytes(field))
