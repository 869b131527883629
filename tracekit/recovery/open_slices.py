"""The slices that were open when a trace was cut: B without E. In a trace of a process that hung, they are the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.event_fields import raw_number
from tracekit.formats.rank_trace import BASE_TIME_KEY, CLOCK_ANCHOR_EVENT, METADATA_EVENT, TIMESTAMP_EVENT
from tracekit.formats.trace_event import decode_json, encode_json
from tracekit.recovery.report import OpenSlice

if TYPE_CHECKING:
    from tracekit.formats.fragments import Fragment

__all__ = ["OpenSlices", "decoded"]

# More is not kept, so that memory stays bounded whatever is in the file; Perfetto draws 512 levels.
_KEPT_DEEP: Final = 1024
_KEPT_TRACKS: Final = 100_000

_Key = tuple[int | str | None, int | str | None]


@dataclass(slots=True)
class _Open:
    name: Any  # with a character for each byte, as an E has it
    category: Any
    start_ns: int | None
    fields: dict[str, Any]


class OpenSlices:
    """Follows the slices of a trace, event by event in the order of the file.

    An E ends the innermost B that its name and category fit, as in Perfetto (slice_tracker.cc).

    Attributes:
        last_ns: The time of the last event, with the end of a slice, or of the last reading of the clocks in a rank trace;
            in ns since the base of the file, or None.
    """

    def __init__(self) -> None:
        self.last_ns: int | None = None
        self._tracks: dict[_Key, list[_Open]] = {}
        self._deeper: dict[_Key, int] = {}
        self._threads: dict[_Key, str] = {}
        # The monotonic clock where the times of a rank trace are 0.
        self._monotonic_base_ns: int | None = None

    def add(self, fragment: Fragment) -> None:
        """Take the next event."""
        fields = fragment.fields
        phase = fields.get("ph")
        if phase == "M":
            self._take_metadata(fragment)
            return
        time_ns = _ns(fields.get("ts"))
        end_ns = time_ns
        if phase == "X" and time_ns is not None:
            end_ns = time_ns + max(_ns(fields.get("dur")) or 0, 0)
        self._reach(end_ns)
        if phase == "B":
            self._begin(fragment, time_ns)
        elif phase == "E":
            self._end(fields)

    def _reach(self, time_ns: int | None) -> None:
        if time_ns is not None and (self.last_ns is None or time_ns > self.last_ns):
            self.last_ns = time_ns

    def _take_metadata(self, fragment: Fragment) -> None:
        fields = fragment.fields
        name, args = fields.get("name"), fields.get("args")
        if not isinstance(args, dict):
            return
        if name == "thread_name" and len(self._threads) < _KEPT_TRACKS:
            args = decoded(fragment).get("args")
            if isinstance(args, dict) and isinstance(args.get("name"), str):
                self._threads[_key(fields)] = args["name"]
        elif name == METADATA_EVENT:
            clock = args.get("clock")
            numbers = (args.get(BASE_TIME_KEY), *(_readings(clock) if isinstance(clock, dict) else (None, None)))
            if all(isinstance(number, int) for number in numbers):
                base_ns, wall_ns, monotonic_ns = numbers
                self._monotonic_base_ns = monotonic_ns - (wall_ns - base_ns)
        elif name == CLOCK_ANCHOR_EVENT and self._monotonic_base_ns is not None:
            # A process that hangs records nothing, but its writer goes on to read the clocks.
            monotonic_ns = _readings(args)[1]
            if isinstance(monotonic_ns, int):
                self._reach(monotonic_ns - self._monotonic_base_ns)
        elif name == TIMESTAMP_EVENT:
            self._reach(_ns(fields.get("ts")))

    def _begin(self, fragment: Fragment, time_ns: int | None) -> None:
        key = _key(fragment.fields)
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= _KEPT_TRACKS:
                return
            track = self._tracks[key] = []
        if len(track) < _KEPT_DEEP:
            fields = fragment.fields
            track.append(_Open(fields.get("name"), fields.get("cat"), time_ns, decoded(fragment)))
        else:
            self._deeper[key] = self._deeper.get(key, 0) + 1

    def _end(self, fields: dict[str, Any]) -> None:
        key = _key(fields)
        if self._deeper.get(key, 0):
            self._deeper[key] -= 1
            return
        track = self._tracks.get(key)
        if not track:
            return
        name, category = fields.get("name"), fields.get("cat")
        for at in range(len(track) - 1, -1, -1):
            if name in (None, track[at].name) and category in (None, track[at].category):
                del track[at]
                break
        if not track:
            del self._tracks[key]

    def left(self) -> tuple[OpenSlice, ...]:
        """Return the slices that are open, outermost first on each thread."""
        found = []
        for key, track in self._tracks.items():
            for slice_ in track:
                open_ns = None if slice_.start_ns is None or self.last_ns is None else self.last_ns - slice_.start_ns
                name = slice_.fields.get("name")
                found.append(OpenSlice(str("" if name is None else name), *key, self._threads.get(key, ""), open_ns))
        return tuple(found)

    def ends(self) -> list[bytes]:
        """Return an E at the time of the last event for each open slice, innermost first."""
        if self.last_ns is None:
            return []
        time = format_us(self.last_ns)
        lines = []
        for track in self._tracks.values():
            for slice_ in reversed(track):
                # Without a name, an E ends the innermost slice, however the name of its B is written.
                fields: dict[str, Any] = {key: slice_.fields[key] for key in ("pid", "tid") if key in slice_.fields}
                fields["args"] = {"end": "assumed by tracekit recover: the time of the last event of the file"}
                lines.append(b'{"ph":"E","ts":%b,%b' % (time, encode_json(fields)[1:]))
        return lines


def _readings(anchor: dict[str, Any]) -> tuple[Any, Any]:
    return anchor.get("wall_ns"), anchor.get("monotonic_ns")


def _key(fields: dict[str, Any]) -> _Key:
    pid, tid = fields.get("pid"), fields.get("tid")
    return (
        raw_number(pid) if isinstance(pid, int | str) else None,
        raw_number(tid) if isinstance(tid, int | str) else None,
    )


def _ns(value: Any) -> int | None:
    if isinstance(value, str):
        return parse_us(value.encode("utf-8", "replace"))
    return value * 1000 if isinstance(value, int) else None


def decoded(fragment: Fragment) -> dict[str, Any]:
    """Return the event with its text as text; `Fragment.fields` has a character for each byte."""
    try:
        fields = decode_json(fragment.text)
    except ValueError:
        return fragment.fields
    return fields if isinstance(fields, dict) else fragment.fields
