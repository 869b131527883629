"""Events of the Trace Event Format: decode them from JSON, and encode them.

Fields that a tool does not need stay undecoded JSON text. So unchanged fields stay the same to the byte, and decimals
exact.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "REFUSED",
    "UNSET",
    "Event",
    "Raw",
    "UnsetType",
    "decode_any",
    "decode_dict",
    "decode_event",
    "decode_events",
    "decode_json",
    "decode_or_none",
    "decode_raw",
    "decode_raw_dict",
    "decode_raw_list",
    "decode_run",
    "decode_text",
    "decode_unusual",
    "encode_event",
    "encode_events",
    "encode_json",
]

# The name of `Event.extra` in msgspec. No event has such a key.
_EXTRA: Final = "tracekit: extra"
_EXTRA_KEY: Final = b'"tracekit: extra":'

REFUSED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""The exceptions of decoders without a ``Raises`` section."""


class Event(Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """One event. Every field except ``ph``, ``pid`` and ``tid`` is the JSON text of the value, or UNSET.

    The fields are those of the Trace Event Format document; other keys of an event are in ``extra``.
    """

    ph: str | UnsetType = UNSET
    cat: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    pid: int | str | float | UnsetType | None = UNSET
    tid: int | str | float | UnsetType | None = UNSET
    ts: Raw | UnsetType = UNSET
    dur: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    id2: Raw | UnsetType = UNSET
    bind_id: Raw | UnsetType = UNSET
    bp: Raw | UnsetType = UNSET
    s: Raw | UnsetType = UNSET
    scope: Raw | UnsetType = UNSET
    flow_in: Raw | UnsetType = UNSET
    flow_out: Raw | UnsetType = UNSET
    tts: Raw | UnsetType = UNSET
    tdur: Raw | UnsetType = UNSET
    cname: Raw | UnsetType = UNSET
    sf: Raw | UnsetType = UNSET
    stack: Raw | UnsetType = UNSET
    args: Raw | UnsetType = UNSET
    extra: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name=_EXTRA)


_decode_run = msgspec.json.Decoder(list[Event]).decode


def decode_run(text: bytes) -> list[Event]:
    """Decode events with ``,`` between them.

    Raises:
        msgspec.MsgspecError: It is not valid JSON, or an event has keys that are not in the format.
    """
    return _decode_run(b"[%b]" % text)


decode_event = msgspec.json.Decoder(Event).decode
"""Decode one event without keys that are not in the format."""
decode_raw_dict = msgspec.json.Decoder(dict[str, Raw]).decode
"""Decode a JSON object. Each value stays JSON text."""
decode_any = msgspec.json.Decoder().decode
"""Decode any JSON value; see `decode_json`."""
decode_raw_list = msgspec.json.Decoder(list[Raw]).decode
"""Decode a JSON array. Each item stays JSON text."""
decode_raw = msgspec.json.Decoder(Raw).decode
"""Check any JSON value, which stays JSON text."""
_encoder = msgspec.json.Encoder()
_FIELDS: Final = frozenset(Event.__struct_fields__) - {"extra"}


def decode_json(text: bytes | Raw) -> Any:
    """Decode any JSON value.

    Raises:
        ValueError: It is not JSON, not valid UTF-8, or nested too deeply.
    """
    try:
        return decode_any(text)
    except REFUSED as error:
        raise ValueError(str(error)) from error


def decode_or_none(text: Raw | UnsetType) -> Any:
    """Decode a field of an event. Return None if it is absent or invalid."""
    if text is UNSET:
        return None
    try:
        return decode_any(text)
    except REFUSED:
        return None


def decode_dict(text: Raw | UnsetType) -> dict[str, Any]:
    """Decode a field that is an object. Return an empty dict if it is absent or of another type."""
    value = decode_or_none(text)
    return value if isinstance(value, dict) else {}


def decode_text(text: Raw | UnsetType) -> str:
    """Decode a field that is a string. Return an empty string if it is absent or of another type."""
    value = decode_or_none(text)
    return value if isinstance(value, str) else ""


def encode_json(value: Any) -> bytes:
    """Encode a value as compact JSON (``Raw`` parts verbatim)."""
    return _encoder.encode(value)


def encode_events(events: list[Event]) -> bytes:
    """Return the events as JSON objects separated by ``,`` (and a newline between runs with unknown keys)."""
    text = _encoder.encode(events)[1:-1]
    if _EXTRA_KEY not in text:
        return text
    return b",\n".join(encode_event(event) for event in events)


def decode_events(text: bytes) -> list[Event]:
    """Decode the result of `encode_events`."""
    text = b"[" + text + b"]"
    try:
        return _decode_run(text)
    except REFUSED:
        return [decode_unusual(raw) for raw in decode_raw_list(text)]


def decode_unusual(text: bytes | Raw) -> Event:
    """Decode an event with keys that are not in the format, or with a ``pid`` or ``tid`` of an unusual type."""
    fields = decode_raw_dict(text)
    known: dict[str, Any] = {key: value for key, value in fields.items() if key in _FIELDS}
    extra = {key: value for key, value in fields.items() if key not in _FIELDS}
    for key in ("ph", "pid", "tid"):
        if key in known:
            value = decode_any(known[key])
            known[key] = value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    if not isinstance(known.get("ph", ""), str):
        known["ph"] = str(known["ph"])
    return Event(**known, extra=extra or UNSET)


def encode_event(event: Event) -> bytes:
    """Return an event as a JSON object."""
    if event.extra is UNSET:
        return _encoder.encode(event)
    extra, event.extra = event.extra, UNSET
    known, others = _encoder.encode(event)[:-1], _encoder.encode(extra)[1:]
    text = known + (b"," if known != b"{" else b"") + others
    event.extra = extra
    return text
