"""The rules that rewrite an event for the merged trace, applied to decoded events.

The compiled core does the same to events of the usual forms, without decoding them, and leaves all others to this module.
Fields that need no change stay the bytes they were. All arithmetic is in integer ns. An event is left out only where no viewer
can show it, and is counted.
"""

from __future__ import annotations

import re
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import EPOCH_NS, EXACT_SPANS_NS, exact_time, format_us, parse_us
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.stack_frames import STACK_FRAMES, StackFrames
from tracekit.formats.trace_event import (
    PHASES,
    UNSET,
    Event,
    Raw,
    decode_dict,
    decode_named,
    decode_or_none,
    encode_event,
    encode_json,
    raw_field,
    raw_number,
    repair_fields,
    time_field,
)
from tracekit.merge.plan.plan import DIRECT_IDS, NAMESPACE, InputResult
from tracekit.merge.plan.titles import WORK_CATEGORIES, work_of
from tracekit.traces.pairs import OpenSlices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.merge.align.domains import ClockMap
    from tracekit.merge.plan.plan import UnitInput, UnitJob
    from tracekit.merge.plan.tracks import UnitTracks
    from tracekit.merge.rewrite.rewriter import AnyRewriter


NO_TIME_LIMIT: Final = -(2**63)
_LATEST_NS: Final = 2**63 - 1
MAX_EXACT_NS: Final = 2**42 * 1000
"""Up to here a viewer reads every time in JSON to the nanosecond; see `tracekit.formats.decimal_time`."""
MAX_EASY_NS: Final = 2**62
"""Up to here a duration of 15 digits in front of the decimal point ends before the latest time."""
_MAX_EXTRA_KEYS: Final = 64
_SCOPE_PROCESS: Final = Raw(b'"p"')
_QUOTE: Final = ord('"')
_PLAIN_DURATION: Final = re.compile(rb"\d{1,15}(?:\.\d{1,3})?")
_NUMBER_TEXT: Final = re.compile(r"\s*[+-]?(?:\d{1,18}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,2})?\s*")
_HEX: Final = re.compile(rb'"(?:0[xX])?([0-9a-fA-F]{1,15})"')
_JSON_NUMBER: Final = rb"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?"
_PLAIN_COUNTER: Final = re.compile(rb'\{\s*(?:"[^"\\]*"\s*:\s*' + _JSON_NUMBER + rb"\s*(?:,\s*(?!\})|(?=\})))+\}")
_TID: Final = b'"tid":'
_DUR: Final = b'"dur":'
# The ids in args that tie events together, as in Kineto's traces. Inside a string the quotes of what looks like a key are
# escaped: that is text. Patterns that begin with plain text are searched faster.
_NUMBER: Final = rb"\s*:\s*)(0|[1-9]\d{0,18})(?=[\s,}\]])"
_ARG_IDS: Final = (
    re.compile(rb'(xternal id"(?<=[^\\]"[Ee]xternal id")' + _NUMBER),
    re.compile(rb'(correlation"(?<=[^\\]"correlation")' + _NUMBER),
)
_PREFIXED: Final = re.compile(r"(\d+0{10}):(.*)", re.DOTALL)
_MAX_ARG_ID: Final = 10**19
_OWN: Final = b'"tracekit'
_IDS: Final = frozenset({"correlation", "External id", "external id"})
_LOGGED: Final = frozenset("XBEstf")


