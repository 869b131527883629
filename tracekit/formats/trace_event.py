"""Events of the Trace Event Format: decode, encode and repair them.

Fields that a tool does not need stay undecoded JSON text. So unchanged fields stay the same to the byte, and decimals exact.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tracekit.formats.decimal_time import parse_us

__all__ = ["UNSET", "Raw", "UnsetType"]  # of msgspec, for other modules

# The name of `Event.extra` in msgspec. No event has such a key.
_EXTRA: Final = "tracekit: extra"
_EXTRA_KEY: Final = b'"tracekit: extra":'

# The exceptions of decoders without a ``Raises`` section.
REFUSED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


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


class NameArgs(Struct, frozen=True, gc=False):
    """The arguments of metadata that names or sorts a process or a thread; None for each that is absent."""

    name: str | None = None
    labels: str | None = None
    sort_index: int | None = None


class NamedEvent(Struct, gc=False):
    """Metadata that names or sorts a process or a thread, decoded."""

    name: Any = ""
    pid: int | str | float | UnsetType | None = UNSET
    tid: int | str | float | UnsetType | None = UNSET
    args: NameArgs = NameArgs()


_decode_named = msgspec.json.Decoder(list[NamedEvent]).decode
_decode_run = msgspec.json.Decoder(list[Event]).decode


def decode_run(text: bytes) -> list[Event]:
    """Decode events with ``,`` between them.

    Raises:
        msgspec.MsgspecError: It is not valid JSON, or an event has keys that are not in the format.
    """
    return _decode_run(b"[%b]" % text)


def decode_named(text: bytes) -> list[NamedEvent]:
    """Decode metadata that names or sorts processes and threads, with ``,`` between the events; see `decode_run`."""
    try:
        return _decode_named(b"[%b]" % text)
    except REFUSED:  # arguments may have other types, or a name an invalid escape
        return list(map(named, decode_run(text)))


def named(event: Event) -> NamedEvent:
    """Return metadata that names or sorts something, decoded."""
    args = decode_dict(event.args)
    name, labels = (args[key] if type(args.get(key)) is str else None for key in ("name", "labels"))
    order = args["sort_index"] if type(args.get("sort_index")) is int else None
    return NamedEvent(decode_text(event.name), event.pid, event.tid, NameArgs(name, labels, order))


_decode_event = msgspec.json.Decoder(Event).decode
decode_raw_dict = msgspec.json.Decoder(dict[str, Raw]).decode  # decode a JSON object. Each value stays JSON text.
decode_any = msgspec.json.Decoder().decode  # decode any JSON value; see `decode_json`
decode_raw_list = msgspec.json.Decoder(list[Raw]).decode  # decode a JSON array. Each item stays JSON text.
decode_raw = msgspec.json.Decoder(Raw).decode  # check any JSON value, which stays JSON text
_encoder = msgspec.json.Encoder()
encode_json = _encoder.encode  # encode a value as compact JSON (Raw parts verbatim)
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


def encode_events(events: list[Event]) -> bytes:
    """Return the events as JSON objects separated by ``,`` (and a newline between runs with unknown keys)."""
    text = _encoder.encode(events)[1:-1]
    if _EXTRA_KEY not in text:
        return text
    return b",\n".join(encode_event(event) for event in events)


def decode_events(text: bytes) -> list[Event]:
    """Decode the result of `encode_events`."""
    try:
        return decode_run(text)
    except REFUSED:
        return [decode_event(raw) for raw in decode_raw_list(b"[%b]" % text)]


def decode_event(text: bytes | Raw) -> Event:
    """Decode one event, also with keys that are not in the format, or with a ``pid`` or ``tid`` of an unusual type."""
    with suppress(*REFUSED):
        return _decode_event(text)
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


# The phases of the Trace Event Format, including those that few viewers show.
PHASES: Final = frozenset("BEXiICbnestfSTpFPNODMVvRc()=")
MAX_DEPTH: Final = 512  # maximum depth of nested slices on one track: Perfetto's kMaxDepth (slice_tracker.h)
# Maximum nesting depth of args: far below the limit of any reader, and far more than a viewer can show.
MAX_NESTING: Final = 64
# Ids from here on are given to processes and threads without a usable number; tracekit's own lanes begin at 2**30.
FREE_NUMBERS: Final = 3 * 2**30

_QUOTE, _BRACE = ord('"'), ord("{")
_first_byte = struct.Struct("B").unpack_from  # into a tuple: several times as fast as a memoryview
_NULL: Final = b"null"
_INSTANTS: Final = frozenset("iIR")
_FLOWS: Final = frozenset("stf")
_SCOPES: Final = frozenset({b'"t"', b'"p"', b'"g"'})
_BIND_ENCLOSING: Final = b'"e"'
_DURATION: Final = re.compile(rb"\d+(?:\.\d+)?")
_NUMBER_TEXT: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


def raw_field(field: Any) -> bytes:
    """Return the JSON text of a field; empty if it is absent."""
    return b"" if field is UNSET else bytes(field)


def name_and_category(event: Event) -> tuple[bytes, bytes]:
    """Return the undecoded name and category, which identify a slice. Empty counts as missing, as in Perfetto."""
    name, category = raw_field(event.name), raw_field(event.cat)
    return name if name != b'""' else b"", category if category != b'""' else b""


def raw_number(value: Any) -> Any:
    """Return the canonical form of a ``pid`` or ``tid``: 0 if it is absent or null, whole numbers as `int`.

    So is a string with a decimal number: traces of torch from 2021 mix ``"tid": 5555`` and ``"tid": "5555"``.
    """
    if type(value) is int:
        return value
    if isinstance(value, str):
        return int(value) if _NUMBER_TEXT.fullmatch(value) else value
    if value is UNSET or value is None:
        return 0
    if isinstance(value, float):
        return int(value) if abs(value) < 2**63 else 0
    return value


class FreeNumbers:
    """Numbers for the threads of a process, or the processes of a trace, without a usable number."""

    def __init__(self) -> None:
        self._given: set[int] = set()
        self._next = FREE_NUMBERS

    def take(self, wanted: int = 0) -> int:
        """Return the wanted number if it is free and from `FREE_NUMBERS` on, or the next free one."""
        number = wanted
        while number < FREE_NUMBERS or number in self._given:
            number = self._next
            self._next += 1
        self._given.add(number)
        return number


def time_field(field: Any) -> int | None:
    """Return a ``ts`` or ``dur`` in ns, or None if it is absent or not a number; see `parse_us`."""
    return None if field is UNSET else parse_us(bytes(field))


def text_of(field: Raw) -> Raw:
    """Return a field as a JSON string. A value of another type becomes a string with its JSON text."""
    return field if _first_byte(field)[0] == _QUOTE else Raw(encode_json(bytes(field).decode()))


def args_depth(args: bytes | Raw, limit: int = MAX_NESTING) -> int:
    """Return the nesting depth of arguments, or of other JSON; 0 if it clearly does not exceed a limit."""
    # Two counts are much cheaper than a walk, and nearly always enough.
    if len(args) <= 2 * limit:
        return 0
    text = bytes(args)
    if text.count(b"{") + text.count(b"[") <= limit:
        return 0
    depth = deepest = 0
    for token in _BRACKETS.finditer(text):
        first = token[0][:1]
        if first in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"}]":
            depth -= 1
    return deepest


def repair_fields(event: Event) -> list[str]:
    """Convert fields of an event to the types that viewers expect; return the kinds of repair. Values are kept."""
    kinds: list[str] = []
    phase = event.ph
    for key in ("name", "cat"):
        text = getattr(event, key)
        if text is not UNSET and _first_byte(text)[0] != _QUOTE:
            setattr(event, key, UNSET if bytes(text) == _NULL else text_of(text))
            kinds.append(f"{key}_not_text")
    if event.name is UNSET and phase != "E":
        event.name = Raw(b'""')
        kinds.append("missing_name")
    if event.cat is UNSET and phase in _FLOWS:
        event.cat = Raw(b'""')
        kinds.append("missing_cat")
    if event.args is not UNSET and _first_byte(event.args)[0] != _BRACE:
        event.args = UNSET if bytes(event.args) == _NULL else Raw(b'{"args":%b}' % bytes(event.args))
        kinds.append("args_not_object")
    if event.args is UNSET and phase == "M":
        event.args = Raw(b"{}")
        kinds.append("missing_args")
    if event.args is not UNSET and args_depth(event.args) > MAX_NESTING:
        event.args = _flattened(event.args, MAX_NESTING)
        kinds.append("args_too_deep")
    if event.dur is not UNSET and phase != "X" and not _DURATION.fullmatch(event.dur):
        event.dur = UNSET
        kinds.append("bad_dur")
    if event.s is not UNSET and phase in _INSTANTS and bytes(event.s) not in _SCOPES:
        event.s = UNSET
        kinds.append("bad_scope")
    if event.bp is not UNSET and bytes(event.bp) != _BIND_ENCLOSING:
        event.bp = UNSET
        kinds.append("bad_bp")
    return kinds


def _flattened(value: Raw, levels: int) -> Raw:
    """Return a JSON value. Parts below ``levels`` levels become strings with their JSON text."""
    first = _first_byte(value)[0]
    if first not in b"{[":
        return value
    if not levels:
        return text_of(value)
    if first == _BRACE:
        return Raw(encode_json({key: _flattened(inner, levels - 1) for key, inner in decode_raw_dict(value).items()}))
    return Raw(encode_json([_flattened(inner, levels - 1) for inner in decode_raw_list(value)]))


def duration_of(event: Event) -> int:
    """Return the duration of an event in ns, or 0 without a valid one."""
    return max(time_field(event.dur) or 0, 0)
