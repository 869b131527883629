"""Events of a merged trace as records of a native Perfetto trace: the general way, one event at a time.

A record is a slice, an instant, a flow event, the value of a counter, or the begin or end of a slice.
`tracekit.core._merge.PftraceEncoder` does the same for usual events, to the byte.
"""

from __future__ import annotations

import json
import re
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import parse_us
from tracekit.formats.pftrace import block, counter_value, number_field, text_field, varint
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_or_none, decode_raw_dict, raw_field
from tracekit.merge.write.pftrace_packets import (
    BEGIN,
    CATEGORIES,
    COUNTER,
    END,
    FLOW,
    INSTANT,
    KEYS,
    LAST_NS,
    NAMES,
    NEXT_FLOW,
    SLICE,
    TEXTS,
    process_uuid,
    thread_uuid,
    uuid_of,
)

if TYPE_CHECKING:
    from tracekit.merge.write.pftrace_packets import AnyStore

_OTHER_FIELDS: Final = ("id", "id2", "scope", "tts", "tdur", "cname", "sf", "stack")
"""Fields that a native trace has no place for; they are kept as an argument."""
_ASYNC: Final = {"b": BEGIN, "S": BEGIN, "e": END, "F": END, "n": INSTANT, "T": INSTANT, "p": INSTANT}
_HALVES: Final = {"B": BEGIN, "E": END, **_ASYNC}
_FLOWS: Final = "stf"
_INSTANTS: Final = "iIR"
# Directions of `bind_id`.
_IN, _OUT, _BOTH = 1, 2, 3
_UNITS: Final = (
    ("bytes_per_s", "bytes/s"),
    ("bytes", "bytes"),
    ("percent", "%"),
    ("ns", "ns"),
    ("us", "us"),
    ("µs", "µs"),
    ("ms", "ms"),
    ("s", "s"),
)
_SPACE: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_MASK: Final = 2**64 - 1
_MAX_PID: Final = 2**32 - 1

# The arguments that identify a collective operation on all of its ranks.
_COLLECTIVE: Final = ("Process Group Name", "Process Group Ranks", "Seq")
_DOUBLE: Final = Struct("<d")
_MAX_DEPTH: Final = 32
_MAX_INT64: Final = 2**63 - 1
_MAX_UINT64: Final = 2**64 - 1


