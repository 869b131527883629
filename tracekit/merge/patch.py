"""The step that rewrites a run of events for the merged trace: events and a map in, bytes out.

This is the merge's one inner loop, and the seam where a compiled one can take its place. It keeps what need not change
as the bytes it was, does all arithmetic in integer ns, and leaves out only what no viewer can show, counted.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.event_fields import PHASES, is_usual, raw_number, repair_fields
from tracekit.formats.late_times import exact_time
from tracekit.formats.time_columns import format_all_us, have_three_decimals, times_of
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_json, decode_raw_list, encode_events, encode_json
from tracekit.merge.clocks.warp import warp_durations
from tracekit.merge.ids import NAMESPACE, move_arg_ids
from tracekit.merge.input_scan import EPOCH_NS, NAMED_METADATA
from tracekit.merge.lanes import DROPPED
from tracekit.merge.plain_runs import PLAIN_COUNTER
from tracekit.spill import MAX_ROWS, Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.merge.namespaces import InputMap, Track
    from tracekit.spill import Row

__all__ = ["Lanes", "Patcher"]

_DIRECT_IDS: Final = NAMESPACE // 2
_NO_TIME_LIMIT: Final = -(2**63)
_LATEST_NS: Final = 2**63 - 1
_MAX_EXACT_NS: Final = 2**42 * 1000
"""Up to here a viewer reads every time in JSON to the nanosecond; see `tracekit.formats.late_times`."""
_MAX_EASY_NS: Final = 2**62
"""Up to here a duration of 15 digits in front of the decimal point ends before `_LATEST_NS`."""
_MAX_EXTRA_KEYS: Final = 64
_NAMED: Final = frozenset(f'"{name}"'.encode() for name in NAMED_METADATA)
_SCOPE_PROCESS: Final = Raw(b'"p"')
_QUOTE: Final = ord('"')
_PLAIN_DURATIONS: Final = re.compile(rb"(?:\d{1,15}(?:\.\d{1,3})?(?:\n|\Z))*")
_NUMBER_TEXT: Final = re.compile(r"\s*[+-]?(?:\d{1,18}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,2})?\s*")
_HEX: Final = re.compile(rb'"(?:0[xX])?([0-9a-fA-F]{1,15})"')


class Lanes:
    """The way of the slices of one track, told one after the other in the order of the file."""

    __slots__ = ("_at", "_events", "_index", "_lanes", "_starts", "tid")

    def __init__(self, track: Track) -> None:
        moves = track.moves
        self.tid = track.tid
        self._lanes = track.lanes
        self._index = 0
        self._events = self._rows(track)
        self._starts = Lookup(moves.starts) if moves.starts is not None else None
        self._at = next(self._events, None)

    @staticmethod
    def _rows(track: Track) -> Iterator[Row]:
        events = track.moves.events
        for rows in events.windows(MAX_ROWS) if events is not None else ():
            yield from rows

    def lane(self) -> int:
        """Return where the next slice event goes."""
        index = self._index
        self._index = index + 1
        if self._at is None or self._at[0] != index:
            return self.tid
        lane = self._at[1]
        self._at = next(self._events, None)
        return self._lanes[lane]

    def stay(self, count: int) -> bool:
        """Tell whether none of the next slice events leaves the track."""
        return self._at is None or self._at[0] >= self._index + count

    def skip(self, count: int) -> None:
        """Pass by slice events that stay."""
        self._index += count

    def lane_at(self, time: int) -> int:
        """Return where the slice that begins at a time goes, for what is tied to it."""
        lane = self._starts.get(time, 0) if self._starts is not None else 0
        return self._lanes[lane] if lane else self.tid


class _Spelled(dict[Any, Any]):
    """A dictionary by ``pid`` or ``tid`` that finds every spelling of one."""

    def __missing__(self, raw: Any) -> Any:
        number = raw_number(raw)
        if number not in self:
            raise KeyError(raw)
        found = self[raw] = self[number]
        return found


class Patcher:
    """Rewrites the events of one input, run by run, in the order of the file.

    Attributes:
        written: How many events were written, by phase.
        dropped: How many were left out, by reason.
        repaired: How many were changed so that viewers take them, by kind.
        shift_ns: What is added to times.
        least_ns: The earliest time that has a place in the merged trace, in the file's time.
        most_ns: The latest time in the merged trace that needs no look.
        offset: What is added to ids.
        moves_arg_ids: Whether it is also added to ids in ``args``.

    Args:
        target: Where everything goes.
        id_args: Whether ``correlation`` and ``External id`` in ``args`` tie events together, as in Kineto's traces.
        epoch_only: Whether a time that does not count from the epoch is none: the rule for files without a base.
        exact_times: Whether times are moved, by a few ns at most, to those that viewers read exactly from JSON.
        name_frames: What changes the stack frames that an event that is written names, in place; None where nothing does.
    """

    def __init__(
        self,
        target: InputMap,
        *,
        id_args: bool,
        epoch_only: bool,
        exact_times: bool = True,
        name_frames: Callable[[Event], None] | None = None,
    ) -> None:
        self.written: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self._processes: dict[Any, tuple[int, dict[Any, int | Lanes]]] = _Spelled()
        followed: dict[int, Lanes] = {}  # several spellings of an id share one track
        for raw, (pid, tids) in target.processes.items():
            self._processes[raw] = (
                pid,
                _Spelled(
                    (key, tid if isinstance(tid, int) else followed.setdefault(id(tid), Lanes(tid)))
                    for key, tid in tids.items()
                ),
            )
        self.shift_ns = target.shift_ns
        self._warp = target.warp
        self.least_ns = max(-target.shift_ns, EPOCH_NS if epoch_only else _NO_TIME_LIMIT)
        self.most_ns = _MAX_EXACT_NS if exact_times else _MAX_EASY_NS
        self._exact_times = exact_times
        self.offset = target.number * NAMESPACE
        self._shared = target.shared
        self.moves_arg_ids = id_args and target.number > 0
        self._odd_ids: dict[bytes, int] = {}
        self._name_frames = name_frames

    def place(self, pid: Any, tid: Any) -> tuple[int, int | Lanes] | None:
        """Return where a track goes, None when that is not known."""
        try:
            new_pid, tids = self._processes[pid]
            return new_pid, tids[tid]
        except KeyError:
            return None

    def patch(self, run: list[Event], judge: Callable[[list[Event]], list[str]] | None = None) -> bytes:
        """Return the events of a run as they go into the merged trace: JSON objects with ``,`` between them.

        The events of ``run`` are changed in place.

        Args:
            run: The events.
            judge: Called with those that are not metadata; it returns for each why it is left out, or nothing.
        """
        out: list[Event] = []
        append = out.append
        phases = [event.ph for event in run]
        if "M" in phases:
            for event in run:
                if event.ph == "M" and self._metadata(event):
                    append(event)
            run = [event for event in run if event.ph != "M"]
        processes, other, dropped = self._processes, self._other, self.dropped
        times = times_of(run)
        if self._warp is not None:
            warp_durations(run, times, self._warp)
        new_times, easy = self._move_times(run, times)
        plain = easy and self._plain_durations(run)
        if judge is not None:
            new_times = [why or moved for why, moved in zip(judge(run), new_times, strict=True)]
        for event, time, moved in zip(run, times, new_times, strict=True):
            if event.ph != "X":
                if other(event, time, moved):
                    append(event)
                continue
            pid, tids = processes[event.pid]
            tid = tids[event.tid]
            event.pid = pid
            # Counts the slice events of the track, so before anything is left out.
            event.tid = tid if isinstance(tid, int) else tid.lane()
            if type(moved) is str:
                dropped[moved] += 1
                continue
            event.ts = moved  # type: ignore[assignment]
            if not plain:
                self._repair_duration(event, time)
            if event.bind_id is not UNSET:
                event.bind_id = self._flow_id(event.bind_id)
            if event.extra is not UNSET:
                self._limit_extra(event)
            if not is_usual(event):
                self.repaired.update(repair_fields(event))
            append(event)
        phases = [event.ph for event in out]
        for phase in set(phases):
            self.written[phase] += phases.count(phase)  # type: ignore[index]
        if self._name_frames is not None:
            for event in out:
                self._name_frames(event)
        text = encode_events(out)
        return move_arg_ids(text, self.offset) if self.moves_arg_ids else text

    def _other(self, event: Event, time: int | None, moved: Raw | str) -> bool:
        """Rewrite an event that is neither ``X`` nor ``M``; returns whether it is written."""
        phase = event.ph
        if type(phase) is not str or not phase:
            self.dropped["empty_event" if event.name is UNSET and event.args is UNSET else "no_phase"] += 1
            return False
        if len(phase) > 1:
            # Perfetto goes by the first letter.
            self.repaired["long_phase"] += 1
            phase = event.ph = phase[0]
        if phase not in PHASES:
            self.dropped["unknown_phase"] += 1
            return False
        if event.extra is not UNSET:
            self._limit_extra(event)
        pid, tids = self._processes[event.pid]
        track = tids[event.tid]
        event.pid = pid
        if isinstance(track, int):
            event.tid = track
        elif phase in "XBE":
            event.tid = track.lane()
        else:
            # A flow goes with the slice that it begins or ends at.
            event.tid = track.lane_at(time) if phase in "stf" and time is not None else track.tid
        if type(moved) is str:
            self.dropped[moved] += 1
            return False
        event.ts = moved  # type: ignore[assignment]
        if event.tid == DROPPED:
            self.dropped["end_without_begin"] += 1
            return False
        if not is_usual(event):
            self.repaired.update(repair_fields(event))
        if event.bind_id is not UNSET:
            event.bind_id = self._flow_id(event.bind_id)
        if phase in "stf":
            if event.id is UNSET:
                self.dropped["flow_without_id"] += 1
                return False
            event.id = self._flow_id(event.id)
        elif phase in "ben":
            self._async_id(event)
        elif phase == "C":
            return self._counter(event)
        elif phase == "X":
            self._repair_duration(event, time)
        elif phase in "iIR" and event.s is not UNSET and bytes(event.s) == b'"g"':
            # A global instant stands on one track of the whole trace, without its rank.
            event.s = _SCOPE_PROCESS
        return True

    def _move_times(self, run: list[Event], times: list[int | None]) -> tuple[list[Raw | str], bool]:
        """Return for every event its time in the merged trace, or (as ``str``) why it has none; and whether none is late."""
        shift, warp = self.shift_ns, self._warp
        if warp is not None:
            times = [None if time is None else time + warp.offset_at(time) for time in times]
        if None not in times and (
            not times or (min(times) >= self.least_ns and max(times) + shift <= self.most_ns)  # type: ignore[type-var, operator]
        ):
            if shift or warp is not None or not have_three_decimals(encode_json([event.ts for event in run])):
                self._count_text_times(run)
                return decode_raw_list(format_all_us([time + shift for time in times])), True  # type: ignore[operator, return-value]
            return [event.ts for event in run], True  # type: ignore[misc]
        moved: list[Raw | str] = []
        for time in times:
            if time is None:
                moved.append("no_time")
            elif not self._has_place(time):
                moved.append("time_out_of_range")
            else:
                moved.append(Raw(format_us(self._readable(time + shift))))
        self._count_text_times([event for event, text in zip(run, moved, strict=True) if type(text) is not str])
        return moved, False

    def _has_place(self, time: int) -> bool:
        return self.least_ns <= time <= _LATEST_NS - self.shift_ns

    def _readable(self, time_ns: int) -> int:
        """Return a time of the merged trace, or the one before it that a viewer reads as it is written."""
        return exact_time(time_ns) if self._exact_times and time_ns > _MAX_EXACT_NS else time_ns

    def _count_text_times(self, run: list[Event]) -> None:
        count = b"\n".join([event.ts for event in run]).count(b'"')  # type: ignore[misc]
        if count:
            self.repaired["text_time"] += count // 2

    @staticmethod
    def _plain_durations(run: list[Event]) -> bool:
        """Tell whether all durations are numbers with up to three decimals, so that none needs a look."""
        try:
            text = b"\n".join([event.dur for event in run if event.ph == "X"])  # type: ignore[misc]
        except TypeError:
            return False
        return _PLAIN_DURATIONS.fullmatch(text) is not None

    def _repair_duration(self, event: Event, time: int | None) -> None:
        raw = event.dur
        start = 0 if time is None else time + self.shift_ns
        if raw is not UNSET and _PLAIN_DURATIONS.fullmatch(raw) and start <= self.most_ns:
            return
        duration = None if raw is UNSET else parse_us(bytes(raw))
        if raw is UNSET:
            self.repaired["missing_dur"] += 1
        elif duration is None or duration < 0:
            self.repaired["bad_dur"] += 1
        elif bytes(raw)[0] == _QUOTE:
            self.repaired["text_time"] += 1
        if duration and start + duration > _LATEST_NS:
            self.repaired["bad_dur"] += 1
        # The end is moved like the start, so that what nests and what does not overlap stays so.
        end = self._readable(min(start + max(duration or 0, 0), _LATEST_NS))
        event.dur = Raw(format_us(end - self._readable(start)))

    def _metadata(self, event: Event) -> bool:
        try:
            pid, _ = self._processes[event.pid]
        except KeyError:
            self.dropped["unused_process"] += 1
            return False
        if event.name is UNSET or bytes(event.name) in _NAMED:
            self.dropped["rewritten_metadata"] += 1
            return False
        if not is_usual(event):
            self.repaired.update(repair_fields(event))
        found = self.place(event.pid, event.tid)
        tid = pid if found is None else found[1]
        event.pid, event.tid = pid, tid if isinstance(tid, int) else tid.tid
        if event.ts is not UNSET:
            # Metadata needs no time; one that cannot be moved would stretch the trace.
            time = parse_us(bytes(event.ts))
            if time is not None and self._warp is not None:
                time += self._warp.offset_at(time)
            usable = time is not None and self._has_place(time)
            event.ts = Raw(format_us(self._readable(time + self.shift_ns))) if usable else UNSET  # type: ignore[operator]
        return True

    def _flow_id(self, raw: Any) -> Raw:
        text = bytes(raw)
        number = -1
        if text.isdigit():
            number = int(text)
        else:
            # Perfetto reads text as a hexadecimal number.
            match = _HEX.fullmatch(text)
            if match:
                number = int(match[1], 16)
        if not 0 <= number < _DIRECT_IDS:
            number = self._odd_ids.setdefault(text, _DIRECT_IDS + len(self._odd_ids))
        return Raw(b"%d" % (number + self.offset))

    def _async_id(self, event: Event) -> None:
        """Make the id of an async event one of its process: a plain id belongs to all ranks at once."""
        value: Any = None
        if event.id2 is not UNSET:
            found = _decoded(event.id2)
            if isinstance(found, dict):
                value = found.get("local", found.get("global"))
        if value is None and event.id is not UNSET:
            value = _decoded(event.id)
        if value is None:
            self.repaired["missing_id"] += 1
            value = "none"
        event.id = UNSET
        event.id2 = Raw(encode_json({"local": f"{self.offset}:{value}" if self._shared else str(value)}))

    def _counter(self, event: Event) -> bool:
        """Keep the values that are numbers; Perfetto's engine loops for ever on NaN and counts an error for others."""
        if event.args is not UNSET and PLAIN_COUNTER.fullmatch(event.args):
            return True
        args = None if event.args is UNSET else _decoded(event.args)
        values = {}
        for key, value in args.items() if isinstance(args, dict) else ():
            if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
                values[key] = float(value)
            elif isinstance(value, (int, float)) and abs(value) < 1e300:
                values[key] = int(value) if isinstance(value, bool) else value
            else:
                self.repaired["counter_value_left_out"] += 1
        if not values:
            self.dropped["counter_without_number"] += 1
            return False
        event.args = Raw(encode_json(values))
        return True

    def _limit_extra(self, event: Event) -> None:
        extra: dict[str, Raw] = event.extra  # type: ignore[assignment]
        if len(extra) > _MAX_EXTRA_KEYS:
            # Perfetto's engine crashes on an object with a thousand keys that it does not know.
            self.repaired["unknown_keys_left_out"] += 1
            event.extra = dict(list(extra.items())[:_MAX_EXTRA_KEYS])


def _decoded(raw: Any) -> Any:
    try:
        return decode_json(raw)
    except ValueError:
        return None
