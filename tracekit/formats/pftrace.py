"""Perfetto's own trace format: protobuf wire encoding by hand, for the few messages that a merged trace needs.

A trace is a sequence of packets, each length-prefixed, so that traces can be joined by appending one to the other and a cut
loses only its last packet. Fields and numbers are those of perfetto_trace.proto in Perfetto's repository.

A packet belongs to a sequence, written by one writer. Names, categories, names of arguments and texts in arguments are
interned: a sequence defines a number for each once, and uses the number from then on.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Final

from tracekit.formats.protobuf_wire import LOW_14, SHORT, block, number_field, packet, text_field, varint

__all__ = [
    "BEGIN",
    "COUNTER",
    "END",
    "INSTANT",
    "ROOT_UUID",
    "Sequence",
    "clock_snapshot",
    "correlation",
    "counter_track",
    "counter_value",
    "flow",
    "flow_end",
    "metadata_value",
    "process_track",
    "root_track",
    "thread_track",
    "track",
]

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of events."""

ROOT_UUID: Final = 0
"""The track that every trace has; it holds what is true of all tracks."""

_BOOTTIME: Final = 6
_REALTIME: Final = 1
_EXPLICIT: Final = 3
_NEVER_MERGE: Final = 2
_UNIT_NS: Final = 1
_UNIT_BYTES: Final = 3
_STATE_CLEARED: Final = 1
_NEEDS_STATE: Final = 2
_MAX_INTERNED_BYTES: Final = 200
_MAX_DEPTH: Final = 32
_MAX_INT64: Final = 2**63 - 1
_MAX_UINT64: Final = 2**64 - 1

_DOUBLE: Final = Struct("<d")
_FIXED64: Final = Struct("<Q")

# Descriptions of tracks.


def root_track() -> bytes:
    """Return the description of the root track: processes and threads stand in the order that their tracks tell."""
    return number_field(1, ROOT_UUID) + number_field(19, 1) + number_field(20, 1)


def process_track(uuid: int, pid: int, name: str, *, order: int, labels: list[str]) -> bytes:
    """Return the description of a process.

    Args:
        uuid: The track's number, unique in the trace.
        pid: The number the viewer shows.
        name: The name it shows.
        order: Its place among the processes.
        labels: Shown beside the name.
    """
    process = (
        number_field(1, pid)
        + text_field(6, name)
        + number_field(3, order)
        + b"".join(text_field(8, label) for label in labels)
    )
    return number_field(1, uuid) + block(3, process) + number_field(11, _EXPLICIT) + number_field(12, order)


def thread_track(uuid: int, parent: int, pid: int, tid: int, name: str | None, *, order: int) -> bytes:
    """Return the description of a thread of a process; ``order`` is its place among the process's tracks."""
    thread = (
        number_field(1, pid)
        + number_field(2, tid)
        + (text_field(5, name) if name is not None else b"")
        + number_field(3, order)
    )
    return number_field(1, uuid) + number_field(5, parent) + block(4, thread) + number_field(12, order)


def track(uuid: int, parent: int, name: str, *, order: int, merge: bool = False) -> bytes:
    """Return the description of any other track, or group of tracks.

    Args:
        uuid: The track's number.
        parent: The track that it is shown in.
        name: What it is called.
        order: Its place among the tracks there.
        merge: Whether the viewer may show it as one with tracks of the same name there.
    """
    text = (
        number_field(1, uuid)
        + number_field(5, parent)
        + text_field(2, name)
        + number_field(11, _EXPLICIT)
        + number_field(12, order)
    )
    return text if merge else text + number_field(15, _NEVER_MERGE)


def counter_track(uuid: int, parent: int, name: str, *, unit: str, order: int) -> bytes:
    """Return the description of a counter; ``unit`` is "bytes", "ns", any other unit, or empty."""
    counter = {"bytes": number_field(3, _UNIT_BYTES), "ns": number_field(3, _UNIT_NS), "": b""}.get(unit)
    if counter is None:
        counter = text_field(6, unit)
    return (
        number_field(1, uuid)
        + number_field(5, parent)
        + text_field(2, name)
        + block(8, counter)
        + number_field(12, order)
    )


# Parts of events.


