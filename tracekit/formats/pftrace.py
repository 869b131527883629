"""Perfetto's native trace format: protobuf's wire format, and the few messages that a merged trace needs.

A trace is a list of length-prefixed packets. So traces can be concatenated, and a cut trace loses only its last packet.
The field numbers are those of perfetto_trace.proto in Perfetto's repository.

A packet belongs to a sequence, which has one writer. A sequence interns strings: it defines a number for each string
once, and uses the number from then on. The clock of a sequence counts from one packet to the next.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # types of events
ROOT_UUID: Final = 0  # the root track of every trace, with settings for all tracks
# The clock of a sequence, in ns since the previous packet. Clock numbers from 64 on are local to a sequence.
CLOCK: Final = 64
_BOOTTIME: Final = 6
_REALTIME: Final = 1
_EXPLICIT: Final = 3
_NEVER_MERGE: Final = 2
_UNITS: Final[dict[str, dict[int, int | str]]] = {"bytes": {3: 3}, "ns": {3: 1}, "": {}}
_MAX_INT64: Final = 2**63 - 1

_DOUBLE: Final = Struct("<d")


def sequence_packet(number: int, content: bytes, *, flags: int = 0) -> bytes:
    """Return a packet of a sequence with a number from 1 to 2**32 - 1, unique in the trace.

    Flag 1 clears the earlier definitions of the sequence; flag 2 means that the packet needs them.
    """
    return packet(number_field(10, number) + (number_field(13, flags) if flags else b"") + content)


def flow_offset(description: bytes) -> int:
    """Return the offset that a merge adds to flow ids, from its metadata, because the ids are local to one merge."""
    return int.from_bytes(sha256(description).digest()[:8], "little")


# Descriptions of tracks: their numbers are unique in the trace, and ``order`` is their place in what contains them.


def root_track() -> bytes:
    """Return the description of the root track. It orders processes and threads like their tracks."""
    return message({1: ROOT_UUID, 19: 1, 20: 1})


def process_track(uuid: int, pid: int, name: str, *, order: int, labels: list[str]) -> bytes:
    """Return the description of a process, which the viewer shows with its pid, name and labels."""
    process = message({1: pid, 6: name, 3: order}) + b"".join(text_field(8, label) for label in labels)
    return message({1: uuid, 3: process, 11: _EXPLICIT, 12: order})


def thread_track(uuid: int, parent: int, pid: int, tid: int, name: str | None, *, order: int) -> bytes:
    """Return the description of a thread of a process."""
    return message({1: uuid, 5: parent, 4: message({1: pid, 2: tid, 5: name, 3: order}), 12: order})


def track(uuid: int, parent: int, name: str | bytes, *, order: int, merge: bool = False) -> bytes:
    """Return the description of any other track, or group of tracks.

    With ``merge``, the viewer may combine it with tracks of the same name in the parent.
    """
    return message({1: uuid, 5: parent, 2: name, 11: _EXPLICIT, 12: order, 15: None if merge else _NEVER_MERGE})


def counter_track(uuid: int, parent: int, name: str | bytes, *, unit: str, order: int) -> bytes:
    """Return the description of a counter; ``unit`` is "bytes", "ns", any other unit, or empty."""
    counter = message(_UNITS.get(unit, {6: unit}))
    return message({1: uuid, 5: parent, 2: name, 8: counter, 12: order})


# Other parts of packets.


def counter_value(value: float) -> bytes:
    """Return the value of a `COUNTER` event."""
    if isinstance(value, int) and -_MAX_INT64 <= value <= _MAX_INT64:
        return b"\xf0\x01" + varint(value)
    return b"\xe1\x02" + _DOUBLE.pack(value)


def clock_snapshot(boot_ns: int, real_ns: int) -> bytes:
    """Return the field that maps the clock of the trace to wall time, in ns since the epoch."""
    boot, real = {1: _BOOTTIME, 2: boot_ns}, {1: _REALTIME, 2: real_ns}
    return block(6, block(1, message(boot)) + block(1, message(real)) + number_field(2, _BOOTTIME))


def begin_track(uuid: int) -> bytes:
    """Return the fields that set the track of the following events, and reset the clock of the sequence to 0."""
    boot, own = {1: _BOOTTIME, 2: 0}, {1: CLOCK, 2: 0, 3: 1}
    clocks = block(1, message(boot)) + block(1, message(own))
    return block(6, clocks) + block(59, message({58: CLOCK, 11: number_field(11, uuid)}))


def metadata_value(name: str, json: bytes) -> bytes:
    """Return the field of a packet that stores a JSON text under a name."""
    return block(5, block(2, message({1: name, 5: json})))


_FIXED_SIZES: Final = {1: 8, 5: 4}


class WireError(ValueError):
    """The bytes are not a message."""


# A field is its number and wire type in one varint, then the value.
_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """Encode a number in base 128, low digits first. Negative numbers use 64-bit two's complement."""
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Return a number as a field."""
    return varint(field << 3 | _VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """Return a string, bytes or a message as a field."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def text_field(field: int, value: str | bytes) -> bytes:
    """Return a string as a field, in UTF-8."""
    return block(field, value.encode("utf-8", "replace") if isinstance(value, str) else value)


def message(fields: Mapping[int, int | str | bytes | None]) -> bytes:
    """Return a message with these fields, except those that are None, in their order."""
    return b"".join(
        number_field(field, value) if isinstance(value, int) else text_field(field, value)
        for field, value in fields.items()
        if value is not None
    )


def packet(content: bytes) -> bytes:
    """Return the fields of a packet with the length prefix of a packet."""
    return b"\x0a" + varint(len(content)) + content


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and its end position."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    shift = 7
    while shift < 70:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
        shift += 7
    raise WireError("a number that does not end")


def fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field; the bytes of a string, a message or a number of fixed size.

    Raises:
        WireError: The bytes are not a message.
    """
    if isinstance(data, int):
        raise WireError("a number where a message should be")
    at, end = 0, len(data)
    try:
        while at < end:
            # Most keys and numbers have one byte.
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _read_varint(data, at - 1)
            wire_type = key & 7
            if wire_type in (0, 2):
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = _read_varint(data, at - 1)
                if wire_type == 0:
                    yield key >> 3, size
                    continue
            else:
                size = _FIXED_SIZES.get(wire_type, end)
            if at + size > end:
                raise WireError("a field of a kind or size that there cannot be")
            yield key >> 3, data[at : at + size]
            at += size
    except IndexError:
        raise WireError("the message is cut off") from None


def packet_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the start and the end of the content of the packet at a position, or None if more data is needed.

    Raises:
        WireError: The data at this position is not a packet.
    """
    if data[at : at + 1] not in (b"\x0a", b""):
        raise WireError("something other than a packet")
    try:
        size, start = _read_varint(data, at + 1)
    except IndexError:
        return None
    return (start, start + size) if start + size <= len(data) else None


def signed(value: int) -> int:
    """Convert an unsigned 64-bit number to the signed number with the same bits."""
    return value - (1 << 64) if value >> 63 else value
