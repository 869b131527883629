"""ChromeEncoder: encodes records as Chrome JSON for the rank trace (see `tracekit.formats.rank_trace` for the form).

The input is a batch of fixed-width records, the output is bytes. The compiled core replaces
`ChromeEncoder._encode_records`, and releases the GIL during the work.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import orjson

from tracekit import core
from tracekit.events import BEGIN, COUNTER, END, INSTANT, WIDTH, earliest
from tracekit.formats.decimal_time import EXACT_NS, EXACT_SPANS_NS, exact_time
from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.rank_trace import TIMESTAMP_EVENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.events import EventBatch, Label
    from tracekit.timestamp import Timestamp

_PHASE = {BEGIN: b"B", END: b"E", INSTANT: b"i", COUNTER: b"C"}
_DECIMALS = [b"%03d" % number for number in range(1000)]  # "%03d" takes ten times as long as "%b"
_MOMENT_ARGS = ("epoch", "batch")
_MAX_DEPTH = 32
_MAX_TEXT = 8192


class ChromeEncoder:
    """Encodes the events of one process, each as one line that ends with a comma and a newline.

    Args:
        base_ns: The base of every ``ts``, in ns since the epoch.
    """

    __slots__ = ("_base_ns", "_compiled", "_last_timestamp_ns", "_named_tracks", "_pid", "_templates")

    def __init__(self, pid: int, base_ns: int) -> None:
        self._pid = pid
        self._base_ns = base_ns
        self._compiled = _compiled_encoder(pid)
        self.restart()

    def restart(self) -> None:
        """Begin a new file: write the names of threads and the training time again."""
        self._templates: dict[tuple[int, int, int], bytes] = {}  # of a line, by kind, label and track
        self._named_tracks = 1  # track 0 means "no track"
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
        records = _exact_records(batch.records, batch.offset_ns - self._base_ns, batch.cut_ns)
        lines: list[bytes] = []
        new_tracks = batch.tracks[self._named_tracks :]  # the recorder may add more meanwhile
        self._named_tracks += len(new_tracks)
        for track in new_tracks:
            if not track.async_id:  # viewers name a track that is not a thread after its slices
                lines.append(self.metadata("thread_name", {"name": track.name}, tid=track.tid))
                lines.append(self.metadata("thread_sort_index", {"sort_index": track.sort_index}, tid=track.tid))
        if not records:
            return b"".join(lines)
        shift = batch.offset_ns - self._base_ns
        since = batch.timestamps.since(earliest(records))
        for time_ns, timestamp in since:
            if time_ns > self._last_timestamp_ns:
                self._last_timestamp_ns = time_ns
                lines.append(self._timestamp(timestamp, max(time_ns, since[0][0], 0) + shift))
        spans = _Spans(since)
        encoded = None if self._compiled is None else self._compiled.encode(records, batch, shift, spans)
        if encoded is None:
            encoded = self._encode_records(records, batch, shift, spans)
        return b"".join([*lines, encoded])

    def _encode_records(self, records: Sequence[Any], batch: EventBatch, shift: int, spans: _Spans) -> bytes:
        lines: list[bytes] = []
        templates, decimals = self._templates, _DECIMALS
        low = high = 0
        items = iter(records)
        for label, time_ns, kind, what in zip(items, items, items, items, strict=True):
            if not low <= time_ns < high:
                low, high, moment = spans.find(time_ns)
            key: tuple[int, int, int] = (0, label, what) if kind >= 0 else (kind, label, 0 if kind == COUNTER else what)
            template = templates.get(key) or self._make_template(*key, batch)
            ns = time_ns + shift
            if kind >= 0:
                spent = kind - time_ns
                lines.append(
                    template % (ns // 1000, decimals[ns % 1000], spent // 1000, decimals[spent % 1000], moment)
                )
            else:
                value = encode_value(what) if kind == COUNTER else moment
                lines.append(template % (ns // 1000, decimals[ns % 1000], value))
        return b"".join(lines)

    def _timestamp(self, timestamp: Timestamp, shifted_ns: int) -> bytes:
        line = self.metadata(TIMESTAMP_EVENT, timestamp.state_dict())
        # The time is where a merge writes it.
        return line.replace(b'"args":', b'"ts":%d.%03d,"args":' % divmod(max(shifted_ns, 0), 1000), 1)

    def _make_template(self, kind: int, label: int, track: int, batch: EventBatch) -> bytes:
        """Keep and return a template of a line, for its times and the training time, or for the values of a counter."""
        described = batch.labels[label]
        async_id = 0 if kind == COUNTER else batch.tracks[track].async_id
        phase = _PHASE.get(kind, b"X")
        head = b'{"ph":"%b","name":%b,"cat":%b,%b"pid":%d,"tid":%d,"ts":' % (
            phase.lower() if async_id else phase,
            encode_value(described.name),
            encode_value(",".join(described.categories)),
            b'"s":"t",' if kind == INSTANT else _async_id(async_id) if async_id else b"",
            self._pid,
            self._pid if kind == COUNTER else batch.tracks[track].tid,
        )
        times = b"%d.%b" if kind < 0 else b'%d.%b,"dur":%d.%b'
        args = b"%b" if kind == COUNTER else b"{%b" + _own_arguments(described).replace(b"%", b"%%")
        template = b'%b%b,"args":%b},\n' % (head.replace(b"%", b"%%"), times, args)
        self._templates[kind, label, track] = template
        return template


def _exact_records(records: Sequence[Any], shift_ns: int, newest_ns: int) -> Sequence[Any]:
    """Return records with times that a viewer reads exactly; ``newest_ns`` is their upper limit, or 0 if unknown."""
    if not records:
        return records
    newest_ns = (newest_ns or max(map(max, (records[1::WIDTH], records[2::WIDTH])))) + shift_ns
    if newest_ns < EXACT_SPANS_NS[0][1]:
        return records
    if newest_ns < EXACT_NS and min(records[1::WIDTH]) + shift_ns >= EXACT_SPANS_NS[1][0]:
        return records
    moved = list(records)
    moved[1::WIDTH] = [exact_time(time + shift_ns) - shift_ns for time in records[1::WIDTH]]
    # The end of a slice, or the kind of another event, which is below 0.
    moved[2::WIDTH] = [exact_time(time + shift_ns) - shift_ns if time >= 0 else time for time in records[2::WIDTH]]
    return moved


class _CompiledEncoder:
    """Encodes records with the compiled core, after passing it the new labels and tracks."""

    __slots__ = ("_encoder", "_labels", "_make_records", "_pid", "_tracks")

    def __init__(self, compiled: Any, pid: int) -> None:
        self._pid = pid
        self._make_records = compiled.Records
        self._encoder = compiled.Encoder(pid)
        self._labels = self._tracks = 0  # number of labels and tracks passed to the core

    def __reduce__(self) -> tuple[Any, ...]:
        return _compiled_encoder, (self._pid,)

    def encode(self, records: Sequence[Any], batch: EventBatch, shift: int, spans: _Spans) -> bytes | None:
        """Return the lines of some records, or None if the core rejects a value and Python must encode them."""
        try:
            if not isinstance(records, self._make_records):
                records = self._make_records(records)
            while self._labels < len(batch.labels):
                label = batch.labels[self._labels]
                categories = encode_value(",".join(label.categories))
                named = b'%b,"cat":%b,' % (encode_value(label.name), categories)
                self._encoder.add_label(named, _own_arguments(label) + b"},\n")
                self._labels += 1
            while self._tracks < len(batch.tracks):
                track = batch.tracks[self._tracks]
                self._encoder.add_track(track.tid)
                if track.async_id:
                    self._encoder.make_async(_async_id(track.async_id))
                self._tracks += 1
            times, moments = tuple(spans.changes), tuple(spans.moments)
            lines: bytes | None = self._encoder.encode(records, shift, times, moments, orjson.dumps, encode_value)
        except (TypeError, ValueError, OverflowError):  # numbers beyond 64 bits, and records made by a user's handler
            return None
        return lines


def _compiled_encoder(pid: int) -> _CompiledEncoder | None:
    return None if core.record is None else _CompiledEncoder(core.record, pid)


class _Spans:
    """The training times of a batch: the start of each, and its text in the arguments of an event."""

    __slots__ = ("changes", "moments")

    def __init__(self, changes: list[tuple[int, Timestamp]]) -> None:
        self.changes = [time_ns for time_ns, _ in changes]
        self.moments = [b'"epoch":%d,"batch":%d' % (int(moment.epoch), int(moment.batch)) for _, moment in changes]

    def find(self, time_ns: int) -> tuple[int, int, bytes]:
        """Return the training time that was current at a time, with its start and its end."""
        at = max(bisect_right(self.changes, time_ns) - 1, 0)
        end_ns = self.changes[at + 1] if at + 1 < len(self.changes) else 1 << 63
        return self.changes[at] if at else 0, end_ns, self.moments[at]


def _async_id(number: int) -> bytes:
    return b'"id2":{"local":"0x%x"},' % number  # an id of this process: Perfetto reads "id" as an id of the whole trace


def _own_arguments(label: Label) -> bytes:
    """Return the JSON of a label's arguments that follows the training time in every event."""
    own = {name: value for name, value in label.args.items() if name not in _MOMENT_ARGS}
    return b"," + encode_value(own)[1:] if own else b"}"