class EventRecords:
    """Turns events into records, and arguments into debug annotations."""

    def __init__(self, records: AnyStore, base_ns: int, flow_offset: int) -> None:
        self._records = records
        self._intern = records.intern
        self._base_ns = base_ns
        self._flow_offset = flow_offset

    def add(self, event: Event) -> None:
        """Process an event other than metadata."""
        phase: Any = event.ph
        pid: Any = event.pid
        tid: Any = event.tid
        time = None if event.ts is UNSET else parse_us(bytes(event.ts))
        # Viewers follow no later time.
        start = -1 if time is None else min(self._base_ns + time, LAST_NS)
        is_placed = isinstance(pid, int) and isinstance(tid, int) and 0 <= pid <= _MAX_PID >= tid >= 0
        if not isinstance(phase, str) or not is_placed or start < 0:
            raise ValueError("an event without a usable phase, pid, tid or time")
        if phase == "C":
            self._counter(event, pid, start)
            return
        # The core interns the texts of an event in the same order.
        category, name = _utf8(event.cat), _utf8(event.name)
        uuid, end, kind = thread_uuid(pid, tid), start, INSTANT
        if phase == "X":
            duration = None if event.dur is UNSET else parse_us(bytes(event.dur))
            kind, end = SLICE, min(start + max(duration or 0, 0), LAST_NS)
        elif phase in _FLOWS:
            bound = phase != "f" or raw_field(event.bp) == b'"e"'
            kind = FLOW if bound else NEXT_FLOW
            self._records.add(kind, uuid, pid, start, start, category, name, self._flow(event, bound and phase == "f"))
            return
        elif phase in _HALVES:
            kind = _HALVES[phase]
            if phase in _ASYNC:
                uuid = self._async_uuid(event, pid)
        elif phase in _INSTANTS and event.s is not UNSET and bytes(event.s) == b'"p"':
            uuid = process_uuid(pid)
        for table, text in ((CATEGORIES, category), (NAMES, name)):
            if text:
                self._intern(table, text)
        # Keep the phase of events that viewers do not show.
        shown = phase == "X" or phase in _HALVES or phase in _INSTANTS
        rest = self._rest(event, "" if shown else phase)
        self._records.add(kind, uuid, pid, start, end, category, name, rest)

    def _rest(self, event: Event, phase: str) -> bytes:
        fields = b"" if event.args is UNSET else self.arguments(bytes(event.args))
        other = {
            name: decode_or_none(getattr(event, name)) for name in _OTHER_FIELDS if getattr(event, name) is not UNSET
        }
        if event.ph in _ASYNC:
            for name in ("id", "id2"):
                other.pop(name, None)
        if phase:
            other["ph"] = phase
        if event.extra is not UNSET:
            other.update((name, decode_or_none(value)) for name, value in event.extra.items())
        if other:
            fields += self.argument("trace_event", other)
        if event.bind_id is not UNSET:
            out, in_ = bool(decode_or_none(event.flow_out)), bool(decode_or_none(event.flow_in))
            if out or in_:
                direction = _BOTH if out and in_ else _OUT if out else _IN
                fields += block(6, number_field(8, self._flow_number(event.bind_id)) + number_field(13, direction))
        return fields

    def _flow(self, event: Event, ends_here: bool) -> bytes:
        """Return a flow event in the form of the old format, which the engine ties to slices as it does with JSON."""
        text = number_field(2, ord(str(event.ph))) + number_field(6, self._flow_number(event.id))
        return block(6, text + number_field(12, 1) if ends_here else text)

    def _flow_number(self, raw: Any) -> int:
        text = raw_field(raw)
        number = int(text) if text.isdigit() else uuid_of(b"flow", text)
        return (self._flow_offset + number) & _MASK

    def _counter(self, event: Event, pid: int, start: int) -> None:
        name, number = field_text(event.name), "" if event.id is UNSET else f" id: {field_text(event.id)}"
        values = decode_or_none(event.args)
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, (int, float)):
                title = f"{name}{number} {key}".encode("utf-8", "replace")
                uuid = uuid_of(b"counter", b"%d" % pid, title)
                self._records.add(COUNTER, uuid, pid, start, start, unit_of(key).encode(), title, counter_value(value))

    def _async_uuid(self, event: Event, pid: int) -> int:
        """Return the track of an async event: events of one category and id nest in each other."""
        fields = (raw_field(event.cat), raw_field(event.id2), raw_field(event.id))
        what = (_SPACE.sub(rb"\1", field) for field in fields)  # the same with any spacing
        return uuid_of(b"async", b"%d" % self._flow_offset, b"%d" % pid, *what)

    def arguments(self, raw: bytes) -> bytes:
        """Return the arguments of an event as fields, from their JSON text."""
        if raw[:1] != b"{":
            return self.argument("args", decode_or_none(Raw(raw)))
        args = decode_raw_dict(raw)
        fields = b""
        for name, value in args.items():
            decoded = decode_or_none(value)
            # A number that no double holds stays a text.
            fields += self.argument(
                name, bytes(value).decode() if decoded is None and bytes(value) != b"null" else decoded
            )
        if "Seq" in args and "Process Group Name" in args:
            # Viewers highlight all events with one correlation id.
            fields += text_field(53, " ".join(field_text(args.get(name, UNSET)) for name in _COLLECTIVE))
        return fields

    def argument(self, name: str, value: Any) -> bytes:
        """Return an argument with any JSON value as a field."""
        return block(4, self._key(name) + self._value(value, 0))

    def _key(self, name: str) -> bytes:
        text = name.encode("utf-8", "replace")
        number = self._intern(KEYS, text)
        return number_field(1, number) if number else block(10, text)

    def _text(self, text: str) -> bytes:
        encoded = text.encode("utf-8", "replace")
        number = self._intern(TEXTS, encoded)
        return b"\x88\x01" + varint(number) if number else block(6, encoded)

    def _value(self, value: Any, depth: int) -> bytes:
        if value is None:
            return b""  # the field for JSON texts would crash Perfetto's engine
        kind = type(value)
        if kind is bool:
            return number_field(2, value)
        if kind is int:
            if -_MAX_INT64 <= value <= _MAX_INT64:
                return number_field(4, value)
            return number_field(3, value) if 0 < value <= _MAX_UINT64 else text_field(6, str(value))
        if kind is float:
            return b"\x29" + _DOUBLE.pack(value)
        if kind is str:
            return self._text(value)
        if not value:
            return block(8, number_field(1, 1 if kind is dict else 2))
        if depth >= _MAX_DEPTH:
            return text_field(6, json.dumps(value, ensure_ascii=False))
        if kind is dict:
            return b"".join([block(11, self._key(key) + self._value(item, depth + 1)) for key, item in value.items()])
        return b"".join([block(12, self._item(item, depth + 1)) for item in value])

    def _item(self, value: Any, depth: int) -> bytes:
        # Perfetto's engine skips an item without a value and gives its place to the next one: write it as a text,
        # marked by the name of a type, which the engine reads for values of other kinds only.
        if value is None or value in ([], {}):
            return b"\x68\x01" + self._text(json.dumps(value))
        return self._value(value, depth)


def unit_of(name: str) -> str:
    """Return the unit in the name of a counter's series, such as "rss_bytes", or an empty text."""
    for ending, unit in _UNITS:
        if name == ending or name.endswith(f"_{ending}"):
            return unit
    return ""


def _utf8(field: Any) -> bytes:
    raw = raw_field(field)
    return raw[1:-1] if raw[:1] == b'"' and b"\\" not in raw else field_text(field).encode("utf-8", "replace")


def field_text(field: Any) -> str:
    """Return a field of an event as text, or an empty text without it."""
    value = decode_or_none(field)
    return "" if value is None else str(value)
