"""Rules that one event can break."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import parse_us
from tracekit.formats.event_fields import MAX_NESTING, args_depth
from tracekit.formats.final_backslash import has_final_backslash
from tracekit.formats.late_times import is_exact
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.trace_event import UNSET, decode_json, decode_or_none, encode_json
from tracekit.validation.shapes import shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw, UnsetType

    from tracekit.formats.trace_event import Event
    from tracekit.validation.flows import Flows
    from tracekit.validation.report import Findings
    from tracekit.validation.tracks import Tracks

__all__ = ["EventChecks"]

_EXACT_NS: Final = 2**53
_UINT32_MAX: Final = 2**32 - 1
_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1
_PHASES: Final = frozenset("BEXiIRCMbenstfTP")
_HEXADECIMAL: Final = re.compile(r"\s*[+-]?(0[xX])?[0-9a-fA-F]{1,16}\s*")
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_NOT_FINITE: Final = re.compile(r"[+-]?(nan|inf(inity)?)", re.IGNORECASE)
_TEXT_TIME: Final = re.compile(rb'"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"')
_PLAIN: Final = frozenset("XBEi")
_FIRST_LETTER: Final = bytes(ord("0") if letter in b"0123456789" else letter for letter in range(256))
_NAMES: Final = frozenset({"process_name", "thread_name"})
_SORT_INDICES: Final = frozenset({"process_sort_index", "thread_sort_index"})


class EventChecks:
    """Checks one event after the other, and hands what several events must agree on to tracks and flows.

    Attributes:
        metadata: Event numbers of the ``tracekit_metadata`` events.
        by_tracekit: Whether any event with a name of tracekit's own was seen.
    """

    def __init__(self, findings: Findings, tracks: Tracks, flows: Flows) -> None:
        self.metadata: list[int] = []
        self.by_tracekit = False
        self._add = findings.add
        self._tracks = tracks
        self._flows = flows

    def check(self, number: int, event: Event) -> None:
        """Check an event; ``number`` counts from 1."""
        phase = self._phase(number, event)
        if phase is None:
            return
        self._check_ids(number, event)
        for key, text in (("name", event.name), ("cat", event.cat), ("args", event.args)):
            if text is not UNSET and has_final_backslash(bytes(text)):
                self._add(
                    "perfetto-final-backslash",
                    number,
                    rf"a text in {key} ends with \; write \, which is the same (tracekit merge does)",
                )
        if event.args is not UNSET:
            self._check_nesting(number, event.args)
        if phase == "M":
            if event.ts is not UNSET:
                self._time(number, event.ts)
            self._check_metadata(number, event)
            return
        if event.ts is UNSET:
            self._add("perfetto-time", number, f"{_what(event)} has no ts; give it one, in microseconds")
            return
        start_ns = self._time(number, event.ts)
        if start_ns is None:
            return
        if phase == "X":
            dur_ns = self._duration(number, event)
            if dur_ns is not None and dur_ns >= 0:
                self._tracks.add_slice(number, (event.pid, event.tid), start_ns, dur_ns)
        elif phase == "B":
            self._tracks.add_begin(number, (event.pid, event.tid), start_ns, _key(event.name), _key(event.cat))
        elif phase == "E":
            self._tracks.add_end(number, (event.pid, event.tid), start_ns, _key(event.name), _key(event.cat))
        elif phase == "C":
            self._check_counter(number, event)
        elif phase in "iIR":
            if event.s is not UNSET and decode_or_none(event.s) == "g":
                self._add("perfetto-global-instant", number, f'{_what(event)} has scope "g"; use "p" or "t"')
        elif phase in "stf":
            self._check_flow(number, event, phase)
        elif phase in "ben":
            self._check_async(number, event)

    def _phase(self, number: int, event: Event) -> str | None:
        phase = event.ph
        if phase is UNSET or not phase:
            self._add("perfetto-phase", number, "the event has no ph; leave it out or say what it is")
            return None
        # Perfetto looks at the first letter only.
        if phase[0] not in _PHASES:
            self._add(
                "perfetto-phase", number, f"phase {phase[:20]!r} is passed over; use X, B, E, i, C, b, e, n, s, t or f"
            )
            return None
        return phase[0]

    def _check_ids(self, number: int, event: Event) -> None:
        for key, value in (("pid", event.pid), ("tid", event.tid)):
            if type(value) is int and 0 <= value <= _UINT32_MAX:
                continue
            if value is UNSET:
                continue
            if isinstance(value, str):
                self._add("text-process-id", number, f"{key} is the text {value[:40]!r}; write a number and a name")
            else:
                shown = "neither a number nor a text" if value is None else repr(value)
                self._add("perfetto-process-id", number, f"{key} is {shown}; write an integer from 0 to 4294967295")

    def _check_nesting(self, number: int, args: Raw) -> None:
        deepest = args_depth(args)
        if deepest > MAX_NESTING:
            self._add(
                "perfetto-args-nesting", number, f"args are nested {deepest} deep; write at most {MAX_NESTING} levels"
            )

    def _time(self, number: int, raw: Raw) -> int | None:
        """Return ts in ns, or None when Perfetto cannot use it."""
        text = bytes(raw)
        ns = _microseconds(text)
        if ns is None:
            self._add("perfetto-time", number, f"ts is {_short(text)}; write a number of microseconds")
            return None
        if ns < 0:
            self._add(
                "perfetto-negative-time", number, f"ts is {_short(text)}; write times relative to an earlier base"
            )
            return None
        if ns > _EXACT_NS and (b"." in text or b"e" in text.lower()) and not is_exact(ns):
            self._add(
                "perfetto-inexact-time",
                number,
                f"ts {_short(text)} loses nanoseconds; write it relative to a base such as baseTimeNanoseconds",
            )
        return ns

    def _duration(self, number: int, event: Event) -> int | None:
        if event.dur is UNSET:
            self._add("perfetto-duration", number, f"{_what(event)} has no dur; give it one, or write B and E")
            return None
        text = bytes(event.dur)
        ns = _microseconds(text)
        if ns is None:
            self._add("perfetto-duration", number, f"dur is {_short(text)}; write a number of microseconds")
        elif ns < 0:
            self._add("perfetto-negative-duration", number, f"dur is {_short(text)}; measure it with a monotonic clock")
        return ns

    def _check_metadata(self, number: int, event: Event) -> None:
        name = decode_or_none(event.name)
        if not isinstance(name, str):
            return
        if name.startswith("tracekit_"):
            self.by_tracekit = True
            if name == METADATA_EVENT:
                self.metadata.append(number)
        elif name in _NAMES:
            args = decode_or_none(event.args)
            given = args.get("name") if isinstance(args, dict) else None
            if not isinstance(given, str):
                self._add("perfetto-metadata-name", number, f"args.name of {name} is no text; write the name")
        elif name in _SORT_INDICES:
            args = decode_or_none(event.args)
            given = args.get("sort_index") if isinstance(args, dict) else None
            if isinstance(given, bool) or not isinstance(given, (int, float)):
                self._add("perfetto-sort-index", number, f"args.sort_index of {name} is no number; write an integer")

    def _check_counter(self, number: int, event: Event) -> None:
        try:
            args = {} if event.args is UNSET else decode_json(event.args)
        except ValueError:  # the reader took it, so it is a number that no double holds
            self._add("perfetto-nan", number, f"{_what(event)} has a value beyond the range of a double; leave it out")
            return
        if not isinstance(args, dict):
            self._add(
                "perfetto-counter-value", number, f"args of {_what(event)} are no object; write series and values"
            )
            return
        for series, value in args.items():
            if type(value) in (int, float):
                continue
            # Perfetto takes numbers as text, also "nan" and "inf" (which is what the reader makes of a bare NaN).
            if isinstance(value, str) and (_NUMBER.fullmatch(value) or _NOT_FINITE.fullmatch(value)):
                continue
            self._add(
                "perfetto-counter-value",
                number,
                f"series {series[:40]!r} of {_what(event)} is {_short(encode_json(value))}; write a number, or leave "
                f"it out",
            )

    def _check_flow(self, number: int, event: Event, phase: str) -> None:
        value = decode_or_none(event.id)
        valid = (type(value) is int and _MIN_INT64 <= value <= _MAX_INT64) or (
            isinstance(value, str) and _HEXADECIMAL.fullmatch(value) is not None
        )
        if not valid:
            given = "has no id" if event.id is UNSET else f"has the id {_short(bytes(event.id))}"
            self._add("perfetto-flow-id", number, f"{_what(event)} {given}; write an integer of 64 bits")
        elif phase == "s":
            # Text is hexadecimal: "10" and 16 are the same flow.
            flow = int(value, 16) if isinstance(value, str) else value
            self._flows.start(number, event.pid, _key(event.cat), _key(event.name), flow)

    def _check_async(self, number: int, event: Event) -> None:
        what = _what(event)
        if event.pid is UNSET:
            self._add("perfetto-async-id", number, f"{what} has no pid; give it one")
            return
        if event.id is not UNSET:
            if _is_id(decode_or_none(event.id)):
                self._add("perfetto-global-async", number, f'{what} has a plain id; write "id2":{{"local":...}}')
            else:
                self._add("perfetto-async-id", number, f"id of {what} is no integer and no text; write one")
            return
        given = decode_or_none(event.id2)
        if not isinstance(given, dict) or not (_is_id(given.get("local")) or _is_id(given.get("global"))):
            self._add("perfetto-async-id", number, f'{what} has no id; write "id2":{{"local":...}}')


def event_value(event: Event) -> dict[str, Any]:
    """Return the event as the schema sees it; args only where the schema looks into them.

    Raises:
        ValueError: It holds a number that no double holds.
    """
    args = event.args
    if (
        args is not UNSET
        and event.ph not in ("C", "M")
        and bytes(args[:1] if isinstance(args, bytes) else args)[:1] == b"{"
    ):
        event.args = UNSET
        try:
            value: dict[str, Any] = decode_json(encode_json(event))
        finally:
            event.args = args
        value["args"] = {}
    else:
        value = decode_json(encode_json(event))
    return value


def schema_check(wrong: Callable[[Any], str | None]) -> Callable[[Event], str | None]:
    """Return a function that checks events against the event schema, each shape of event once."""
    verdicts: dict[Any, str | None] = {}

    def check(event: Event) -> str | None:
        key = _plain_shape(event)
        if key is not None and key in verdicts:
            return verdicts[key]
        try:
            value = event_value(event)
        except ValueError:
            return None  # reported as a rule of its own
        # What the metadata say is looked at to the letter, and there are few of them.
        if value.get("name") == METADATA_EVENT:
            return wrong(value)
        if key is None:
            key = shape(value)
        if key not in verdicts:
            verdicts[key] = wrong(value)
        return verdicts[key]

    return check


def _plain_shape(event: Event) -> tuple[Any, ...] | None:
    """Return `shape` of the most usual events at a tenth of its cost, or None for the others.

    Of slices and instants the schema sees no more than the type of each value, which the first letter of its text tells.
    """
    pid, tid = event.pid, event.tid
    if event.ph not in _PLAIN or type(pid) is not int or (type(tid) is not int and tid is not UNSET):
        return None
    name, category, time, duration, args, scope = event.name, event.cat, event.ts, event.dur, event.args, event.s
    return (
        event.ph,
        0 <= pid <= _UINT32_MAX,
        tid is UNSET or 0 <= tid <= _UINT32_MAX,
        tid is UNSET,
        None if name is UNSET else _FIRST_LETTER[memoryview(name)[0]],
        None if category is UNSET else _FIRST_LETTER[memoryview(category)[0]],
        None if time is UNSET else _FIRST_LETTER[memoryview(time)[0]],
        None if duration is UNSET else _FIRST_LETTER[memoryview(duration)[0]],
        None if args is UNSET else _FIRST_LETTER[memoryview(args)[0]],
        None if scope is UNSET else bytes(scope),
    )


def _microseconds(text: bytes) -> int | None:
    # A number is well-formed, since the reader took it; a text need not be.
    return None if text.startswith(b'"') and not _TEXT_TIME.fullmatch(text) else parse_us(text)


def _key(raw: Raw | UnsetType) -> bytes | None:
    """Return what tells names apart, without decoding them; None for no name and, as in Perfetto, for an empty one."""
    return None if raw is UNSET else bytes(raw).replace(b'""', b"") or None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or type(value) is int


def _short(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return shown if len(shown) <= 40 else shown[:40] + "..."


def _what(event: Event) -> str:
    """Return the event in a few words, for messages."""
    name = decode_or_none(event.name)
    phase = event.ph if isinstance(event.ph, str) else "?"
    return f"{phase[:1]} event {name[:60]!r}" if isinstance(name, str) else f"{phase[:1]} event"
