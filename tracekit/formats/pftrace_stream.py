"""PftraceStream: reads a native trace of Perfetto as Chrome JSON.

Slices become ``B`` and ``E``, arrows flow events, counters ``C``. Tracks without a thread become async events if tracekit
merged the trace, otherwise threads with new names. Data other than track events (the scheduler of the system, samples) has no
form in Chrome JSON, and is counted as lost.

Each packet has a time on any of the clocks. Snapshots contain the times of several clocks at one moment. Clocks 64 to 127
belong to one sequence of packets, and may count from the previous packet. All times are converted to ns since the epoch if
the trace contains that clock.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from contextlib import suppress
from struct import Struct as Packing
from struct import error as StructError  # noqa: N812 - a class
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.byte_stream import ConvertedStream
from tracekit.formats.decimal_time import format_us
from tracekit.formats.pftrace import BEGIN, COUNTER, END, INSTANT, WireError, fields, flow_offset, packet_at, signed
from tracekit.structs import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.formats.byte_stream import ByteStream

_MAX_PACKET_BYTES: Final = 64 << 20
# A packet with one of its possible first fields: time, clock snapshot, sequence, user, flags, event, interned strings,
# track description, configuration, compressed packets, or uuid. No JSON text has these bytes after an empty line.
_FIRST_PACKET: Final = re.compile(
    rb"\n[\x80-\xff]{0,4}[\x00-\x7f](?:[\x40\x32\x50\x18\x68\x5a\x62]|\xe2\x03|\x8a\x02|\x92\x03|\xca\x05)"
)
# Packets about the recording and the machine.
_ABOUT_THE_RECORDING: Final = frozenset({3, 33, 34, 35, 36, 41, 42, 45, 46, 51, 67, 69, 78, 79, 87, 89, 98, 124, 126})
_BROKEN: Final = (ValueError, RecursionError, StructError, zlib.error)
_STATE_CLEARED: Final = 1
_FLOW_PHASES: Final = frozenset("stf")
_BOOTTIME: Final = 6
_REALTIME: Final = 1
_FIRST_OF_SEQUENCE: Final = 64
_LAST_OF_SEQUENCE: Final = 127
_DOUBLE: Final = Packing("<d")
_FIXED64: Final = Packing("<Q")
_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS = 1, 2, 3, 29
_MAX_KNOWN: Final = 20_000
_NESTED_LIST: Final = 2
# Fields of events in the old format: phase, duration, id, flow id, binding to the enclosing slice, flow direction.
_LEGACY_FIELDS: Final = {2, 3, 6, 8, 12, 13}
_HASHED: Final = 1 << 63
_GLOBAL: Final = "global tracks"


def _listed(of: Any, key: str) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else None
    return found if isinstance(found, list) else []


def is_pftrace(data: bytes) -> bool:
    """Return True if these first bytes are of a native trace of Perfetto."""
    return _FIRST_PACKET.match(data) is not None


class PftraceStream(ConvertedStream):
    """Reads a native trace as Chrome JSON of the object form."""

    foreign = "pftrace"

    def __init__(self, source: ByteStream) -> None:
        super().__init__(source)
        self._header: dict[str, Any] = {}
        self._out: list[str] = []
        self._separator = ""
        self._unpacking = False
        self._clocks = _Clocks()
        self._places = _Places()
        self._states: dict[int, _Incremental] = {}
        self._named: set[tuple[int | str, int | str | None]] = set()
        self._tasks: dict[str, list[tuple[str, str]]] = {}
        self._arrows: dict[int, int] = {}
        self._arrow_count = 0
        self._flow_offset = self._merges = 0

    def _convert(self) -> Iterator[bytes]:
        yield b'{"traceEvents":[\n'
        data = b""
        while self.damage is None and (piece := self._source.read()):
            data += piece
            try:
                data = data[self._packets(data) :]
            except WireError as error:
                self.damage = f"there is {error} where a packet should begin"
                self.losses["what_follows_a_broken_packet"] += 1
            yield "".join(self._out).encode("utf-8", "replace")
            self._out.clear()
        self.damage = self.damage or self._source.damage or ("the last packet is cut off" if data else None)
        header = "".join(f",\n{json.dumps(key)}: {json.dumps(value)}" for key, value in self._header.items())
        # The reader reports an object that is not closed as a cut file.
        yield (f"\n]{header}" + ("" if self.damage else "}\n")).encode("utf-8", "replace")

    def _packets(self, data: bytes) -> int:
        """Read the packets in ``data``. Return the start of the first incomplete packet."""
        at = 0
        while (found := packet_at(data, at)) is not None:
            start, at = found
            try:
                self._packet(data[start:at])
            except _BROKEN:
                # The next packet begins at the stated end of this one.
                self.losses["broken_packets"] += 1
        if len(data) - at > _MAX_PACKET_BYTES:
            raise WireError(f"it is longer than {_MAX_PACKET_BYTES} bytes")
        return at

    def _packet(self, data: bytes) -> None:
        found: dict[int, Any] = dict(fields(data))
        sequence = int(found.pop(10, 0))
        if int(found.pop(13, 0)) & _STATE_CLEARED or found.pop(41, 0):
            self._states.pop(sequence, None)
        state = self._states.setdefault(sequence, _Incremental())
        time = int(found.pop(8, 0))
        clock = found.pop(58, None)
        if 12 in found:
            state.define(found.pop(12))
        if 59 in found:
            state.set_defaults(found.pop(59))
        if 60 in found and (place := self._places.describe(found.pop(60))) is not None:
            self._name(place)
        if 6 in found:
            self._clocks.snapshot(sequence, found.pop(6))
        if 5 in found:
            self._chrome_events(found.pop(5))
        if 50 in found:
            if self._unpacking:
                raise WireError("packed packets inside of packed packets")
            self._unpacking = True
            try:
                self._packets(_unpacked(found.pop(50)))
            finally:
                self._unpacking = False
        if 11 in found:
            event = found.pop(11)
            time_ns = self._clocks.time_ns(sequence, state.clock if clock is None else clock, time)
            if time_ns is None:
                self.losses["events_of_an_unknown_clock"] += 1
            else:
                self._event(_read_event(event, state), time_ns)
        if found.keys() - _ABOUT_THE_RECORDING:
            self.losses["packets_that_are_no_track_events"] += 1

    def _chrome_events(self, message: bytes) -> None:
        """Read the metadata of a trace. tracekit stores its metadata there, and the metadata events of its inputs."""
        for number, entry in fields(message):
            value = dict(fields(entry)) if number == 2 and isinstance(entry, bytes) else {}
            name, text = _text_of(value.get(1, b"")), _text_of(value.get(5, b""))
            if text.startswith('{"ph":"M"'):
                self._write(text)
                continue
            try:
                described = json.loads(text)
            except ValueError:
                continue
            if name == "tracekit" and isinstance(described, dict):
                self._flow_offset = flow_offset(bytes(value[5]))
                self._merges += 1
                self._describe(described)
            else:
                self._header.setdefault(name, described)

    def _describe(self, described: dict[str, Any]) -> None:
        """Read the header of a merged trace, or of another trace that is appended to the first."""
        self._places.merged = True
        described.pop("baseTimeNanoseconds", None)
        first, second = self._header.get("tracekit"), described.get("tracekit")
        if isinstance(first, dict) and isinstance(second, dict):
            merges = first.get("merge"), second.get("merge")
            # Merges before format version 2 list their processes and inputs here.
            for key, one, other in (("processes", first, second), ("inputs", first, second), ("ranks", *merges)):
                both = _listed(one, key), _listed(other, key)
                both[0].extend(item for item in both[1] if item not in both[0])
        for key, value in described.items():
            self._header.setdefault(key, value)

    # Events.

    def _write(self, text: str) -> None:
        self._out.append(self._separator + text)
        self._separator = ",\n"

    def _emit(self, phase: str, place: _Place, time_ns: int, **more: Any) -> None:
        event = {"ph": phase, "pid": place.pid, "tid": place.pid if place.tid is None else place.tid, **more}
        text = json.dumps({key: value for key, value in event.items() if value not in ("", {})}, ensure_ascii=False)
        self._write(f'{text[:-1]}, "ts": {format_us(time_ns).decode()}}}')

    def _name(self, place: _Place) -> None:
        """Write the names of the process and thread of a place at its first use."""
        for what, key, name in (
            ("process_name", (place.pid, None), place.process),
            ("thread_name", (place.pid, place.tid), place.name if place.tid is not None else ""),
        ):
            if name and key not in self._named:
                self._named.add(key)
                tid = place.pid if key[1] is None else key[1]
                event = {"ph": "M", "name": what, "pid": place.pid, "tid": tid, "args": {"name": name}}
                self._write(json.dumps(event, ensure_ascii=False))

    def _event(self, event: _TrackEvent, time_ns: int) -> None:
        place = self._places.place(event.track)
        self._name(place)
        self.losses.update(event.lost)
        if event.kind == COUNTER:
            self._counter(place, event, time_ns)
        elif self._places.merged and event.legacy == {6: 0}:
            pass  # the event only gives a flow event a place
        elif event.kind in (BEGIN, END, INSTANT):
            self._slice(place, event, time_ns)
        elif chr(event.legacy.get(2, 0)) in _FLOW_PHASES:
            self._flow(place, event, time_ns)
        else:
            self.losses[f"events_of_type_{event.kind}"] += 1
        for arrow, ends in event.flows:
            self._arrow(place, arrow, time_ns, ends=ends)

    def _slice(self, place: _Place, event: _TrackEvent, time_ns: int) -> None:
        phase = {BEGIN: "B", END: "E", INSTANT: "i"}[event.kind]
        found: dict[str, Any] = {"cat": ",".join(event.categories), "name": event.name, "args": event.arguments}
        if self._places.merged and isinstance(event.arguments.get("trace_event"), dict):
            # The fields of an event without a native form.
            kept = dict(event.arguments.pop("trace_event"))
            phase = str(kept.pop("ph", phase))
            found = {**kept, **found}
        if 8 in event.legacy and 13 in event.legacy:
            direction = event.legacy[13]
            found["bind_id"] = self._flow_id(event.legacy[8])
            found.update({key: True for key, bit in (("flow_in", 1), ("flow_out", 2)) if direction & bit})
        if event.correlation is not None and not self._places.merged:
            event.arguments["correlation_id"] = event.correlation
        if place.task:
            open_ = self._tasks.setdefault(place.task, [])
            if event.kind == BEGIN:
                open_.append((found["name"], found["cat"]))
            elif event.kind == END and open_:
                # The end of an async event must repeat name and category of its start.
                found["name"], found["cat"] = open_.pop()
            found.pop("id", None)
            found["id2"] = {"local": place.task}
            phase = {BEGIN: "b", END: "e", INSTANT: "n"}[event.kind]
        elif self._places.merged and event.kind == INSTANT and event.legacy.get(3) == 0:
            phase, found["dur"] = "X", 0
        elif event.kind == INSTANT:
            found["s"] = "p" if place.tid is None else "t"
        self._emit(phase, place, time_ns, **found)

    def _counter(self, place: _Place, event: _TrackEvent, time_ns: int) -> None:
        if event.value is None:
            self.losses["counters_without_a_value"] += 1
            return
        # The names of the event and of its series, as joined by Perfetto's JSON importer.
        name, _, key = place.name.rpartition(" ")
        self._emit("C", place, time_ns, name=name or key, args={key: event.value})

    def _flow(self, place: _Place, event: _TrackEvent, time_ns: int) -> None:
        binding = {"bp": "e"} if event.legacy.get(12) else {}
        names = {"cat": ",".join(event.categories), "name": event.name}
        self._emit(chr(event.legacy[2]), place, time_ns, **names, id=self._flow_id(event.legacy.get(6, 0)), **binding)

    def _flow_id(self, number: int) -> int | str:
        """Return the id of a flow before the merge. Make it unique if several merges are concatenated."""
        number = (number - self._flow_offset) % (1 << 64)
        return number + (self._merges - 1 << 48) if self._merges and number < 1 << 48 else f"{number:x}"

    def _arrow(self, place: _Place, number: int, time_ns: int, *, ends: bool) -> None:
        phase = "f" if ends else "t" if number in self._arrows else "s"
        known = self._arrows.pop(number, None)
        if known is None:
            known = self._arrow_count = self._arrow_count + 1
        if not ends:
            self._arrows[number] = known
        self._emit(phase, place, time_ns, cat="flow", name="flow", id=known, **({"bp": "e"} if ends else {}))


def _unpacked(data: int | bytes) -> bytes:
    if isinstance(data, int):
        raise WireError("a number where packets should be")
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_PACKET_BYTES)
    if inflater.unconsumed_tail:
        raise WireError(f"packets of more than {_MAX_PACKET_BYTES} bytes")
    return text


class _Clocks:
    """The known clocks of a trace."""

    def __init__(self) -> None:
        # Offset to boot time in ns by clock, and by sequence for clocks of a sequence.
        self._to_boot_ns: dict[tuple[int, int], int] = {(0, _BOOTTIME): 0}
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
        known = next((key for key in ((0, _BOOTTIME), *found) if key in found and key in self._to_boot_ns), None)
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


class _Track(Struct):
    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None
    counter: bool = False
    process: str = ""
    thread: str = ""


class _Place(Struct, frozen=True):
    """The process and thread of the events of a track."""

    pid: int | str  # a name for tracks without a process
    tid: int | str | None  # None for tracks of the whole process
    name: str
    process: str
    task: str = ""  # id of async events


class _Places:
    """The known tracks of a trace."""

    def __init__(self) -> None:
        self.merged = False
        """True if tracekit merged the trace. The track numbers then identify process and thread."""
        self._tracks: dict[int, _Track] = {}
        self._found: dict[int, _Place] = {}

    def describe(self, message: bytes) -> _Place | None:
        """Add a ``TrackDescriptor``. Return the place of a process or thread of a merged trace.

        A process of a merged trace counts even without events, and its descriptions may follow the events.
        """
        found = dict(fields(message))
        process, thread = (dict(fields(found.get(key, b""))) for key in (3, 4))
        uuid = int(found.get(1, 0))
        self._tracks[uuid] = _Track(
            parent=int(found.get(5, 0)),
            name=next((_text_of(found[key]) for key in (13, 10, 2) if key in found), ""),
            pid=int((thread if 4 in found else process).get(1, 0)) if found.keys() & {3, 4} else None,
            tid=signed(int(thread.get(2, 0))) if 4 in found else None,
            counter=8 in found,
            process=_text_of(process.get(6, b"")),
            thread=_text_of(thread.get(5, b"")),
        )
        self._found.clear()
        return self.place(uuid) if self.merged and 0 < uuid < _HASHED else None

    def place(self, uuid: int) -> _Place:
        """Return the place of the events of a track."""
        found = self._found.get(uuid)
        if found is None:
            track = self._tracks.get(uuid, _Track())
            found = self._found[uuid] = self._merged(uuid, track) if self.merged else self._other(uuid, track)
        return found

    @staticmethod
    def _merged(uuid: int, track: _Track) -> _Place:
        if uuid >= _HASHED:
            pid = track.parent >> 32
            return _Place(pid, None, track.name, "", "" if track.counter else f"{uuid:x}")
        pid, tid = uuid >> 32, uuid & 0xFFFFFFFF
        return _Place(
            pid, tid or None, track.thread or (track.name if tid else ""), track.process or ("" if tid else track.name)
        )

    def _other(self, uuid: int, track: _Track) -> _Place:
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
            return _Place(pid, track.tid, name, process)
        return _Place(_GLOBAL if pid is None else pid, None if track.counter else f"track {uuid:x}", name, process)


def _text_of(value: int | bytes) -> str:
    """Return a string of a message. Replace invalid UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


