"""PftraceStream: reads a native trace of Perfetto as Chrome JSON.

Slices become ``B`` and ``E``, arrows flow events, counters ``C``. Tracks without a thread become async events if
tracekit merged the trace, otherwise threads with new names. Data other than track events (the scheduler of the system,
samples) has no form in Chrome JSON, and is counted as lost.
"""

from __future__ import annotations

import json
import zlib
from struct import error as StructError  # noqa: N812 - a class
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.byte_stream import ConvertedStream
from tracekit.formats.decimal_time import format_us
from tracekit.formats.pftrace import BEGIN, COUNTER, END, INSTANT, flow_offset
from tracekit.formats.pftrace_state import (
    BOOTTIME,
    Clocks,
    Incremental,
    Place,
    Places,
    TrackEvent,
    read_event,
    text_of,
)
from tracekit.formats.protobuf_wire import WireError, fields, packet_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.formats.byte_stream import ByteStream

_MAX_PACKET_BYTES: Final = 64 << 20
# The possible first fields of a packet: its time, clock snapshot, sequence, user, flags, event, interned strings, track
# description, configuration, compressed packets, or uuid. No JSON text has these bytes after an empty line and a
# bracket.
_FIRST_KEYS: Final = (
    b"\x40",
    b"\x32",
    b"\x50",
    b"\x18",
    b"\x68",
    b"\x5a",
    b"\x62",
    b"\xe2\x03",
    b"\x8a\x02",
    b"\x92\x03",
    b"\xca\x05",
)
# Packets about the recording and the machine.
_ABOUT_THE_RECORDING: Final = frozenset({3, 33, 34, 35, 36, 41, 42, 45, 46, 51, 67, 69, 78, 79, 87, 89, 98, 124, 126})
_BROKEN: Final = (ValueError, RecursionError, StructError, zlib.error)
_STATE_CLEARED: Final = 1
_FLOW_PHASES: Final = frozenset("stf")
_FLOW_PLACE: Final = {6: 0}


def _listed(of: Any, key: str) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else None
    return found if isinstance(found, list) else []


def is_pftrace(data: bytes) -> bool:
    """Return True if these first bytes are of a native trace of Perfetto."""
    if data[:1] != b"\x0a":
        return False
    start = 2
    while data[start - 1 : start] >= b"\x80" and start < 6:
        start += 1
    return data.startswith(_FIRST_KEYS, start)


