"""The clocks, tracks and strings that the packets of a native trace define, and the decoding of its track events.

Each packet has a time on any of the clocks. Snapshots contain the times of several clocks at one moment. Clocks 64 to
127 belong to one sequence of packets, and may count from the previous packet. All times are converted to ns since the
epoch if the trace contains that clock.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from tracekit.formats.protobuf_wire import fields, signed

BOOTTIME: Final = 6
_REALTIME: Final = 1
_FIRST_OF_SEQUENCE: Final = 64
_LAST_OF_SEQUENCE: Final = 127
_DOUBLE: Final = Struct("<d")
_FIXED64: Final = Struct("<Q")
_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS = 1, 2, 3, 29
_MAX_KNOWN: Final = 20_000
_NESTED_LIST: Final = 2
# Fields of events in the old format: phase, duration, id, flow id, binding to the enclosing slice, flow direction.
_LEGACY_FIELDS: Final = {2, 3, 6, 8, 12, 13}
_HASHED: Final = 1 << 63
_GLOBAL: Final = "global tracks"


class Clocks:
    """The known clocks of a trace."""

    def __init__(self) -> None:
        # Offset to boot time in ns by clock, and by sequence for clocks of a sequence.
        self._to_boot_ns: dict[tuple[int, int], int] = {(0, BOOTTIME): 0}
        self._units_ns: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._boot_to_real_ns: int | None = None

    def snapshot(self, sequence: int, message: bytes) -> None:
        """Add the clocks of a ``ClockSnapshot``."""
        found: dict[tuple[int, int], int] = {}
        for number, value in fields(message):
            if number == 1 and isinstance(value, bytes):
                clock = {key: item for key, item in fields(value) if isinstance(item, int)}
                key = self._key(sequence, clock.get(1, 0))
                unit_ns = clock.get(4, 1) or 1
                found[key] = clock.get(2, 0) * unit_ns
                self._units_ns[key] = unit_ns
                if clock.get(3):
                    self._last[key] = found[key]
        known = next((key for key in ((0, BOOTTIME), *found) if key in found and key in self._to_boot_ns), None)
        if known is None:
            return
        boot_ns = found[known] + self._to_boot_ns[known]
        for key, time_ns in found.items():
            self._to_boot_ns[key] = boot_ns - time_ns
        real = found.get((0, _REALTIME))
        if real is not None and self._boot_to_real_ns is None:
            # Use one offset for the whole trace. Later offsets differ by steps of the clock.
            self._boot_to_real_ns = real - boot_ns

    def time_ns(self, sequence: int, clock: int, time: int) -> int | None:
        """Return the time of a packet in ns since the epoch (or boot, without a wall clock), or None if unknown."""
        key = self._key(sequence, clock)
        time_ns = time * self._units_ns.get(key, 1)
        if key in self._last:
            time_ns = self._last[key] = self._last[key] + time_ns
        to_boot_ns = self._to_boot_ns.get(key)
        return None if to_boot_ns is None else time_ns + to_boot_ns + (self._boot_to_real_ns or 0)

    @staticmethod
    def _key(sequence: int, clock: int) -> tuple[int, int]:
        return (sequence if _FIRST_OF_SEQUENCE <= clock <= _LAST_OF_SEQUENCE else 0, clock)


@dataclass(slots=True)
class _Track:
    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None
    counter: bool = False
    process: str = ""
    thread: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The process and thread of the events of a track.

    Attributes:
        pid: The process, or a name for tracks without a process.
        tid: The thread, or None for tracks of the whole process.
        name: Name of the track or thread.
        process: Name of the process, if the trace contains it.
        task: Id of async events; empty for other events.
    """

    pid: int | str
    tid: int | str | None
    name: str
    process: str
    task: str = ""