class EventRewriter:
    """Rewrites the events of one input, in the order of the file, and hands them to a rewriter."""

    def __init__(self, rewriter: AnyRewriter, tracks: UnitTracks, item: UnitInput, job: UnitJob) -> None:
        self.result = InputResult()
        self._written, self._dropped, self._repaired = self.result.written, self.result.dropped, self.result.repaired
        self._rewriter = rewriter
        self._tracks = tracks
        self._item = item
        self._shift_ns = item.shift_ns
        self._warp = item.warp
        self._least_ns = max(-item.shift_ns, EPOCH_NS if item.source.base_ns == 0 else NO_TIME_LIMIT)
        self._is_json = job.make_encoder is None  # its times may be exact, and its events name stack frames
        self._most_ns = MAX_EXACT_NS if self._is_json else MAX_EASY_NS
        self.offset = max(item.ids.namespace, 0) * NAMESPACE
        self._namespaces = item.ids.moved
        self._moves_arg_ids = bool(item.ids.moved) or (item.id_args and self.offset > 0)
        self._args = job.args
        self._snaps = job.snap_ns > 0
        self._odd_ids: dict[bytes, int] = {}
        self._places = tracks.places
        self._frames: StackFrames | None = None  # read when an event first names one
        # Why each event is left out on request.
        self._verdicts: Iterator[str] = repeat("") if item.chosen is None else item.chosen.verdicts()
        # For slices that names and categories cannot pair.
        self._labels = iter(_pair_labels(item)) if has_lanes(item) else None

    def note(self, run: list[Event]) -> None:
        """Take from events of a rank trace what they say about losses."""
        if self._item.source.kind == "tracekit":
            self.result.accounts.take(run)

    def take_names(self, text: bytes) -> None:
        """Take metadata with the names and sort indices of processes and threads, which are written anew."""
        events = decode_named(text)
        self.result.read["M"] += len(events)
        self._tracks.declare(events)

    def take(self, run: list[Event]) -> None:
        """Rewrite the events of a run; they are changed in place."""
        self.note(run)
        for event in run:
            self.result.read[event.ph[:1] if type(event.ph) is str else ""] += 1
        if self._item.chosen is not None:
            whole, run = run, self._item.chosen.of_ranks(run)
            if len(run) < len(whole):
                self.result.left_out["rank"] += len(whole) - len(run)
        for event in run:
            if event.ph != "M":
                self._rewrite(event, next(self._verdicts, ""))
            elif self._tracks.takes_metadata(event):
                self._rewrite_metadata(event)

    def finish(self) -> None:
        """After the last event of the input, write the metadata that was kept back, and complete the result."""
        self.result.stack_frames = {} if self._frames is None else self._frames.used
        kept, unused = self._tracks.end_input()
        for event in kept:
            self._rewrite_metadata(event)
        for reason, count in unused.items():
            if count:
                self._dropped[reason] += count

    def _rewrite(self, event: Event, why: str) -> None:
        """Rewrite an event that is not metadata, unless it is dropped."""
        text = raw_field(event.ts)
        start = self._moved(parse_us(text))
        if type(start) is int and text[0] == _QUOTE:
            self._repaired["text_time"] += 1
        phase: Any = event.ph
        if phase not in PHASES:
            phase = self._repaired_phase(event)
        if phase is None:
            return
        label = next(self._labels) if self._labels is not None and phase in "BE" else 0
        if event.extra is not UNSET:
            self._limit_extra(event)
        place = self._places.get((event.pid, event.tid)) or self._tracks.place(event.pid, event.tid, event.cat)
        event.pid, event.tid, log = place  # type: ignore[assignment]
        if why:
            self.result.left_out[why] += 1
            return
        if isinstance(start, str):
            self._dropped[start] += 1
            return
        if self._warp is not None and event.dur is not UNSET:
            self._warp_duration(event, self._warp)
        event.ts = Raw(format_us(start))
        end = start
        if phase == "X":
            end += self._duration(event, start)
            if (category := raw_field(event.cat)) in WORK_CATEGORIES:
                self._tracks.note_work(log, work_of(category, raw_field(event.name)))
        for kind in repair_fields(event):
            self._repaired[kind] += 1
        if event.bind_id is not UNSET:
            event.bind_id = self._flow_id(event.bind_id)
        if phase in "stf":
            if event.id is UNSET:
                self._dropped["flow_without_id"] += 1
                return
            event.id = self._flow_id(event.id)
        elif phase in "ben":
            self._async_id(event)
        elif phase == "C" and not self._counter(event):
            return
        elif phase in "iIR" and raw_field(event.s) == b'"g"':
            # A global instant is on one track of the whole trace, without its rank.
            event.s = _SCOPE_PROCESS
        if event.sf is not UNSET or (event.extra is not UNSET and "esf" in event.extra):
            self._change_frames(event)
        if self._args and phase != "C" and event.args is not UNSET and not raw_field(event.name).startswith(_OWN):
            self._limit_args(event)
        if phase in "BE" and self._labels is None:
            label = self._rewriter.label(raw_field(event.name), raw_field(event.cat))
        self._write(event, log if phase in _LOGGED else -1, start, end, label)

    def _repaired_phase(self, event: Event) -> str | None:
        """Return the phase of an event with an unusual one; None if it is dropped."""
        phase = event.ph
        if type(phase) is not str or not phase:
            self._dropped["empty_event" if event.name is UNSET and event.args is UNSET else "no_phase"] += 1
            return None
        if len(phase) > 1:
            # Perfetto goes by the first letter.
            self._repaired["long_phase"] += 1
            event.ph = phase[0]
        if event.ph in PHASES:
            return event.ph
        self._dropped["unknown_phase"] += 1
        return None

    def _write(self, event: Event, log: int = -1, start: int = 0, end: int = 0, label: int = 0) -> None:
        phase = str(event.ph)
        self._written[phase] += 1
        text = without_final_backslash(encode_event(event))
        if self._moves_arg_ids:
            for pattern in _ARG_IDS:
                text = pattern.sub(self._moved_arg_id, text)
        tid_at = text.index(_TID) + len(_TID)
        if self._snaps and phase == "X":
            dur_at = text.index(_DUR) + len(_DUR)
            self._rewriter.append(text, log, ord(phase), start, end, tid_at, label, dur_at, len(raw_field(event.dur)))
        else:
            self._rewriter.append(text, log, ord(phase), start, end, tid_at, label)

    def _moved(self, time: int | None) -> int | str:
        """Return a time of the input in the merged trace, or the reason to drop its event."""
        if time is None:
            return "no_time"
        if self._warp is not None:
            time += self._warp.offset_at(time)
        if not self._least_ns <= time <= _LATEST_NS - self._shift_ns:
            return "time_out_of_range"
        return self._readable(time + self._shift_ns)

    def _is_easy(self, time_ns: int) -> bool:
        """Return True if a viewer reads times around this one as they are written."""
        first, last = EXACT_SPANS_NS[1]
        return time_ns <= self._most_ns or (self._is_json and first <= time_ns < last)

    def span_at(self, start_ns: int) -> tuple[int, int]:
        """Return the span of times that need no check: the first time of the input, and the last merged time."""
        first, last = 0, self._most_ns
        if self._is_json:
            first, last = next((span for span in EXACT_SPANS_NS if span[0] <= start_ns < span[1]), (0, self._most_ns))
        return max(self._least_ns, first - self._shift_ns), min(last, self._most_ns) if not first else last - 1

    def _readable(self, time_ns: int) -> int:
        """Return a time of the merged trace, or the one before it that a viewer reads as it is written."""
        return exact_time(time_ns) if self._is_json and time_ns > MAX_EXACT_NS else time_ns

    @staticmethod
    def _warp_duration(event: Event, warp: ClockMap) -> None:
        """Set a duration to the time between the two moved ends; an invalid one stays."""
        start, length = time_field(event.ts), time_field(event.dur)
        if start is not None and length is not None and length >= 0:
            event.dur = Raw(format_us(length + warp.offset_at(start + length) - warp.offset_at(start)))

    def _duration(self, event: Event, start: int) -> int:
        """Return the duration of a slice in ns; repair an invalid one."""
        text = raw_field(event.dur)
        duration = parse_us(text)
        if self._is_easy(start) and _PLAIN_DURATION.fullmatch(text):
            if self._snaps:
                event.dur = Raw(format_us(duration or 0))
            return duration or 0
        if not text:
            self._repaired["missing_dur"] += 1
        elif duration is None or duration < 0:
            self._repaired["bad_dur"] += 1
        elif text[0] == _QUOTE:
            self._repaired["text_time"] += 1
        if duration and start + duration > _LATEST_NS:
            self._repaired["bad_dur"] += 1
        # The end is moved like the start, so that slices nest as before.
        duration = self._readable(min(start + max(duration or 0, 0), _LATEST_NS)) - start
        event.dur = Raw(format_us(duration))
        return duration

    # Metadata.

    def _rewrite_metadata(self, event: Event) -> None:
        for kind in repair_fields(event):
            self._repaired[kind] += 1
        event.pid, event.tid = self._tracks.place_of_metadata(event.pid, event.tid)  # type: ignore[assignment]
        if event.ts is not UNSET:
            # Metadata needs no time; one that cannot be moved would stretch the trace.
            time = self._moved(time_field(event.ts))
            event.ts = UNSET if isinstance(time, str) else Raw(format_us(time))
        self._write(event)

    def _change_frames(self, event: Event) -> None:
        """Change the stack frames that an event names."""
        if self._frames is None:
            self._frames = StackFrames(_table_of_frames(self._item))
        if self._frames:
            (self._frames.rename if self._is_json else self._frames.write_out)(event)

    # Ids.

    def _flow_id(self, raw: Any) -> Raw:
        text = bytes(raw)
        if self._item.ids.namespace < 0 and text.isdigit():
            return Raw(b"%d" % self._other_namespace(int(text)))
        number = -1
        if text.isdigit():
            number = int(text)
        else:
            # Perfetto reads text as a hexadecimal number.
            match = _HEX.fullmatch(text)
            if match:
                number = int(match[1], 16)
        if not 0 <= number < DIRECT_IDS:
            number = self._odd_ids.setdefault(text, DIRECT_IDS + len(self._odd_ids))
        return Raw(b"%d" % (number + self.offset))

    def _async_id(self, event: Event) -> None:
        """Make the id of an async event one of its process: a plain id belongs to all ranks at once."""
        scoped = decode_dict(event.id2)
        value: Any = scoped.get("local", scoped.get("global"))
        if value is None:
            value = decode_or_none(event.id)
        if value is None:
            self._repaired["missing_id"] += 1
            value = "none"
        event.id = UNSET
        if self._namespaces:
            value = self._moved_prefix(str(value))
        # Spaced like in the core, for encoders that go by the text.
        event.id2 = Raw(b'{"local": %b}' % encode_json(f"{self._item.ids.prefix}{value}"))

    def _other_namespace(self, number: int) -> int:
        namespace, own = divmod(number, NAMESPACE)
        return self._namespaces.get(namespace, namespace) * NAMESPACE + own

    def _moved_arg_id(self, match: re.Match[bytes]) -> bytes:
        number = int(match[2])
        if self._namespaces:
            number = self._other_namespace(number)
        elif number < NAMESPACE:
            number += self.offset
        return match[1] + b"%d" % number

    def _moved_prefix(self, value: str) -> str:
        match = _PREFIXED.fullmatch(value)
        namespace, own = (int(match[1]) // NAMESPACE, match[2]) if match else (min(self._namespaces), value)
        moved = self._namespaces.get(namespace, namespace)
        return value if moved == namespace else f"{moved * NAMESPACE}:{own}"

    # Values and arguments.

    def _counter(self, event: Event) -> bool:
        """Keep the values that are numbers; Perfetto's engine loops endlessly on NaN and counts an error for others."""
        if event.args is not UNSET and _PLAIN_COUNTER.fullmatch(event.args):
            return True
        values = {}
        for key, value in decode_dict(event.args).items():
            if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
                values[key] = float(value)
            elif isinstance(value, (int, float)) and abs(value) < 1e300:
                values[key] = int(value) if isinstance(value, bool) else value
            else:
                self._repaired["counter_value_left_out"] += 1
        if not values:
            self._dropped["counter_without_number"] += 1
            return False
        event.args = Raw(encode_json(values))
        return True

    def _limit_args(self, event: Event) -> None:
        args = decode_dict(event.args) if self._args == 1 else {}
        kept = {
            key: value for key, value in args.items() if key in _IDS and type(value) is int and 0 <= value < _MAX_ARG_ID
        }
        event.args = Raw(encode_json(kept)) if kept else UNSET

    def _limit_extra(self, event: Event) -> None:
        extra: dict[str, Raw] = event.extra  # type: ignore[assignment]
        if len(extra) > _MAX_EXTRA_KEYS:
            # Perfetto's engine crashes on an object with a thousand keys that it does not know.
            self._repaired["unknown_keys_left_out"] += 1
            event.extra = dict(list(extra.items())[:_MAX_EXTRA_KEYS])


def _table_of_frames(item: UnitInput) -> Any:
    """Read the table of stack frames, which may follow the events."""
    with TraceReader(item.source.path, limit_bytes=item.source.stamp.limit_bytes) as reader:
        if STACK_FRAMES not in reader.header:
            for _ in reader.runs():
                pass
        return reader.header.get(STACK_FRAMES)


def has_lanes(item: UnitInput) -> bool:
    """Return True for an earlier merge with lanes."""
    return any(lane for known in item.source.processes.values() for _, lane in known.threads.values())


def _pair_labels(item: UnitInput) -> list[int]:
    """Return a label for every ``B`` and ``E`` of a file, in its order; both halves of a slice have the same.

    Those of ranks that are not selected are not counted.
    """
    halves: dict[tuple[object, object], list[tuple[int, int, bool, bytes, bytes]]] = {}
    count = 0
    with TraceReader(item.source.path, limit_bytes=item.source.stamp.limit_bytes) as reader:
        for run in reader.runs():
            for event in run if item.chosen is None else item.chosen.of_ranks(run):
                phase = event.ph[:1] if type(event.ph) is str else ""
                if phase not in ("B", "E"):
                    continue
                time = time_field(event.ts)
                if time is not None:
                    own = time, count, phase == "B", raw_field(event.name), raw_field(event.cat)
                    halves.setdefault((raw_number(event.pid), raw_number(event.tid)), []).append(own)
                count += 1
    labels = [number << 32 | number for number in range(1, count + 1)]  # neither half is 0, which matches anything
    for found in halves.values():
        open_: OpenSlices[int] = OpenSlices(sys.maxsize)
        for _, number, is_begin, *fields in sorted(found):
            name, category = (field if field != b'""' else b"" for field in fields)
            if is_begin:
                open_.begin(name, category, number)
            elif (begun := open_.end(name, category)) is not None:
                labels[number] = labels[begun]
    return labels
