"""What an event says, as fields of a native Perfetto trace: name, category, arguments, and whatever else."""

from __future__ import annotations

from typing import Any, Final

from tracekit.formats.event_fields import raw_field
from tracekit.formats.pftrace import Sequence, correlation
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_or_none, decode_raw_dict

__all__ = ["OTHER_FIELDS", "Details", "text_field"]

OTHER_FIELDS: Final = ("id", "id2", "scope", "tts", "tdur", "cname", "sf", "stack")
"""Fields that a native trace has no place for; they are kept as an argument."""

_QUOTE: Final = ord('"')
# What names one collective operation on all of its ranks, where torch tells it.
_GROUP, _GROUP_RANKS, _SEQUENCE_NUMBER = "Process Group Name", "Process Group Ranks", "Seq"
_MAX_DIGITS: Final = 19
_MAX_KNOWN: Final = 20_000
_MAX_KNOWN_BYTES: Final = 300


class Details:
    """Encodes what events say. What comes again and again is encoded once.

    Args:
        sequence: The packets that the events are of.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._titles: dict[tuple[bytes, bytes], bytes] = {}
        self._known: dict[tuple[str, bytes], bytes] = {}

    def title(self, event: Event) -> bytes:
        """Return category and name."""
        key = raw_field(event.cat), raw_field(event.name)
        found = self._titles.get(key)
        if found is None:
            found = self.category(event) + self.name(event)
            if len(self._titles) < _MAX_KNOWN:
                self._titles[key] = found
        return found

    def name(self, event: Event) -> bytes:
        """Return the name."""
        text = _utf8(event.name)
        return self._sequence.name(text) if text else b""

    def category(self, event: Event) -> bytes:
        """Return the category."""
        text = _utf8(event.cat)
        return self._sequence.category(text) if text else b""

    def details(self, event: Event, other: list[str], phase: str = "") -> bytes:
        """Return the arguments of an event, and what else it says."""
        text = b"" if event.args is UNSET else self._arguments(bytes(event.args))
        found = {name: decode_or_none(getattr(event, name)) for name in other if getattr(event, name) is not UNSET}
        if phase:
            found["ph"] = phase
        if event.extra is not UNSET:
            found.update((name, decode_or_none(value)) for name, value in event.extra.items())
        return text + self._sequence.argument("trace_event", found) if found else text

    def _arguments(self, raw: bytes) -> bytes:
        if raw[:1] != b"{":
            return self._sequence.argument("args", decode_or_none(Raw(raw)))
        args = decode_raw_dict(raw)
        known, argument, number = self._known, self._sequence.argument, self._sequence.number
        out = []
        for name, value in args.items():
            plain = bytes(value)
            if plain.isdigit() and len(plain) < _MAX_DIGITS:
                # Ids, mostly: each comes once.
                out.append(number(name, int(plain)))
                continue
            text = known.get((name, plain))
            if text is None:
                # A number that no double holds stays a text.
                decoded = decode_or_none(value)
                text = argument(name, plain.decode() if decoded is None and plain != b"null" else decoded)
                if len(known) < _MAX_KNOWN and len(plain) <= _MAX_KNOWN_BYTES:
                    known[name, plain] = text
            out.append(text)
        if _SEQUENCE_NUMBER in args and _GROUP in args:
            parts = [text_field(args.get(name, UNSET)) for name in (_GROUP, _GROUP_RANKS, _SEQUENCE_NUMBER)]
            out.append(correlation(" ".join(parts)))
        return b"".join(out)


def text_field(field: Any) -> str:
    """Return a field as text; empty where there is none."""
    value = decode_or_none(field)
    return "" if value is None else str(value)


def _utf8(field: Any) -> bytes:
    """Return a field as text."""
    if field is UNSET:
        return b""
    raw = bytes(field)
    if raw[0] == _QUOTE and b"\\" not in raw:
        return raw[1:-1]
    return text_field(field).encode("utf-8", "replace")
