"""Turn one event into rows of the event table: the reference for the core, and the way of the events that it leaves to Python."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.json.reader import decode
from tracekit.formats.trace_event import (
    REFUSED,
    UNSET,
    Event,
    Raw,
    decode_any,
    decode_or_none,
    decode_raw_dict,
    encode_event,
    encode_json,
    raw_field,
    raw_number,
    time_field,
)
from tracekit.table.plain_columns import MAX_BEGUN, NO_BEGIN, NO_VALUE
from tracekit.table.steps import StepCollector, is_step_name

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_TIME_NS: Final = 2**61
_FAR: Final = 100
_INTEGER: Final = re.compile(rb"-?\d{1,18}")
_ID: Final = re.compile(rb'\d{1,19}|"(?:0[xX][0-9a-fA-F]{1,16}|\d{1,19})"')
_ARG_NAMES: Final = {"correlation": 0, "stream": 1, "device": 2, "Device Id": 2, "bytes": 3, "Bytes": 3}
_GROUP: Final = "Process Group Name"


class ArgFields(NamedTuple):
    """The arguments of an event that have columns; `NO_VALUE` or None where they are absent."""

    correlation: int = NO_VALUE
    stream: int = NO_VALUE
    device: int = NO_VALUE
    size_bytes: int = NO_VALUE
    process_group: bytes | None = None


class RowWriter:
    """Writes the rows of events, and keeps begins until their ends.

    Args:
        sink: Takes rows: `tracekit.core._merge.Columns`, `PlainColumns`, or an object with the methods that are called here.
        metadata: Called with each metadata event.
        step_taker: Its ``take_slice`` gets the slices that `is_step_name` accepts; ``steps`` if None.

    Attributes:
        unusable: The number of events that are left out, since their time is missing or beyond all bounds.
    """

    def __init__(self, sink: Any, metadata: Callable[[Event], None], step_taker: Any = None) -> None:
        self.steps = StepCollector()
        self._step_taker = step_taker or self.steps
        self.unusable = 0
        self._sink = sink
        self.metadata = metadata
        self._async: dict[tuple[Any, ...], list[tuple[int, int, Event]]] = {}
        self._async_count = 0

    def take(self, event: Event) -> None:
        """Write the rows of an event."""
        phase = event.ph
        if phase == "M":
            self.metadata(event)
            return
        if phase not in self._WAYS:
            return
        time = time_field(event.ts)
        if time is None or abs(time) >= _MAX_TIME_NS:
            self.unusable += 1
            return
        self._WAYS[phase](self, event, time)

    def note_step(self, event: Event, duration: int) -> None:
        """Look at a whole slice that may be a step; ``event`` is an ``X``, or its ``B``."""
        start = time_field(event.ts)
        assert start is not None
        self._step_taker.take_slice(event, raw_number(event.pid), start, start + duration)

    def waiting(self) -> list[Event]:
        """Return the events of the async slices that have begun and not ended."""
        return [event for waiting in self._async.values() for _, _, event in waiting]

    def finish(self) -> None:
        """Write the slices that have begun and never end, without a duration."""
        for track, text in self._sink.begun():
            event, start = _begun(text)
            self._add(event, track, ord("B"), start, NO_VALUE)
        for waiting in self._async.values():
            for track, start, event in waiting:
                self._add(event, track, ord("b"), start, NO_VALUE)

    def _slice(self, event: Event, start: int) -> None:
        duration = time_field(event.dur)
        if duration is None or not 0 <= duration < _MAX_TIME_NS:
            self.unusable += 1
            return
        self._add(event, self._track(event), ord("X"), start, duration, nests=True)
        if is_step_name(raw_field(event.name)):
            self.note_step(event, duration)

    def _instant(self, event: Event, time: int) -> None:
        self._add(event, self._track(event), ord("n" if event.ph == "n" else "i"), time, NO_VALUE)

    def _begin(self, event: Event, start: int) -> None:
        name, category = raw_field(event.name), raw_field(event.cat)
        if not self._sink.begin(self._track(event), start, name, category, encode_event(event)):
            self.unusable += 1

    def _end(self, event: Event, end: int) -> None:
        track = self._track(event)
        found = self._sink.end(track, raw_field(event.name), raw_field(event.cat))
        if found is None:
            return
        text, number = found
        begin, start = _begun(text)
        if not 0 <= end - start < _MAX_TIME_NS:
            self.unusable += 1
            return
        self._add(begin, track, ord("X"), start, end - start, nests=True, number=number)
        if is_step_name(raw_field(begin.name)):
            self.note_step(begin, end - start)

    def _async_begin(self, event: Event, start: int) -> None:
        if self._async_count >= MAX_BEGUN:
            self.unusable += 1
            return
        self._async_count += 1
        self._async.setdefault(_async_key(event), []).append((self._track(event), start, event))

    def _async_end(self, event: Event, end: int) -> None:
        key = _async_key(event)
        waiting = self._async.get(key)
        if not waiting:
            return
        # The last of that name, as long as it is not far back.
        name, last = raw_field(event.name), len(waiting) - 1
        same = (at for at in range(last, max(-1, last - _FAR), -1) if raw_field(waiting[at][2].name) == name)
        track, start, begin = waiting.pop(next(same, last))
        self._async_count -= 1
        if not waiting:
            del self._async[key]
        if 0 <= end - start < _MAX_TIME_NS:
            self._add(begin, track, ord("b"), start, end - start)
        else:
            self.unusable += 1

    def _counter(self, event: Event, time: int) -> None:
        args = decode_or_none(event.args)
        if not isinstance(args, dict):
            return
        track, name = self._track(event), _name_text(event)
        for series, value in args.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                try:
                    number = float(value)
                except OverflowError:
                    continue
                if math.isfinite(number):
                    self._sink.add_counter(track, name, series.encode("utf-8", "replace"), time, number)

    def _flow(self, event: Event, time: int) -> None:
        phase = str(event.ph).encode()
        self._sink.add_flow(self._track(event), phase, time, _category(event), _name_text(event), _id(event.id))

    def _track(self, event: Event) -> int:
        track: int = self._sink.track(encode_json(raw_number(event.pid)), encode_json(raw_number(event.tid)))
        return track

    def _add(
        self,
        event: Event,
        track: int,
        phase: int,
        start: int,
        duration: int,
        nests: bool = False,
        number: int = NO_BEGIN,
    ) -> None:
        args = None if event.args is UNSET else bytes(event.args)
        fields = ArgFields() if args is None else arg_fields(args)
        times = phase, start, duration
        ids = fields.correlation, _id(event.bind_id), *fields[1:]
        self._sink.add_event(track, _category(event), _name_text(event), *times, *ids, args, nests, number)

    _WAYS: Final[dict[Any, Callable[[RowWriter, Event, int], None]]] = {
        "X": _slice,
        "B": _begin,
        "E": _end,
        "C": _counter,
        **dict.fromkeys("iIn", _instant),
        **dict.fromkeys("bS", _async_begin),
        **dict.fromkeys("eF", _async_end),
        **dict.fromkeys("stf", _flow),
    }


def arg_fields(args: bytes) -> ArgFields:
    """Return the values that have columns from arguments, as JSON."""
    if not args.startswith(b"{"):
        return ArgFields()
    try:
        pairs = decode_raw_dict(args)
    except REFUSED:
        return ArgFields()
    values = [NO_VALUE] * 4
    group = None
    for key, value in pairs.items():
        if key in _ARG_NAMES:
            text = bytes(value)
            values[_ARG_NAMES[key]] = int(text) if _INTEGER.fullmatch(text) else NO_VALUE
        elif key == _GROUP:
            group = json_text(value) if bytes(value).startswith(b'"') else None
    correlation, stream, device, size_bytes = values
    return ArgFields(correlation, stream, device, size_bytes, group)


def json_text(raw: Raw | bytes) -> bytes:
    """Return a JSON string as UTF-8; the JSON text of anything else."""
    try:
        value = decode_any(raw)
    except REFUSED:
        value = None
    text = value if isinstance(value, str) else bytes(raw).decode("utf-8", "replace")
    return text.encode("utf-8", "replace")


def _name_text(event: Event) -> bytes:
    raw = raw_field(event.name)
    return b"" if raw in (b"", b"null") else json_text(raw)


def _category(event: Event) -> bytes | None:
    raw = raw_field(event.cat)
    return None if raw in (b"", b"null") else json_text(raw)


def _begun(text: bytes) -> tuple[Event, int]:
    """Return the event that began a slice, and its start."""
    event = decode(text)
    assert event is not None
    start = time_field(event.ts)
    assert start is not None
    return event, start


def _id(raw: Any) -> int:
    match = _ID.fullmatch(raw_field(raw))
    if match is None:
        return NO_VALUE
    digits = match[0].strip(b'"')
    number = int(digits, 16 if digits[:2].lower() == b"0x" else 10)
    return number if number < 2**63 else NO_VALUE


def _async_key(event: Event) -> tuple[Any, ...]:
    identity = event.id2 if event.id is UNSET else event.id
    # Of an id2, {"local": 5} belongs to the process and {"global": 5} does not; the text distinguishes them.
    return raw_number(event.pid), raw_field(event.cat), raw_field(identity)