def counter_value(value: float) -> bytes:
    """Return the value of a `COUNTER` event."""
    if isinstance(value, int) and -_MAX_INT64 <= value <= _MAX_INT64:
        return b"\xf0\x01" + varint(value)
    return b"\xe1\x02" + _DOUBLE.pack(value)


def flow(number: int) -> bytes:
    """Return that an arrow with this number (64 bits) begins at an event, or passes it."""
    return b"\xf9\x02" + _FIXED64.pack(number)


def flow_end(number: int) -> bytes:
    """Return that an arrow with this number ends at an event."""
    return b"\x81\x03" + _FIXED64.pack(number)


def correlation(text: str) -> bytes:
    """Return that an event belongs together with all others of the same text; viewers highlight them as one."""
    return text_field(53, text)


# What a sequence needs no state for.


def clock_snapshot(boot_ns: int, real_ns: int) -> bytes:
    """Return the field of a packet that ties the clock of all events to the time of day, ns since the epoch."""
    clocks = [
        number_field(1, clock) + number_field(2, time) for clock, time in ((_BOOTTIME, boot_ns), (_REALTIME, real_ns))
    ]
    return block(6, b"".join(block(1, clock) for clock in clocks) + number_field(2, _BOOTTIME))


def metadata_value(name: str, json: bytes) -> bytes:
    """Return the field of a packet that keeps a JSON text with the trace, under a name."""
    return block(5, block(2, text_field(1, name) + block(5, json)))


