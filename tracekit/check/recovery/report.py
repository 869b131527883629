"""The report on the recovery of a trace, and the slices that were open when it was cut, which show where a process hung."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.decimal_time import format_us
from tracekit.formats.rank_trace import BASE_TIME_KEY, CLOCK_ANCHOR_EVENT, METADATA_EVENT, TIMESTAMP_EVENT
from tracekit.formats.trace_event import (
    UNSET,
    Event,
    decode_dict,
    decode_or_none,
    decode_text,
    duration_of,
    encode_json,
    name_and_category,
    raw_number,
    time_field,
)
from tracekit.structs import Struct, to_builtins
from tracekit.traces.pairs import OpenSlices
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.formats.json.window import LostBytes

# Limits, so that memory stays bounded for any file; Perfetto draws 512 levels.
_KEPT_DEEP: Final = 1024
_KEPT_TRACKS: Final = 100_000

_Key = tuple[int | str | None, int | str | None]
_NAMED: Final = 100

_REPAIRS: Final = {
    "bad_escape": "backslashes that begin no escape",
    "bare_word": "words without quotes",
    "byte_order_mark": "a byte order mark",
    "control_character": "raw control characters",
    "data_after_end": "events after the closing bracket",
    "invalid_utf8": "text that is not UTF-8",
    "lone_surrogate": "halves of surrogate pairs",
    "missing_bracket": "no opening bracket",
    "missing_comma": "missing commas",
    "not_finite": "NaN or Infinity",
    "second_header": "a second header",
    "surrogate_escape": "characters written as two escapes",
    "trailing_comma": "commas too many",
    "unescaped_quote": "quotes that are not escaped",
}


class OpenSlice(Struct, frozen=True):
    """A slice without an end: the process was in it when the file ended, or its end is lost.

    Attributes:
        thread: The name of the thread, empty where it is unknown.
        open_ns: From its begin to the last event of the file (in a rank trace also: to the last reading of the clocks, which
            goes on while a process hangs); None when it has no readable time.
    """

    name: str
    pid: int | str | None
    tid: int | str | None
    thread: str
    open_ns: int | None


class RecoveryReport(Struct, frozen=True):
    """The damage of one file and its recovery.

    Attributes:
        output: The file that was written, or None when ``path`` is whole.
        kept_as: The new name of the input that the output has replaced, or None.
        form: "array" or "object".
        losses: The parts in the middle that could not be read; the first 1000.
        lost_events: The number of events that begin in these parts, a lower bound.
        tail: The unreadable end of the file, None when the last event is complete.
        closed: True if the file has its closing bracket.
        damages: Sentences about data that could not be unpacked.
        repairs: The number of repairs without loss, by kind.
        open_slices: The slices that were open at the end, outermost first on each thread.
        closed_slices: True if an end was written for the open slices.
    """

    path: str
    output: str | None
    kept_as: str | None
    form: str
    compressed: bool
    events: int
    losses: tuple[LostBytes, ...]
    lost_parts: int
    lost_events: int
    lost_bytes: int
    tail: LostBytes | None
    closed: bool
    damages: tuple[str, ...]
    repairs: dict[str, int]
    open_slices: tuple[OpenSlice, ...]
    closed_slices: bool

    @property
    def whole(self) -> bool:
        """True if there was nothing to recover."""
        return self.closed and not (self.lost_parts or self.tail or self.damages or self.repairs)

    @property
    def complete(self) -> bool:
        """True if only the torn end is lost."""
        return not self.lost_parts

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {"status": "whole" if self.whole else "recovered", "complete": self.complete, **to_builtins(self)}

    def lines(self) -> list[str]:
        """Return the report for people."""
        if self.whole:
            return [f"{self.path}: whole, {counted(self.events, 'event')}; nothing to recover", *self._open_lines()]
        lines = [f"{self.path}: {counted(self.events, 'event')} recovered into {self.output}"]
        if self.kept_as:
            lines.append(f"  the damaged file is kept as {self.kept_as}")
        lines += [f"  {damage}" for damage in self.damages]
        if self.lost_parts:
            lines.append(
                f"  lost in the middle: {counted(self.lost_parts, 'part')}, {counted(self.lost_bytes, 'byte')}, "
                + (f"at least {counted(self.lost_events, 'event')}" if self.lost_events else "no event is seen in them")
            )
            lines += [f"    {_part(loss)}" for loss in self.losses[:10]]
            if self.lost_parts > 10:
                lines.append(f"    and {counted(self.lost_parts - 10, 'more part')} (--json lists them)")
        if self.tail:
            lines.append(f"  lost at the end: {_part(self.tail)}")
        if not self.closed:
            lines.append(f"  the {self.form} was not closed; it is now")
        lines += [f"  repaired: {_REPAIRS.get(kind, kind)} ({count})" for kind, count in sorted(self.repairs.items())]
        return [*lines, *self._open_lines()]

    def _open_lines(self) -> list[str]:
        lines = []
        for slice_ in self.open_slices[:_NAMED]:
            where = slice_.thread or f"pid {slice_.pid}, tid {slice_.tid}"
            time = "" if slice_.open_ns is None else f", for {_duration(slice_.open_ns)}"
            lines.append(f"  open at the end: {slice_.name} ({where}){time}")
        if len(self.open_slices) > _NAMED:
            lines.append(f"  and {len(self.open_slices) - _NAMED} more open slices")
        if lines and self.closed_slices:
            lines.append("  these slices end at the time of the last event now")
        return lines


def _part(loss: LostBytes) -> str:
    events = f", at least {counted(loss.events, 'event')}" if loss.events else ""
    return f"{counted(loss.length_bytes, 'byte')} from byte {loss.offset_bytes} on{events}, beginning with {loss.begins[:40]!r}"


def _duration(ns: int) -> str:
    unit, size_ns = ("µs", 1e3) if ns < 1_000_000 else ("ms", 1e6) if ns < 1_000_000_000 else ("s", 1e9)
    return f"{ns / size_ns:.3f} {unit}"


class _Open(NamedTuple):
    name: str
    start_ns: int | None
    place: dict[str, Any]


class CutSlices:
    """Follows the slices of a trace, event by event in the order of the file."""

    def __init__(self) -> None:
        # Of an event, the end of a slice, or the last reading of the clocks in a rank trace.
        self.last_ns: int | None = None
        self._tracks: dict[_Key, OpenSlices[_Open]] = {}
        self._deeper: dict[_Key, int] = {}
        self._threads: dict[_Key, str] = {}
        # The monotonic clock where the times of a rank trace are 0.
        self._monotonic_base_ns: int | None = None

    def add(self, event: Event) -> None:
        """Add the next event."""
        phase = event.ph
        if phase == "M":
            self._take_metadata(event)
            return
        time_ns = time_field(event.ts)
        self._reach(time_ns, duration_of(event) if phase == "X" else 0)
        if phase == "B":
            self._begin(event, time_ns)
        elif phase == "E":
            self._end(event)

    def _reach(self, start_ns: int | None, dur_ns: int = 0) -> None:
        if start_ns is not None and (self.last_ns is None or start_ns + dur_ns > self.last_ns):
            self.last_ns = start_ns + dur_ns

    def _take_metadata(self, event: Event) -> None:
        name, args = decode_text(event.name), decode_dict(event.args)
        if name == "thread_name" and isinstance(args.get("name"), str) and len(self._threads) < _KEPT_TRACKS:
            self._threads[_key(event)] = args["name"]
        elif name == METADATA_EVENT and isinstance(args.get("clock"), dict):
            clock = args["clock"]
            numbers = (args.get(BASE_TIME_KEY), clock.get("wall_ns"), clock.get("monotonic_ns"))
            if all(isinstance(number, int) for number in numbers):
                base_ns, wall_ns, monotonic_ns = numbers
                self._monotonic_base_ns = monotonic_ns - (wall_ns - base_ns)
        elif name == CLOCK_ANCHOR_EVENT and self._monotonic_base_ns is not None:
            # A process that hangs records nothing, but its writer goes on to read the clocks.
            if isinstance(args.get("monotonic_ns"), int):
                self._reach(args["monotonic_ns"] - self._monotonic_base_ns)
        elif name == TIMESTAMP_EVENT:
            self._reach(time_field(event.ts))

    def _begin(self, event: Event, time_ns: int | None) -> None:
        key = _key(event)
        if key not in self._tracks and len(self._tracks) >= _KEPT_TRACKS:
            return
        track = self._tracks.setdefault(key, OpenSlices())
        if len(track) < _KEPT_DEEP:
            name = decode_or_none(event.name)
            begun = _Open(str("" if name is None else name), time_ns, place_of(event))
            track.begin(*name_and_category(event), begun)
        else:
            self._deeper[key] = self._deeper.get(key, 0) + 1

    def _end(self, event: Event) -> None:
        key = _key(event)
        if self._deeper.get(key, 0):
            self._deeper[key] -= 1
        elif key in self._tracks:
            self._tracks[key].end(*name_and_category(event))
            if not len(self._tracks[key]):
                del self._tracks[key]

    def left(self) -> tuple[OpenSlice, ...]:
        """Return the slices that are open, outermost first on each thread."""
        found = []
        for key, track in self._tracks.items():
            for slice_ in track.slices:
                open_ns = None if slice_.start_ns is None or self.last_ns is None else self.last_ns - slice_.start_ns
                found.append(OpenSlice(slice_.name, *key, self._threads.get(key, ""), open_ns))
        return tuple(found)

    def ends(self) -> list[bytes]:
        """Return an E at the time of the last event for each open slice, innermost first."""
        if self.last_ns is None:
            return []
        time = format_us(self.last_ns)
        lines = []
        for track in self._tracks.values():
            for slice_ in reversed(track.slices):
                # An E without a name ends the innermost slice, with any name of its B.
                args = {"end": "assumed by tracekit recover: the time of the last event of the file"}
                lines.append(b'{"ph":"E","ts":%b,%b' % (time, encode_json({**slice_.place, "args": args})[1:]))
        return lines


def place_of(event: Event) -> dict[str, Any]:
    """Return the pid and the tid of an event as the file has them, those that are there."""
    return {key: value for key, value in (("pid", event.pid), ("tid", event.tid)) if value is not UNSET}


def _key(event: Event) -> _Key:
    pid, tid = event.pid, event.tid
    return (
        raw_number(pid) if isinstance(pid, int | str) else None,
        raw_number(tid) if isinstance(tid, int | str) else None,
    )
