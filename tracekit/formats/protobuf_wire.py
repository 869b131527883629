"""Protobuf's wire format: write and read the fields of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Field = tuple[int, "int | bytes"]
"""Number of a field and its value: an integer, or the bytes of a string, a message or a number of fixed size."""

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


def _key(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def number_field(field: int, value: int) -> bytes:
    """Return a number as a field."""
    return _key(field, _VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """Return a string, bytes or a message as a field."""
    return _key(field, _BYTES) + varint(len(content)) + content


def text_field(field: int, value: str | bytes) -> bytes:
    """Return a string as a field, in UTF-8."""
    return block(field, value.encode("utf-8", "replace") if isinstance(value, str) else value)


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


def fields(data: int | bytes) -> Iterator[Field]:
    """Yield the fields of a message.

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