class Sequence:
    """Encodes the packets of one sequence.

    What an event uses of interned texts is defined before the event is encoded: write what `definitions` returns before the
    events that were encoded since the last call.

    Args:
        number: Of the sequence, unique in the trace: 1 to 2**32 - 1.
        max_texts: How many different texts of a kind are interned; further ones are written out.
    """

    def __init__(self, number: int, *, max_texts: int = 50_000) -> None:
        self._max_texts = max_texts
        self._mark = b"\x50" + varint(number)
        self._stamp = self._mark + b"\x68" + varint(_NEEDS_STATE)
        self._names: dict[bytes, bytes] = {}
        self._categories: dict[bytes, bytes] = {}
        self._keys: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._new: list[bytes] = []
        self._begun = False
        self._high = 0
        self._high_digits = b""
        self._ends: dict[int, bytes] = {}
        self._kinds: dict[tuple[int, int], bytes] = {}

    def plain(self, content: bytes, time_ns: int | None = None) -> bytes:
        """Return a packet of the sequence that is no event, such as the description of a track."""
        stamp = b"" if time_ns is None else b"\x40" + varint(time_ns)
        return packet(stamp + self._mark + content)

    def describe(self, description: bytes) -> bytes:
        """Return the description of a track as a packet."""
        return self.plain(block(60, description))

    def definitions(self) -> bytes:
        """Return a packet that defines the texts that were interned since the last call; empty if there are none.

        The first one, which begins the sequence, tells that nothing was interned before, and is never empty.
        """
        if not self._new and self._begun:
            return b""
        flags = _NEEDS_STATE if self._begun else _STATE_CLEARED
        content = self._mark + b"\x68" + varint(flags) + block(12, b"".join(self._new))
        self._begun = True
        self._new.clear()
        return packet(content)

    def _time(self, time_ns: int) -> bytes:
        high = time_ns >> 28
        if not high:
            return varint(time_ns)
        # Times of a trace differ in their last digits.
        if high != self._high:
            self._high, self._high_digits = high, varint(high)
        return LOW_14[time_ns & 0x3FFF] + LOW_14[time_ns >> 14 & 0x3FFF] + self._high_digits

    def event(self, time_ns: int, body: bytes) -> bytes:
        """Return an event as a packet; its body is `kind` and then any of the other parts."""
        size = len(body)
        content = (
            b"\x40" + self._time(time_ns) + self._stamp + b"\x5a" + (SHORT[size] if size < 16384 else varint(size))
        )
        return b"\x0a" + varint(len(content) + size) + content + body

    def end(self, time_ns: int, uuid: int) -> bytes:
        """Return the packet that ends the innermost open slice of a track; an `event` of kind `END` can do so as well."""
        fixed = self._ends.get(uuid)
        if fixed is None:
            body = b"\x48\x02\x58" + varint(uuid)
            fixed = self._ends[uuid] = self._stamp + b"\x5a" + varint(len(body)) + body
        time = self._time(time_ns)
        return b"\x0a" + SHORT[len(time) + len(fixed) + 1] + b"\x40" + time + fixed

    def kind(self, kind: int, uuid: int) -> bytes:
        """Return what every event begins with: its type and its track."""
        found = self._kinds.get((kind, uuid))
        if found is None:
            found = self._kinds[kind, uuid] = b"\x48" + varint(kind) + b"\x58" + varint(uuid)
        return found

    def name(self, name: bytes) -> bytes:
        """Return the name of an event, given in UTF-8."""
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= self._max_texts:
                return block(23, name)
            found = self._names[name] = self._intern(2, 10, len(self._names), name)
        return found

    def category(self, category: bytes) -> bytes:
        """Return the category of an event, given in UTF-8."""
        found = self._categories.get(category)
        if found is None:
            if len(self._categories) >= self._max_texts:
                return block(22, category)
            found = self._categories[category] = self._intern(1, 3, len(self._categories), category)
        return found

    def number(self, name: str, value: int) -> bytes:
        """Return an `argument` that is an integer from 0 to 2**63 - 1."""
        key = self._keys.get(name) or self._key(name)
        content = key + b"\x20" + (SHORT[value] if value < 16384 else varint(value))
        return b"\x22" + varint(len(content)) + content

    def argument(self, name: str, value: Any) -> bytes:
        """Return an argument of an event.

        Args:
            name: Its name.
            value: Any JSON value.
        """
        content = self._key(name) + self._value(value, 0)
        return b"\x22" + varint(len(content)) + content

    def _key(self, name: str) -> bytes:
        found = self._keys.get(name)
        if found is None:
            if len(self._keys) >= self._max_texts:
                return text_field(10, name)
            found = self._keys[name] = self._intern(3, 1, len(self._keys), name.encode("utf-8", "replace"))
        return found

    def _value(self, value: Any, depth: int) -> bytes:
        kind = type(value)
        if kind is int:
            if -_MAX_INT64 <= value <= _MAX_INT64:
                return b"\x20" + varint(value)
            return b"\x18" + varint(value) if 0 < value <= _MAX_UINT64 else text_field(6, str(value))
        if kind is str:
            return self._text(value)
        if kind is float:
            return b"\x29" + _DOUBLE.pack(value)
        if kind is bool:
            return b"\x10\x01" if value else b"\x10\x00"
        if value and depth >= _MAX_DEPTH:
            return text_field(6, json.dumps(value, ensure_ascii=False))
        if kind is dict and value:
            items = [self._key(name) + self._value(item, depth + 1) for name, item in value.items()]
            return b"".join([b"\x5a" + varint(len(item)) + item for item in items])
        if kind is list and value:
            items = [self._item(item, depth + 1) for item in value]
            return b"".join([b"\x62" + varint(len(item)) + item for item in items])
        # Null has no form: an argument without a value. Not the form for JSON texts, at which Perfetto's engine crashes.
        return b"" if value is None else block(8, number_field(1, 1 if kind is dict else 2))

    def _item(self, value: Any, depth: int) -> bytes:
        # Perfetto's engine passes over an item without a value, and then gives its place to the next one.
        if value:
            return self._value(value, depth)
        kind = type(value)
        empty = "[]" if kind is list else "{}" if kind is dict else "null" if value is None else None
        # Marked by the name of a type, which the engine looks at for values of other kinds only.
        return self._value(value, depth) if empty is None else b"\x68\x01" + self._text(empty)

    def _text(self, text: str) -> bytes:
        found = self._texts.get(text)
        if found is None:
            encoded = text.encode("utf-8", "replace")
            if len(encoded) > _MAX_INTERNED_BYTES or len(self._texts) >= self._max_texts:
                return block(6, encoded)
            found = self._texts[text] = self._intern(29, 17, len(self._texts), encoded)
        return found

    def _intern(self, table: int, field: int, known: int, text: bytes) -> bytes:
        """Define a text of a table, and return the field by which it is used."""
        number = known + 1
        self._new.append(block(table, number_field(1, number) + block(2, text)))
        return number_field(field, number)