class PftraceStream(ConvertedStream):
    """Reads a native trace as Chrome JSON of the object form."""

    foreign = "pftrace"

    def __init__(self, source: ByteStream) -> None:
        super().__init__(source)
        self._header: dict[str, Any] = {}
        self._out: list[str] = []
        self._separator = ""
        self._unpacking = False
        self._clocks = Clocks()
        self._places = Places()
        self._states: dict[int, Incremental] = {}
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
        while True:
            found = packet_at(data, at)
            if found is None:
                if len(data) - at > _MAX_PACKET_BYTES:
                    raise WireError(f"it is longer than {_MAX_PACKET_BYTES} bytes")
                return at
            start, at = found
            try:
                self._packet(data[start:at])
            except _BROKEN:
                # The next packet begins at the stated end of this one.
                self.losses["broken_packets"] += 1

    def _packet(self, data: bytes) -> None:
        found: dict[int, Any] = dict(fields(data))
        sequence = int(found.pop(10, 0))
        if int(found.pop(13, 0)) & _STATE_CLEARED or found.pop(41, 0):
            self._states.pop(sequence, None)
        state = self._states.setdefault(sequence, Incremental())
        time = int(found.pop(8, 0))
        clock = found.pop(58, None)
        for number, learn in ((12, state.define), (59, state.set_defaults)):
            if number in found:
                learn(found.pop(number))
        if 60 in found:
            place = self._places.describe(found.pop(60))
            if place is not None:
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
            if clock is None:
                clock = BOOTTIME if state.clock is None else state.clock
            time_ns = self._clocks.time_ns(sequence, clock, time)
            if time_ns is None:
                self.losses["events_of_an_unknown_clock"] += 1
            else:
                self._event(read_event(found[11], state), time_ns)
            del found[11]
        if found.keys() - _ABOUT_THE_RECORDING:
            self.losses["packets_that_are_no_track_events"] += 1

    def _chrome_events(self, message: bytes) -> None:
        """Read the metadata of a trace. tracekit stores its metadata there, and the metadata events of its inputs."""
        for number, entry in fields(message):
            value = dict(fields(entry)) if number == 2 and isinstance(entry, bytes) else {}
            name, text = text_of(value.get(1, b"")), text_of(value.get(5, b""))
            if not text:
                continue
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

    def _emit(self, phase: str, place: Place, time_ns: int, **more: Any) -> None:
        event = {"ph": phase, "pid": place.pid, "tid": place.pid if place.tid is None else place.tid, **more}
        text = json.dumps({key: value for key, value in event.items() if value not in ("", {})}, ensure_ascii=False)
        self._write(f'{text[:-1]}, "ts": {format_us(time_ns).decode()}}}')

    def _name(self, place: Place) -> None:
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

    def _event(self, event: TrackEvent, time_ns: int) -> None:
        place = self._places.place(event.track)
        self._name(place)
        self.losses.update(event.lost)
        if event.kind == COUNTER:
            self._counter(place, event, time_ns)
        elif self._places.merged and event.legacy == _FLOW_PLACE:
            pass  # the event only gives a flow event a place
        elif event.kind in (BEGIN, END, INSTANT):
            self._slice(place, event, time_ns)
        elif chr(event.legacy.get(2, 0)) in _FLOW_PHASES:
            self._flow(place, event, time_ns)
        else:
            self.losses[f"events_of_type_{event.kind}"] += 1
        for arrow, ends in event.flows:
            self._arrow(place, arrow, time_ns, ends=ends)

    def _slice(self, place: Place, event: TrackEvent, time_ns: int) -> None:
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

    def _counter(self, place: Place, event: TrackEvent, time_ns: int) -> None:
        if event.value is None:
            self.losses["counters_without_a_value"] += 1
            return
        # The names of the event and of its series, as joined by Perfetto's JSON importer.
        name, _, key = place.name.rpartition(" ")
        self._emit("C", place, time_ns, name=name or key, args={key: event.value})

    def _flow(self, place: Place, event: TrackEvent, time_ns: int) -> None:
        binding = {"bp": "e"} if event.legacy.get(12) else {}
        number = self._flow_id(event.legacy.get(6, 0))
        phase, category = chr(event.legacy[2]), ",".join(event.categories)
        self._emit(phase, place, time_ns, cat=category, name=event.name, id=number, **binding)

    def _flow_id(self, number: int) -> int | str:
        """Return the id of a flow before the merge. Make it unique if several merges are concatenated."""
        number = (number - self._flow_offset) % (1 << 64)
        return number + (self._merges - 1 << 48) if self._merges and number < 1 << 48 else f"{number:x}"

    def _arrow(self, place: Place, number: int, time_ns: int, *, ends: bool) -> None:
        known = self._arrows.get(number)
        if known is None:
            self._arrow_count += 1
            known = self._arrow_count
            if not ends:
                self._arrows[number] = known
            phase = "f" if ends else "s"
        else:
            phase = "f" if ends else "t"
            if ends:
                del self._arrows[number]
        self._emit(phase, place, time_ns, cat="flow", name="flow", id=known, **({"bp": "e"} if ends else {}))


def _unpacked(data: int | bytes) -> bytes:
    if isinstance(data, int):
        raise WireError("a number where packets should be")
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _MAX_PACKET_BYTES)
    if inflater.unconsumed_tail:
        raise WireError(f"packets of more than {_MAX_PACKET_BYTES} bytes")
    return text