def encode_value(value: Any) -> bytes:
    """Encode any value as JSON that every reader of traces accepts. Never raises.

    Text keeps its characters as UTF-8 (Perfetto rejects escaped surrogate pairs). Lone surrogates become U+FFFD. NaN
    and infinities, integers beyond 64 bits and other objects become strings, because JSON or readers reject them.
    Deeply nested values and long strings are truncated.
    """
    try:
        encoded = orjson.dumps(value)
        # orjson writes null for NaN and infinities, silently.
        if b"null" in encoded or len(encoded) > _MAX_TEXT:
            encoded = orjson.dumps(_plain(value, 0))
    except (TypeError, ValueError, RecursionError):
        encoded = orjson.dumps(_plain(value, 0))
    return without_final_backslash(encoded)


def _plain(value: Any, depth: int) -> Any:
    """Return a copy of ``value`` with only the types and sizes that `encode_value` writes."""
    if value is None or value is True or value is False:
        return value
    # Call the methods of the built-in types: those of a subclass may raise or lie.
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -(1 << 63) <= number < 1 << 64 else str(number)  # as orjson
    if isinstance(value, float):
        real = float.__add__(value, 0.0)
        return real if real - real == 0 else str(real)
    if isinstance(value, str):
        # Through UTF-16, so that a pair of surrogates becomes one character.
        text = str.encode(value, "utf-16", "surrogatepass").decode("utf-16", "replace")
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    if depth >= _MAX_DEPTH:
        return "…"
    try:
        if isinstance(value, dict):
            plain: dict[str, Any] = {}
            for key, item in value.items():
                name = _plain(str(key), 0)
                while name in plain:  # two keys that differed only in the truncated or replaced part
                    name += "'"
                plain[name] = _plain(item, depth + 1)
            return plain
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, depth + 1) for item in value]
        return _plain(repr(value), 0)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ or __iter__ may raise anything
        return f"<{type(value).__name__}: {type(error).__name__}>"
