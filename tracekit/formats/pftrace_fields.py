"""Protobuf's wire format, read: the fields of a message, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Field", "WireError", "fields", "packet_at", "signed"]

Field = tuple[int, "int | bytes"]
"""Number of a field and its value: an integer, or the bytes of a text, a message or a number of fixed size."""

_FIXED_SIZES: Final = {1: 8, 5: 4}


class WireError(ValueError):
    """The bytes are no message."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
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
        WireError: It is none.
    """
    if isinstance(data, int):
        raise WireError("a number where a message should be")
    at, end = 0, len(data)
    try:
        while at < end:
            key, at = _varint(data, at)
            wire_type = key & 7
            if wire_type == 0:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            size = _FIXED_SIZES.get(wire_type)
            if wire_type == 2:
                size, at = _varint(data, at)
            if size is None or at + size > end:
                raise WireError("a field of a kind or size that there cannot be")
            yield key >> 3, data[at : at + size]
            at += size
    except IndexError:
        raise WireError("the message is cut off") from None


def packet_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the content of the packet at a place begins and ends; None where more of the file is needed.

    Raises:
        WireError: There is no packet.
    """
    if data[at : at + 1] not in (b"\x0a", b""):
        raise WireError("something that is no packet")
    try:
        size, start = _varint(data, at + 1)
    except IndexError:
        return None
    return (start, start + size) if start + size <= len(data) else None


def signed(value: int) -> int:
    """Return a number that was written as two's complement."""
    return value - (1 << 64) if value >> 63 else value
