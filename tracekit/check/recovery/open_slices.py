"""The slices that were open when a trace was cut: B without E. They show where a process hung."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tracekit.check.recovery.report import OpenSlice
from tracekit.formats.decimal_time import format_us
from tracekit.formats.event_fields import duration_of, name_and_category, raw_number, time_field
from tracekit.formats.rank_trace import BASE_TIME_KEY, CLOCK_ANCHOR_EVENT, METADATA_EVENT, TIMESTAMP_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_dict, decode_or_none, decode_text, encode_json
from tracekit.traces.pairs import OpenSlices as TrackOfSlices

# Limits, so that memory stays bounded for any file; Perfetto draws 512 levels.
_KEPT_DEEP: Final = 1024
_KEPT_TRACKS: Final = 100_000

_Key = tuple[int | str | None, int | str | None]


class _Open(NamedTuple):
    name: str
    start_ns: int | None
    place: dict[str, Any]


class OpenSlices:
    """Follows the slices of a trace, event by event in the order of the file.

    Attributes:
        last_ns: The time of the last event, with the end of a slice, or of the last reading of the clocks in a rank trace;
            in ns since the base of the file, or None.
    """

    def __init__(self) -> None:
        self.last_ns: int | None = None
        self._tracks: dict[_Key, TrackOfSlices[_Open]] = {}
        self._deeper: dict[_Key, int] = {}
        self._threads: dict[_Key, str] = {}
        # The monotonic clock where the times of a rank trace are 0.
        self._monotonic_base_ns: int | None = None

    def add(self, event: Event) -> None:
        """Take the next event."""
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
        track = self._tracks.setdefault(key, TrackOfSlices())
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