class Places:
    """The known tracks of a trace."""

    def __init__(self) -> None:
        self.merged = False
        """True if tracekit merged the trace. The track numbers then identify process and thread."""
        self._tracks: dict[int, _Track] = {}
        self._found: dict[int, Place] = {}

    def describe(self, message: bytes) -> Place | None:
        """Add a ``TrackDescriptor``. Return the place of a process or thread of a merged trace.

        A process of a merged trace counts even without events, and its descriptions may follow the events.
        """
        uuid, track = 0, _Track()
        for number, value in fields(message):
            if number == 1 and isinstance(value, int):
                uuid = value
            elif number == 5 and isinstance(value, int):
                track.parent = value
            elif number in (2, 10, 13):
                track.name = text_of(value)
            elif number == 8:
                track.counter = True
            elif number == 3 and isinstance(value, bytes):
                process = dict(fields(value))
                track.pid, track.process = int(process.get(1, 0)), text_of(process.get(6, b""))
            elif number == 4 and isinstance(value, bytes):
                thread = dict(fields(value))
                track.pid, track.tid = int(thread.get(1, 0)), signed(int(thread.get(2, 0)))
                track.thread = text_of(thread.get(5, b""))
        self._tracks[uuid] = track
        self._found.clear()
        return self.place(uuid) if self.merged and 0 < uuid < _HASHED else None

    def place(self, uuid: int) -> Place:
        """Return the place of the events of a track."""
        found = self._found.get(uuid)
        if found is None:
            track = self._tracks.get(uuid, _Track())
            found = self._found[uuid] = self._merged(uuid, track) if self.merged else self._other(uuid, track)
        return found

    @staticmethod
    def _merged(uuid: int, track: _Track) -> Place:
        if uuid >= _HASHED:
            pid = track.parent >> 32
            return Place(pid, None, track.name, "", "" if track.counter else f"{uuid:x}")
        pid, tid = uuid >> 32, uuid & 0xFFFFFFFF
        return Place(
            pid, tid or None, track.thread or (track.name if tid else ""), track.process or ("" if tid else track.name)
        )

    def _other(self, uuid: int, track: _Track) -> Place:
        pid: int | str | None = None
        process, seen, at = "", set(), uuid
        while at in self._tracks and at not in seen:
            seen.add(at)
            above = self._tracks[at]
            pid = above.pid if pid is None else pid
            process = process or above.process
            at = above.parent
        name = track.thread or track.name or track.process
        if track.tid is not None and pid is not None:
            return Place(pid, track.tid, name, process)
        return Place(_GLOBAL if pid is None else pid, None if track.counter else f"track {uuid:x}", name, process)


def text_of(value: int | bytes) -> str:
    """Return a string of a message. Replace invalid UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


class Incremental:
    """The current definitions of a sequence of packets: interned strings, and defaults of its packets."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], str] = {}
        self.arguments: dict[bytes, tuple[str, Any]] = {}  # cache of decoded arguments, by their bytes
        self.track = 0
        self.clock: int | None = None

    def define(self, message: bytes) -> None:
        """Add the strings of ``InternedData``."""
        for table, entry in fields(message):
            if isinstance(entry, bytes) and table in (_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS):
                found = dict(fields(entry))
                self.texts[table, int(found.get(1, 0))] = text_of(found.get(2, b""))

    def set_defaults(self, message: bytes) -> None:
        """Set the defaults from ``TracePacketDefaults``."""
        for number, value in fields(message):
            if number == 58 and isinstance(value, int):
                self.clock = value
            elif number == 11 and isinstance(value, bytes):
                self.track = int(dict(fields(value)).get(11, 0))

    def text(self, table: int, number: int) -> str:
        """Return an interned string; empty if its definition is missing."""
        return self.texts.get((table, number), "")


@dataclass(slots=True)
class TrackEvent:
    """A track event.

    ``flows`` contains the numbers of flows, each with True for an end. ``lost`` counts fields without a form in JSON.
    ``legacy`` contains the fields of an event in the old format: of a flow event, or the flow of a slice.
    """

    kind: int = 0
    track: int = 0
    name: str = ""
    categories: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    flows: list[tuple[int, bool]] = field(default_factory=list)
    correlation: int | str | None = None
    legacy: dict[int, int] = field(default_factory=dict)
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
        elif number == 6 and isinstance(value, bytes):
            event.legacy |= {key: item for key, item in fields(value) if isinstance(item, int)}
            if not event.legacy.keys() <= _LEGACY_FIELDS:
                event.lost["field_6_of_events"] += 1
        else:
            event.lost[f"field_{number}_of_events"] += 1
    return event


def _argument(message: bytes, state: Incremental) -> tuple[str, Any]:
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
            # tracekit's marker for null, and for empty lists and dicts.
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
