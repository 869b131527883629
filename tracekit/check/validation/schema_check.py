"""Check events against the event schema, each shape of event once.

Millions of events have a handful of shapes, and a JSON Schema takes a tenth of a millisecond for each event. The schema
looks at types, at ranges of numbers and at a few words; so does `shape`.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MissingExtraError
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.schema import TRACE_EVENT, compile_schema
from tracekit.formats.trace_event import UNSET, Raw, decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.formats.trace_event import Event

_HEXADECIMAL: Final = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")
_PLAIN: Final = frozenset("XBEi")
_FIRST_LETTER: Final = bytes(ord("0") if letter in b"0123456789" else letter for letter in range(256))
_UINT32_MAX: Final = 2**32 - 1
_WORDS: Final = frozenset({"ph", "s", "bp"})


def shape(value: Any, key: str = "") -> Any:
    """Return a hashable value. The event schema has one verdict for all values of the same shape.

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


class SchemaCheck:
    """Checks events against the event schema.

    Attributes:
        not_checked: The reason not to apply the schema, or None.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.not_checked = None if wanted else "the schemas were not asked for"
        self._validate: Callable[[Any], str | None] | None = None
        self._verdicts: dict[Any, str | None] = {}

    def wrong(self, event: Event) -> str | None:
        """Return what is wrong with an event, or None."""
        key = _plain_shape(event)
        if key is not None and key in self._verdicts:
            return self._verdicts[key]
        if self._validate is None:
            try:
                self._validate = compile_schema(TRACE_EVENT)
            except MissingExtraError as error:
                self.not_checked = str(error)
                return None
        try:
            value = _decoded(event)
        except ValueError:
            return None  # a number beyond the range of a double breaks another rule
        # Check each metadata event in full: the schema looks at its values, and there are few.
        if value.get("name") == METADATA_EVENT:
            return self._validate(value)
        if key is None:
            key = shape(value)
        if key not in self._verdicts:
            self._verdicts[key] = self._validate(value)
        return self._verdicts[key]


def _decoded(event: Event) -> dict[str, Any]:
    """Return the event as the schema sees it: args only where the schema looks into them."""
    if event.args is not UNSET and event.ph not in ("C", "M") and memoryview(event.args)[0] == ord("{"):
        event = copy(event)
        event.args = Raw(b"{}")
    value: dict[str, Any] = decode_json(encode_json(event))
    return value


def _plain_shape(event: Event) -> tuple[Any, ...] | None:
    """Return `shape` of the most usual events at a tenth of its cost, or None for the others.

    The schema looks only at the types of the values of slices and instants. The first letter of a JSON text gives its type.
    """
    pid, tid = event.pid, event.tid
    if event.ph not in _PLAIN or type(pid) is not int or (type(tid) is not int and tid is not UNSET):
        return None
    name, category, time, duration, args, scope = event.name, event.cat, event.ts, event.dur, event.args, event.s
    return (
        event.ph,
        0 <= pid <= _UINT32_MAX,
        tid is UNSET or 0 <= tid <= _UINT32_MAX,
        tid is UNSET,
        None if name is UNSET else _FIRST_LETTER[memoryview(name)[0]],
        None if category is UNSET else _FIRST_LETTER[memoryview(category)[0]],
        None if time is UNSET else _FIRST_LETTER[memoryview(time)[0]],
        None if duration is UNSET else _FIRST_LETTER[memoryview(duration)[0]],
        None if args is UNSET else _FIRST_LETTER[memoryview(args)[0]],
        None if scope is UNSET else bytes(scope),
    )
