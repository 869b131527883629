"""The events of some inputs as packets of a native Perfetto trace.

A slice is two packets there, and its end closes whatever is open on its track. So of all that happens on a track in one
nanosecond the packets must stand in the right order: the ends of what began earlier, then the longer slices before the
shorter. Inputs are in no such order (Kineto writes Python's functions after all operators), hence slices are put in order
before they are written.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.event_fields import raw_field
from tracekit.formats.pftrace import (
    BEGIN,
    COUNTER,
    END,
    INSTANT,
    Sequence,
    counter_track,
    counter_value,
    metadata_value,
    track,
)
from tracekit.formats.time_columns import durations_of, parse_all_us
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_events, decode_or_none, encode_events
from tracekit.merge.outputs import pftrace_flows as flows
from tracekit.merge.outputs.pftrace_details import OTHER_FIELDS, Details, text_field
from tracekit.merge.outputs.pftrace_tracks import process_uuid, thread_uuid, unit_of, uuid_of
from tracekit.merge.sorted_items import SortedItems

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PftracePart"]

_LAST_NS: Final = 2**63 - 1
_NEVER: Final = 2**63
_PIECE_PACKETS: Final = 4096
_UINT64: Final = 2**64 - 1
# Counters and async events stand below a process's threads and groups.
_COUNTERS: Final = 1 << 21
_ASYNC: Final = 1 << 22
_FLOW_PLACES: Final = {"s": flows.START, "t": flows.STEP, "f": flows.NEXT}
# What an async event does, in both generations of them.
_ASYNC_PHASES: Final = {"b": BEGIN, "e": END, "n": INSTANT, "S": BEGIN, "F": END, "T": INSTANT, "p": INSTANT}
_INSTANT_PHASES: Final = frozenset("iIR")


class PftracePart:
    """Encodes the events of one unit of inputs.

    Args:
        number: Of the sequence of packets, unique in the trace.
        base_ns: What the times of the events are relative to.
        merge: What this merge is and no other. The ids of arrows and of async events mean something within it only.
    """

    writes_out_frames = True

    def __init__(self, number: int, base_ns: int, merge: str) -> None:
        self._base_ns = base_ns
        self._merge = merge
        self._sequence = Sequence(number)
        self._details = Details(self._sequence)
        self._order = 0
        self._items = SortedItems()
        self._pairs = SortedItems()
        self._has_flows = False
        self._flow_bases: dict[tuple[bytes, bytes], int] = {}
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._async: dict[int, tuple[int, int, str]] = {}
        self._metadata: Counter[str] = Counter()
        self._out: list[bytes] = []

    def encode(self, number: int, events: bytes) -> bytes:
        """Return what is written of a run at once, its counters and the names in it; slices are kept."""
        timed = []
        for event in decode_events(events):
            if event.ph == "M":
                self._keep_metadata(event)
            else:
                timed.append(event)
        other = [name for name in OTHER_FIELDS if b'"%b":' % name.encode() in events]
        times = parse_all_us([event.ts for event in timed])  # type: ignore[misc]
        durations = durations_of(timed)
        base_ns, items = self._base_ns, self._items
        for event, time, duration in zip(timed, times, durations, strict=True):
            self._order += 1
            start = base_ns + time  # type: ignore[operator]
            if event.ph == "X":
                uuid = thread_uuid(event.pid, event.tid)  # type: ignore[arg-type]
                body = self._details.title(event) + self._details.details(event, other)
                end = min(start + duration, _LAST_NS)
                arrow = self._arrow(event)
                items.add((start, -end, self._order, uuid, flows.SLICE, body, *arrow), len(body))
            else:
                self._other(number, event, start, other)
        text = b"".join([self._sequence.definitions(), *self._out])
        self._out.clear()
        return text

    def finish(self) -> Iterator[bytes]:
        """Yield the slices and instants, in order."""
        self._join_pairs()
        fields = iter(flows.bind_flows(self._items) if self._has_flows else ())
        carried = next(fields, None)
        event, kind_of = self._sequence.event, self._sequence.kind
        open_: dict[int, list[tuple[int, bytes]]] = {}
        out = [self._sequence.definitions(), *(self._describe_async(uuid, uuid) for uuid in self._async)]
        for start, minus_end, order, home, kind, body, *_ in self._items:
            at_begin = at_end = b""
            while carried is not None and carried[:3] == (start, minus_end, order):
                if carried[5]:
                    at_end += carried[6]
                else:
                    at_begin += carried[6]
                carried = next(fields, None)
            if kind == flows.FLOW and not at_begin:
                continue
            uuid = home
            stack = open_.setdefault(uuid, [])
            while stack and stack[-1][0] <= start:
                out.append(self._end(uuid, *stack.pop()))
            if stack and -minus_end > stack[-1][0] and kind == flows.SLICE:
                # Only async slices overlap: those of threads got a lane each before they came here.
                uuid = self._lane(home, start, -minus_end, open_, out)
                stack = open_[uuid]
            out.append(event(start, kind_of(BEGIN if kind == flows.SLICE else INSTANT, uuid) + body + at_begin))
            if kind == flows.SLICE:
                if -minus_end == start:
                    out.append(self._end(uuid, start, at_end))
                else:
                    stack.append((-minus_end, at_end))
            if len(out) >= _PIECE_PACKETS:
                yield b"".join(out)
                out.clear()
        for uuid, stack in open_.items():
            out += [self._end(uuid, end, at_end) for end, at_end in reversed(stack) if end < _NEVER]
        self._items.close()
        yield b"".join(out)

    def _lane(
        self, uuid: int, start: int, end: int, open_: dict[int, list[tuple[int, bytes]]], out: list[bytes]
    ) -> int:
        """Return the first track beside an async one on which a slice lies inside, or after, what is open there."""
        number = 0
        while True:
            number += 1
            lane = uuid_of("lane", uuid, number)
            if lane not in open_:
                open_[lane] = []
                out.append(self._describe_async(uuid, lane))
            stack = open_[lane]
            while stack and stack[-1][0] <= start:
                out.append(self._end(lane, *stack.pop()))
            if not stack or end <= stack[-1][0]:
                return lane

    def _end(self, uuid: int, time_ns: int, fields: bytes) -> bytes:
        if fields:
            return self._sequence.event(time_ns, self._sequence.kind(END, uuid) + fields)
        return self._sequence.end(time_ns, uuid)

    # Events that are no whole slice.

    def _other(self, number: int, event: Event, start: int, other: list[str]) -> None:
        phase: str = event.ph  # type: ignore[assignment]
        thread = thread_uuid(event.pid, event.tid)  # type: ignore[arg-type]
        if phase in "BE":
            self._half(number, event, start, thread, BEGIN if phase == "B" else END, other)
        elif phase in _ASYNC_PHASES:
            self._half(number, event, start, self._async_track(event, start), _ASYNC_PHASES[phase], other)
        elif phase in _FLOW_PLACES:
            self._flow(event, start, thread)
        elif phase == "C":
            self._counter(event, start)
        else:
            of_process = phase in "iI" and event.s is not UNSET and bytes(event.s) == b'"p"'
            uuid = process_uuid(event.pid) if of_process else thread  # type: ignore[arg-type]
            # Of what no viewer shows, the phase is kept.
            details = self._details.details(event, other, "" if phase in _INSTANT_PHASES else phase)
            self._instant(start, self._order, uuid, self._details.title(event) + details, self._arrow(event))

    def _half(self, number: int, event: Event, start: int, uuid: int, kind: int, other: list[str]) -> None:
        """Keep the begin or end of a slice until both are known, or an instant between."""
        details, arrow = self._details.details(event, other), self._arrow(event)
        name, category = self._details.name(event), self._details.category(event)
        if kind == INSTANT:
            self._instant(start, self._order, uuid, category + name + details, arrow)
        else:
            size = len(name) + len(category) + len(details)
            self._pairs.add((start, self._order, number, uuid, kind, name, category, details, arrow), size)

    def _instant(self, time: int, order: int, uuid: int, body: bytes, arrow: tuple[int, ...]) -> None:
        self._items.add((time, -time, order, uuid, flows.INSTANT, body, *arrow), len(body))

    def _join_pairs(self) -> None:
        """Find the end of every begin: as everywhere, the innermost open one of its name and category is ended."""
        items = self._items
        open_: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        for time, order, number, uuid, kind, name, category, details, arrow in self._pairs:
            stack = open_.setdefault((number, uuid), [])
            if kind == BEGIN:
                stack.append((time, order, name, category, details, arrow))
                continue
            for position in range(len(stack) - 1, -1, -1):
                start, begin, begin_name, begin_category, text, begin_arrow = stack[position]
                if name in (b"", begin_name) and category in (b"", begin_category):
                    del stack[position]
                    body = begin_category + begin_name + text + details
                    items.add((start, -time, begin, uuid, flows.SLICE, body, *begin_arrow, *arrow), len(body))
                    break
            else:
                # The end of an async event that began before the recording.
                self._instant(time, order, uuid, category + name + details, arrow)
        for (_, uuid), stack in open_.items():
            for start, begin, name, category, text, arrow in stack:
                body = category + name + text
                items.add((start, -_NEVER, begin, uuid, flows.SLICE, body, *arrow), len(body))
        self._pairs.close()

    def _flow(self, event: Event, time: int, uuid: int) -> None:
        self._has_flows = True
        place = _FLOW_PLACES[event.ph]  # type: ignore[index]
        if place == flows.NEXT and event.bp is not UNSET and bytes(event.bp) == b'"e"':
            place = flows.END
        # For one that stands alone, with no slice around it.
        body = self._details.title(event)
        number = self._flow_number(raw_field(event.cat), raw_field(event.name), event.id)
        self._items.add((time, 1, self._order, uuid, flows.FLOW, body, place, number), len(body))

    def _flow_number(self, category: bytes, name: bytes, raw: Any) -> int:
        """Return a number for an arrow: ids are told apart by category and name."""
        base = self._flow_bases.get((category, name))
        if base is None:
            base = self._flow_bases[category, name] = uuid_of("flow", self._merge, category, name)
        return (base + int(bytes(raw))) & _UINT64

    def _arrow(self, event: Event) -> tuple[int, ...]:
        """Return the place on an arrow, and the arrow's number, of an event that says that itself."""
        if event.bind_id is UNSET:
            return ()
        outwards, inwards = decode_or_none(event.flow_out), decode_or_none(event.flow_in)
        if not outwards and not inwards:
            return ()
        self._has_flows = True
        place = flows.STEP if outwards and inwards else flows.START if outwards else flows.END
        return place, self._flow_number(b"", b"", event.bind_id)

    def _counter(self, event: Event, time: int) -> None:
        values = decode_or_none(event.args)
        for key, value in values.items():
            what = ("counter", event.pid, raw_field(event.name), raw_field(event.id), key)
            uuid = self._tracks.get(what)
            if uuid is None:
                uuid = self._tracks[what] = uuid_of(*what)
                name = (
                    f"{text_field(event.name)} {key}"
                    if event.id is UNSET
                    else f"{text_field(event.name)} id: {text_field(event.id)} {key}"
                )
                parent = process_uuid(event.pid)  # type: ignore[arg-type]
                description = counter_track(uuid, parent, name, unit=unit_of(key), order=_COUNTERS)
                self._out.append(self._sequence.describe(description))
            self._out.append(self._sequence.event(time, self._sequence.kind(COUNTER, uuid) + counter_value(value)))

    def _async_track(self, event: Event, time: int) -> int:
        """Return the track of an async event: events of one category and id nest in each other."""
        what = ("async", self._merge, event.pid, raw_field(event.cat), raw_field(event.id2), raw_field(event.id))
        uuid = self._tracks.get(what)
        if uuid is None:
            uuid = self._tracks[what] = uuid_of(*what)
        if uuid not in self._async or time < self._async[uuid][0]:
            # The track has the name of what happens first on it.
            self._async[uuid] = time, process_uuid(event.pid), text_field(event.name)  # type: ignore[arg-type]
        return uuid

    def _describe_async(self, uuid: int, lane: int) -> bytes:
        _, parent, name = self._async[uuid]
        return self._sequence.describe(track(lane, parent, name, order=_ASYNC, merge=True))

    def _keep_metadata(self, event: Event) -> None:
        name = f"{text_field(event.name)} of process {event.pid}"
        self._metadata[name] += 1
        if self._metadata[name] > 1:
            name += f" ({self._metadata[name]})"
        if self._base_ns and event.ts is not UNSET:
            # Like everything else here, which has no base.
            time = parse_us(bytes(event.ts))
            if time is not None:
                event.ts = Raw(format_us(self._base_ns + time))
        self._out.append(self._sequence.plain(metadata_value(name, encode_events([event]))))
