"""Rules on events: on one event, on the slices of one track, a (pid, tid), which must nest, and on flows, which start once."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import is_exact, parse_us
from tracekit.formats.json.repair import has_final_backslash
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.trace_event import (
    MAX_DEPTH,
    MAX_NESTING,
    UNSET,
    args_depth,
    decode_dict,
    decode_json,
    decode_or_none,
    decode_text,
    encode_json,
    name_and_category,
)
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.check.validation.report import Findings
    from tracekit.formats.trace_event import Event, Raw, UnsetType

_FOREVER: Final = 2**63 - 1
_OTHER_TID: Final = "put one of them on another tid"
TrackKey = tuple[Any, Any]  # pid and tid, as the file has them
_EXACT_NS: Final = 2**53
_UINT32_MAX: Final = 2**32 - 1
_PHASES: Final = frozenset("BEXiIRCMbenstfTP")
_HEXADECIMAL: Final = re.compile(r"\s*[+-]?(0[xX])?[0-9a-fA-F]{1,16}\s*")
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|[+-]?(?i:nan|inf(inity)?)")
_TEXT_TIME: Final = re.compile(rb'"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"')
_METADATA_ARGS: Final = {f"{what}_{key}": key for what in ("process", "thread") for key in ("name", "sort_index")}
# The end of the rules' names, and the advice for a missing and for a negative time.
_TIMES: Final = {
    "ts": ("time", "give it one, in microseconds", "write times relative to an earlier base"),
    "dur": ("duration", "give it one, or write B and E", "measure it with a monotonic clock"),
}


class EventChecks:
    """Checks one event after the other; `finish` checks what several events must agree on.

    Args:
        rank_of: The rank of each pid in a merged trace; empty in others.
    """

    def __init__(self, findings: Findings, rank_of: Mapping[Any, int]) -> None:
        self.metadata: list[int] = []  # the numbers of the ``tracekit_metadata`` events
        self.by_tracekit = False  # True after an event with a name that starts with ``tracekit_``
        self._add = findings.add
        self._tracks = Tracks(findings)
        self._rank_of = rank_of
        # The pid and number of the event that started a flow. Hashes of the flows: one in 2^64 is a small price for a third
        # of the memory.
        self._started: dict[int, tuple[Any, int]] = {}

    def check(self, number: int, event: Event) -> None:
        """Check an event; ``number`` counts from 1."""
        if event.ph is UNSET or not event.ph:
            self._add("perfetto-phase", number, "the event has no ph; leave it out or say what it is")
            return
        phase = event.ph[0]  # Perfetto looks at the first letter only
        if phase not in _PHASES:
            message = f"phase {event.ph[:20]!r} is passed over; use X, B, E, i, C, b, e, n, s, t or f"
            self._add("perfetto-phase", number, message)
            return
        self._check_fields(number, event)
        start_ns = None
        if phase != "M" or event.ts is not UNSET:
            start_ns = self._time_ns(number, event, "ts", event.ts)
        if phase == "M":
            self._check_metadata(number, event)
        elif start_ns is None:
            pass  # reported, and Perfetto drops it
        elif phase == "X":
            dur_ns = self._time_ns(number, event, "dur", event.dur)
            if dur_ns is not None:
                self._tracks.add_slice(number, (event.pid, event.tid), start_ns, dur_ns)
        elif phase in "BE":
            edge = number if phase == "B" else -number
            self._tracks.add_edge(edge, (event.pid, event.tid), start_ns, *name_and_category(event))
        elif phase == "C":
            self._check_counter(number, event)
        elif phase in "iIR":
            if event.s is not UNSET and decode_or_none(event.s) == "g":
                self._add("perfetto-global-instant", number, f'{_what(event)} has scope "g"; use "p" or "t"')
        elif phase in "stf":
            self._check_flow(number, event, phase)
        elif phase in "ben":
            self._check_async(number, event)

    def finish(self) -> None:
        """Check the slices of each track, after the last event."""
        self._tracks.check()

    def _check_fields(self, number: int, event: Event) -> None:
        for key, value in (("pid", event.pid), ("tid", event.tid)):
            if isinstance(value, str):
                self._add("text-process-id", number, f"{key} is the text {value[:40]!r}; write a number and a name")
            elif value is not UNSET and not (type(value) is int and 0 <= value <= _UINT32_MAX):
                shown = "neither a number nor a text" if value is None else repr(value)
                self._add("perfetto-process-id", number, f"{key} is {shown}; write an integer from 0 to 4294967295")
        for key, text in (("name", event.name), ("cat", event.cat), ("args", event.args)):
            if text is not UNSET and has_final_backslash(bytes(text)):
                message = rf"a text in {key} ends with \; write \, which is the same (tracekit merge does)"
                self._add("perfetto-final-backslash", number, message)
        if event.args is not UNSET and (deepest := args_depth(event.args)) > MAX_NESTING:
            message = f"args are nested {deepest} deep; write at most {MAX_NESTING} levels"
            self._add("perfetto-args-nesting", number, message)

    def _time_ns(self, number: int, event: Event, key: str, raw: Raw | UnsetType) -> int | None:
        """Return ts or dur in ns, or None when Perfetto cannot use it."""
        if raw is UNSET:
            name, missing, _ = _TIMES[key]
            self._add(f"perfetto-{name}", number, f"{_what(event)} has no {key}; {missing}")
            return None
        text = bytes(raw)
        # A number is well-formed, since the reader took it; a text need not be.
        ns = None if text.startswith(b'"') and not _TEXT_TIME.fullmatch(text) else parse_us(text)
        if ns is None or ns < 0:
            name, _, advice = _TIMES[key]
            rule, advice = (name, "write a number of microseconds") if ns is None else (f"negative-{name}", advice)
            self._add(f"perfetto-{rule}", number, f"{key} is {_short(text)}; {advice}")
            return None
        if ns > _EXACT_NS and key == "ts" and (b"." in text or b"e" in text.lower()) and not is_exact(ns):
            message = f"ts {_short(text)} loses nanoseconds; write it relative to a base such as baseTimeNanoseconds"
            self._add("perfetto-inexact-time", number, message)
        return ns

    def _check_metadata(self, number: int, event: Event) -> None:
        name = decode_text(event.name)
        if name.startswith("tracekit_"):
            self.by_tracekit = True
            if name == METADATA_EVENT:
                self.metadata.append(number)
        elif key := _METADATA_ARGS.get(name):
            given = decode_dict(event.args).get(key)
            if key == "name" and not isinstance(given, str):
                self._add("perfetto-metadata-name", number, f"args.name of {name} is no text; write the name")
            elif key == "sort_index" and type(given) not in (int, float):
                self._add("perfetto-sort-index", number, f"args.sort_index of {name} is not a number; write an integer")

    def _check_counter(self, number: int, event: Event) -> None:
        what = _what(event)
        try:
            args = {} if event.args is UNSET else decode_json(event.args)
        except ValueError:  # the reader took it, so it is a number that no double holds
            self._add("perfetto-nan", number, f"{what} has a value beyond the range of a double; leave it out")
            return
        if not isinstance(args, dict):
            self._add("perfetto-counter-value", number, f"args of {what} are not an object; write series and values")
            return
        for series, value in args.items():
            # Perfetto takes numbers as text, also "nan" and "inf" (which is what the reader makes of a bare NaN).
            if type(value) in (int, float) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
                continue
            found = f"series {series[:40]!r} of {what} is {_short(encode_json(value))}"
            self._add("perfetto-counter-value", number, f"{found}; write a number, or leave it out")

    def _check_flow(self, number: int, event: Event, phase: str) -> None:
        flow = decode_or_none(event.id)
        if isinstance(flow, str) and _HEXADECIMAL.fullmatch(flow):
            flow = int(flow, 16)  # "10" and 16 are the same flow
        elif type(flow) is not int or not -(2**63) <= flow < 2**63:
            flow = None
        if flow is None:
            given = "has no id" if event.id is UNSET else f"has the id {_short(bytes(event.id))}"
            self._add("perfetto-flow-id", number, f"{_what(event)} {given}; write an integer of 64 bits")
        elif phase == "s":  # one without an end or a start is normal: kineto writes an f for every runtime call
            self._start_flow(number, event, flow)

    def _start_flow(self, number: int, event: Event, flow: int) -> None:
        pid, key = event.pid, hash((*name_and_category(event), flow))
        other, first = self._started.setdefault(key, (pid, number))
        if first != number:
            by, what = ("it", "flow") if other == pid else (f"pid {other}", "rank")
            rank = self._rank_of.get(pid)
            of_input = rank is not None and rank == self._rank_of.get(other)
            rule = "input-flow-duplicate" if of_input else "perfetto-flow-duplicate"
            place = f"is started here by pid {pid}, and in event {first} by {by}"
            self._add(rule, number, f"flow {flow} {place}; give each {what} ids of its own")

    def _check_async(self, number: int, event: Event) -> None:
        what = _what(event)
        given = decode_or_none(event.id if event.id is not UNSET else event.id2)
        if event.pid is UNSET:
            self._add("perfetto-async-id", number, f"{what} has no pid; give it one")
        elif event.id is UNSET:
            if not isinstance(given, dict) or not (_is_id(given.get("local")) or _is_id(given.get("global"))):
                self._add("perfetto-async-id", number, f'{what} has no id; write "id2":{{"local":...}}')
        elif _is_id(given):
            self._add("perfetto-global-async", number, f'{what} has a plain id; write "id2":{{"local":...}}')
        else:
            self._add("perfetto-async-id", number, f"id of {what} is neither an integer nor text; write one")


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


class Tracks:
    """Collects slices in the order of the file, and checks each track in the order of time at the end."""

    def __init__(self, findings: Findings) -> None:
        self._add = findings.add
        # Number, start and end of each X; number (negative for an E), time, hash of name and of category of each B and E.
        self._tracks = defaultdict[TrackKey, tuple["array[int]", "array[int]"]](lambda: (array("q"), array("q")))

    def add_slice(self, number: int, key: TrackKey, start_ns: int, dur_ns: int) -> None:
        """Add an X."""
        self._tracks[key][0].extend((number, start_ns, min(start_ns + dur_ns, _FOREVER)))

    def add_edge(self, number: int, key: TrackKey, time_ns: int, name: bytes, category: bytes) -> None:
        """Add a B, or with a negative number an E; the name and the category may be empty."""
        # Empty texts have the hash 0.
        self._tracks[key][1].extend((number, time_ns, hash(name), hash(category)))

    def check(self) -> None:
        """Report what does not nest, and forget everything."""
        while self._tracks:
            (pid, tid), (slices, edges) = self._tracks.popitem()
            where = f"pid {pid} tid {tid}"
            spans = [
                (slices[at + 1], 0, -slices[at + 2], slices[at], slices[at + 2]) for at in range(0, len(slices), 3)
            ]
            spans += [(start, 1, 0, number, end) for number, start, end in self._pairs(edges, where)]
            # Perfetto's order: by time, not by place in the file; X before B; the longer X first.
            spans.sort()
            self._check_nesting(spans, where)

    def _pairs(self, edges: array[int], where: str) -> list[tuple[int, int, int]]:
        order = sorted(range(0, len(edges), 4), key=lambda at: (edges[at + 1], abs(edges[at])))
        opened: OpenSlices[tuple[int, int]] = OpenSlices()
        pairs = []
        for at in order:
            number, time_ns, name, category = edges[at : at + 4]
            if number > 0:
                opened.begin(name, category, (number, time_ns))
                continue
            innermost = opened.innermost if len(opened) else None
            begin = opened.end(name, category)
            if begin is None:
                fits = "fits no open B (by time, name and category); write the B, or the same name in both"
                self._add("perfetto-end-without-begin", -number, f"E on {where} {fits}")
                continue
            if begin is not innermost:
                inner = f"in which event {opened.innermost[0]} is still open; end the inner slice first"
                self._add(
                    "perfetto-misplaced-end", -number, f"E on {where} ends the slice of event {begin[0]}, {inner}"
                )
            pairs.append((*begin, time_ns))
        for number, start in opened.slices:
            self._add("unclosed-begin", number, f"B on {where} has no E; it is drawn to the end of the trace")
            pairs.append((number, start, _FOREVER))
        return pairs

    def _check_nesting(self, spans: list[tuple[int, int, int, int, int]], where: str) -> None:
        stack: list[tuple[int, int, int]] = []  # end, number, 1 for a B and E
        first = too_deep = 0
        for start, is_pair, _, number, end in spans:
            while stack and stack[-1][0] <= start:
                stack.pop()
            if stack and end > stack[-1][0]:
                parent_end, parent, parent_is_pair = stack[-1]
                beyond = f"{end - parent_end} ns"
                if not is_pair and not parent_is_pair:
                    message = f"ends {beyond} after the slice of event {parent} that it begins in; {_OTHER_TID}"
                    message += ", or write them as b/e with id2.local"
                    self._add("perfetto-overlap", number, f"slice on {where} {message}")
                    continue  # Perfetto drops it, so it has no children
                if not is_pair:
                    message = f"slice on {where} sticks {beyond} out of the slice of event {parent}; {_OTHER_TID}"
                    self._add("perfetto-overlap-open", number, message)
                elif not parent_is_pair:
                    message = f"is cut short where the slice of event {parent} ends, in which it begins"
                    message += f"; write that slice as B and E too, or {_OTHER_TID}"
                    self._add("perfetto-overlap-open", number, f"B on {where} {message}")
                    end = parent_end  # noqa: PLW2901 - as Perfetto does
                # Two pairs: reported as a misplaced end.
            stack.append((end, number, is_pair))
            if len(stack) > MAX_DEPTH:
                first = first or number
                too_deep += 1
        if too_deep:
            message = f"{where} is nested deeper than {MAX_DEPTH} slices; record fewer levels"
            self._add("perfetto-depth", first, message, count=too_deep)