class _Incremental:
    """The current definitions of a sequence of packets: interned strings, and defaults of its packets."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], str] = {}
        self.arguments: dict[bytes, tuple[str, Any]] = {}  # cache of decoded arguments, by their bytes
        self.track = 0
        self.clock = _BOOTTIME

    def define(self, message: bytes) -> None:
        """Add the strings of ``InternedData``."""
        for table, entry in fields(message):
            if isinstance(entry, bytes) and table in (_CATEGORIES, _NAMES, _ARGUMENTS, _TEXTS):
                found = dict(fields(entry))
                self.texts[table, int(found.get(1, 0))] = _text_of(found.get(2, b""))

    def set_defaults(self, message: bytes) -> None:
        """Set the defaults from ``TracePacketDefaults``."""
        for number, value in fields(message):
            if number == 58 and isinstance(value, int):
                self.clock = value
            elif number == 11 and isinstance(value, bytes):
                self.track = int(dict(fields(value)).get(11, 0))

    def text(self, table: int, value: int | bytes) -> str:
        """Return a string, which may be interned; empty if its definition is missing."""
        return self.texts.get((table, value), "") if isinstance(value, int) else _text_of(value)


class _TrackEvent(Struct):
    """A track event."""

    kind: int = 0
    track: int = 0
    name: str = ""
    categories: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    flows: list[tuple[int, bool]] = field(default_factory=list)  # each with True for an end
    correlation: int | str | None = None
    legacy: dict[int, int] = field(
        default_factory=dict
    )  # fields of the old format: of a flow event, the flow of a slice
    lost: Counter[str] = field(default_factory=Counter)  # fields without a form in JSON


def _read_event(message: bytes, state: _Incremental) -> _TrackEvent:
    """Decode a ``TrackEvent``."""
    event = _TrackEvent(track=state.track)
    for number, value in fields(message):
        if number == 9:
            event.kind = int(value)
        elif number == 11:
            event.track = int(value)
        elif number in (10, 23):
            event.name = state.text(_NAMES, value)
        elif number in (3, 22):
            event.categories.append(state.text(_CATEGORIES, value))
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
        elif number in (52, 53):
            event.correlation = value if isinstance(value, int) else _text_of(value)
        elif number == 6 and isinstance(value, bytes):
            event.legacy |= {key: item for key, item in fields(value) if isinstance(item, int)}
            if not event.legacy.keys() <= _LEGACY_FIELDS:
                event.lost["field_6_of_events"] += 1
        else:
            event.lost[f"field_{number}_of_events"] += 1
    return event


def _argument(message: bytes, state: _Incremental) -> tuple[str, Any]:
    name = ""
    value: Any = None
    for number, item in fields(message):
        if number in (1, 10):
            name = state.text(_ARGUMENTS, item)
        elif number == 11 and isinstance(item, bytes):
            key, entry = _argument(item, state)
            value = {**value, key: entry} if isinstance(value, dict) else {key: entry}
        elif number == 12 and isinstance(item, bytes):
            value = value if isinstance(value, list) else []
            value.append(_argument(item, state)[1])
        elif number == 13 and item == 1:
            # tracekit's marker for null, and for empty lists and dicts.
            marked = dict(fields(message))
            return name, {"[]": [], "{}": {}}.get(state.text(_TEXTS, marked.get(17, marked.get(6, b""))))
        elif isinstance(item, int):
            found = {2: bool(item), 3: item, 4: signed(item), 7: hex(item)}
            value = state.text(_TEXTS, item) if number == 17 else found.get(number, value)
        elif number == 5:
            value = _DOUBLE.unpack(item)[0]
        elif number == 8:
            value = [] if dict(fields(item)).get(1) == _NESTED_LIST else {}
        elif number in (6, 9):
            value = _text_of(item)
            if number == 9:
                with suppress(ValueError):
                    value = json.loads(item)
    return name, value
