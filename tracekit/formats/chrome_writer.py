"""Records to Chrome JSON: the encoder of the rank trace (see `tracekit.formats.rank_trace` for its form).

This is the writing half of a seam: a batch of fixed-width records in, bytes out. Integers are cheap to print and floats are
not, so times are split into microseconds and three digits of nanoseconds, and everything around them is made once for each
label and track.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from tracekit.events import BEGIN, COUNTER, END, INSTANT, WIDTH
from tracekit.formats.late_times import exact_records
from tracekit.formats.rank_trace import TIMESTAMP_EVENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.events import EventBatch
    from tracekit.timestamp import Timestamp

__all__ = ["ChromeEncoder", "encode_value"]

_PHASE = {BEGIN: b"B", END: b"E", INSTANT: b"i", COUNTER: b"C"}
_MAX_DEPTH = 32
_MAX_TEXT = 8192


class ChromeEncoder:
    """Encodes the events of one process, each as one line that ends with a comma and a newline.

    Args:
        pid: The process.
        base_ns: What ``ts`` is relative to, ns since the epoch.
    """

    __slots__ = ("_base_ns", "_heads", "_last_timestamp_ns", "_named_tracks", "_pid")

    def __init__(self, pid: int, base_ns: int) -> None:
        self._pid = pid
        self._base_ns = base_ns
        self.restart()

    def restart(self) -> None:
        """Begin a new file: names of threads and the training time are written again."""
        self._heads: dict[tuple[int, int, int], bytes] = {}  # (kind, label, track): the line up to ts
        self._named_tracks = 1  # track 0 is none
        self._last_timestamp_ns = -1

    def metadata(self, name: str, args: Mapping[str, Any], *, tid: int | None = None) -> bytes:
        """Encode a metadata event (``ph`` M)."""
        return b'{"ph":"M","name":%b,"pid":%d,"tid":%d,"args":%b},\n' % (
            encode_value(name),
            self._pid,
            self._pid if tid is None else tid,
            encode_value(args),
        )

    def encode(self, batch: EventBatch) -> bytes:
        """Encode a batch: names of new tracks first, then changes of the training time, then its events."""
        records = exact_records(batch.records, batch.offset_ns - self._base_ns, batch.cut_ns)
        lines: list[bytes] = []
        append = lines.append
        self._name_tracks(batch, append)
        if not records:
            return b"".join(lines)
        shift = batch.offset_ns - self._base_ns
        at = batch.timestamps.at
        since = changes = batch.timestamps.since(min(records[1::WIDTH]))
        for time_ns, timestamp in changes:
            if time_ns > self._last_timestamp_ns:
                self._last_timestamp_ns = time_ns
                append(self._timestamp(timestamp, max(time_ns, since[0][0], 0) + shift))
        # Most records of a batch lie in one or two training times: `low` .. `high` is the span of the last one looked up.
        # A line's template holds all of it but its times; it is made once for each kind, label and track in a span.
        low, high, timestamp = 0, -1, since[0][1]
        spans: dict[int, dict[tuple[int, int, int], bytes]] = {}
        templates: dict[tuple[int, int, int], bytes] = {}
        items = iter(records)
        for label, time_ns, kind, what in zip(items, items, items, items, strict=True):
            if not low <= time_ns < high:
                low, high, timestamp = _span(changes, time_ns, at)
                templates = spans.setdefault(low, {})
            start_ns = time_ns + shift
            if kind >= 0:
                key = (0, label, what)
                template = templates.get(key)
                if template is None:
                    template = templates[key] = self._template(*key, timestamp, batch)
                duration_ns = kind - time_ns
                append(template % (start_ns // 1000, start_ns % 1000, duration_ns // 1000, duration_ns % 1000))
            elif kind == COUNTER:
                head = self._head(COUNTER, label, 0, batch)
                append(b'%b%d.%03d,"args":%b},\n' % (head, start_ns // 1000, start_ns % 1000, encode_value(what)))
            else:
                key = (kind, label, what)
                template = templates.get(key)
                if template is None:
                    template = templates[key] = self._template(*key, timestamp, batch)
                append(template % (start_ns // 1000, start_ns % 1000))
        return b"".join(lines)

    def _name_tracks(self, batch: EventBatch, append: Any) -> None:
        tracks = batch.tracks
        while self._named_tracks < len(tracks):
            track = tracks[self._named_tracks]
            self._named_tracks += 1
            append(self.metadata("thread_name", {"name": track.name}, tid=track.tid))
            append(self.metadata("thread_sort_index", {"sort_index": track.sort_index}, tid=track.tid))

    def _timestamp(self, timestamp: Timestamp, shifted_ns: int) -> bytes:
        line = self.metadata(TIMESTAMP_EVENT, timestamp.state_dict())
        return b'%b"ts":%d.%03d,%b' % (line[:1], *divmod(max(shifted_ns, 0), 1000), line[1:])

    def _template(self, kind: int, label: int, track: int, timestamp: Timestamp, batch: EventBatch) -> bytes:
        """Make a whole line, with places for the times."""
        described = batch.labels[label]
        args = {"epoch": int(timestamp.epoch), "batch": int(timestamp.batch), **described.args}
        head = self._head(kind, label, track, batch).replace(b"%", b"%%")
        tail = encode_value(args).replace(b"%", b"%%")
        duration = b"" if kind else b',"dur":%d.%03d'
        return head + b"%d.%03d" + duration + b',"args":' + tail + b"},\n"

    def _head(self, kind: int, label: int, track: int, batch: EventBatch) -> bytes:
        """Return a line up to its ``ts``."""
        key = (kind, label, track)
        head = self._heads.get(key)
        if head is None:
            described = batch.labels[label]
            head = self._heads[key] = b'{"ph":"%b","name":%b,"cat":%b,%b"pid":%d,"tid":%d,"ts":' % (
                _PHASE.get(kind, b"X"),
                encode_value(described.name),
                encode_value(",".join(described.categories)),
                b'"s":"t",' if kind == INSTANT else b"",
                self._pid,
                self._pid if kind == COUNTER else batch.tracks[track].tid,
            )
        return head


def _span(changes: list[tuple[int, Timestamp]], time_ns: int, at: Any) -> tuple[int, int, Timestamp]:
    """Return from when until when the training time at ``time_ns`` was current, and that training time."""
    low, high, timestamp = 0, 1 << 63, at(time_ns)
    for start_ns, _ in changes:
        if start_ns <= time_ns:
            low = start_ns
        else:
            high = start_ns
            break
    return low, high, timestamp


def encode_value(value: Any) -> bytes:
    """Encode any value as JSON that every reader of traces accepts. Never raises.

    Text keeps its characters as UTF-8 (Perfetto refuses escaped surrogate pairs); lone surrogates become U+FFFD. What JSON
    or readers do not take becomes text: NaN and infinities, integers beyond 64 bits, objects; what is nested too deeply or too
    long is cut.
    """
    try:
        encoded = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(_plain(value, 0))
    # orjson writes null for NaN and infinities, silently.
    return orjson.dumps(_plain(value, 0)) if b"null" in encoded else encoded


def _plain(value: Any, depth: int) -> Any:
    """Return ``value`` made of what `encode_value` promises."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(int(value))
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0 else str(value)
    if isinstance(value, str):
        # Through UTF-16, so that a pair of surrogates becomes the character it stands for.
        text = str.encode(value, "utf-16", "surrogatepass").decode("utf-16", "replace")
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    if depth >= _MAX_DEPTH:
        return "…"
    try:
        if isinstance(value, dict):
            return {_plain(str(key), 0): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, depth + 1) for item in value]
        return _plain(repr(value), 0)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ or __iter__ may do anything
        return f"<{type(value).__name__}: {type(error).__name__}>"
