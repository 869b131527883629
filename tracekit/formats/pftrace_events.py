"""The track events of a native trace, decoded, with the texts that a sequence has interned."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from tracekit.formats.protobuf_wire import fields, signed

__all__ = ["Incremental", "TrackEvent", "read_event", "text_of"]

_DOUBLE: Final = Struct("<d")
_FIXED64: Final = Struct("<Q")
_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS = 1, 2, 3, 29
_MAX_KNOWN: Final = 20_000
_NESTED_LIST: Final = 2


def text_of(value: int | bytes) -> str:
    """Return a text of a message; what is no UTF-8 in it is replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


class Incremental:
    """What a sequence of packets has defined so far: interned texts, and what its packets need not repeat."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], str] = {}
        self.arguments: dict[bytes, tuple[str, Any]] = {}  # arguments that were decoded before, by their bytes
        self.track = 0
        self.clock: int | None = None

    def define(self, message: bytes) -> None:
        """Learn from ``InternedData``."""
        for table, entry in fields(message):
            if isinstance(entry, bytes) and table in (_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS):
                found = dict(fields(entry))
                self.texts[table, int(found.get(1, 0))] = text_of(found.get(2, b""))

    def set_defaults(self, message: bytes) -> None:
        """Learn from ``TracePacketDefaults``."""
        for number, value in fields(message):
            if number == 58 and isinstance(value, int):
                self.clock = value
            elif number == 11 and isinstance(value, bytes):
                self.track = int(dict(fields(value)).get(11, 0))

    def text(self, table: int, number: int) -> str:
        """Return an interned text; empty where its definition is missing."""
        return self.texts.get((table, number), "")


@dataclass(slots=True)
class TrackEvent:
    """A track event. ``flows`` are numbers of arrows, each with whether it ends here; ``lost`` is what has no form in JSON."""

    kind: int = 0
    track: int = 0
    name: str = ""
    categories: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    flows: list[tuple[int, bool]] = field(default_factory=list)
    correlation: int | str | None = None
    lost: Counter[str] = field(default_factory=Counter)


def read_event(message: bytes, state: Incremental) -> TrackEvent:
    """Decode a ``TrackEvent``."""
    event = TrackEvent(track=state.track)
    for number, value in fields(message):
        if number == 9:
            event.kind = int(value)
        elif number == 11:
            event.track = int(value)
        elif number == 10 and isinstance(value, int):
            event.name = state.text(_NAMES, value)
        elif number == 23:
            event.name = text_of(value)
        elif number == 3 and isinstance(value, int):
            event.categories.append(state.text(_CATEGORIES, value))
        elif number == 22:
            event.categories.append(text_of(value))
        elif number == 4 and isinstance(value, bytes):
            known = state.arguments.get(value)
            if known is None:
                known = _argument(value, state)
                if len(state.arguments) < _MAX_KNOWN:
                    state.arguments[value] = known
            event.arguments[known[0]] = known[1]
        elif number == 30 and isinstance(value, int):
            event.value = signed(value)
        elif number == 44 and isinstance(value, bytes):
            event.value = _DOUBLE.unpack(value)[0]
        elif number in (47, 48) and isinstance(value, bytes):
            event.flows += [(arrow, number == 48) for (arrow,) in _FIXED64.iter_unpack(value)]
        elif number in (36, 42) and isinstance(value, int):
            event.flows.append((value, number == 42))
        elif number == 52:
            event.correlation = int(value)
        elif number == 53:
            event.correlation = text_of(value)
        else:
            event.lost[f"field_{number}_of_events"] += 1
    return event


def _argument(message: bytes, state: Incremental) -> tuple[str, Any]:
    """Return name and value of a ``DebugAnnotation``."""
    name = ""
    value: Any = None
    for number, item in fields(message):
        if number == 1 and isinstance(item, int):
            name = state.text(_ARGUMENTS, item)
        elif number == 10:
            name = text_of(item)
        elif number == 11 and isinstance(item, bytes):
            key, entry = _argument(item, state)
            value = {**value, key: entry} if isinstance(value, dict) else {key: entry}
        elif number == 12 and isinstance(item, bytes):
            value = value if isinstance(value, list) else []
            value.append(_argument(item, state)[1])
        elif number == 13 and item == 1:
            # So tracekit marks items that stand for null and for what is empty.
            marked = dict(fields(message))
            text = state.text(_TEXTS, int(marked[17])) if 17 in marked else text_of(marked.get(6, b"null"))
            return name, {"[]": [], "{}": {}}.get(text)
        else:
            value = _scalar(number, item, state, value)
    return name, value


def _scalar(number: int, item: int | bytes, state: Incremental, value: Any) -> Any:
    if isinstance(item, int):
        found = {2: bool(item), 3: item, 4: signed(item), 7: hex(item)}
        return state.text(_TEXTS, item) if number == 17 else found.get(number, value)
    if number == 5:
        return _DOUBLE.unpack(item)[0]
    if number == 6:
        return text_of(item)
    if number == 8:
        return [] if dict(fields(item)).get(1) == _NESTED_LIST else {}
    if number == 9:
        try:
            return json.loads(item)
        except ValueError:
            return text_of(item)
    return value
