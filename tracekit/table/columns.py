"""Read the columns and facts of one file: with the core, or with the plain Python equivalent."""

from __future__ import annotations

import re
import tempfile
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit import core
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.json.reader import TraceReader, decode
from tracekit.formats.merged_head import merged_ranks
from tracekit.formats.rank_trace import BASE_TIME_KEY, COMPOSER_RANK_EVENT, METADATA_EVENT
from tracekit.formats.trace_event import (
    FREE_NUMBERS,
    FreeNumbers,
    decode_event,
    decode_json,
    decode_or_none,
    encode_event,
    raw_field,
    raw_number,
    time_field,
)
from tracekit.formats.xprof import ANCHOR_NAME, anchors_of, host_in_name, start_in_xplane, start_of_anchors
from tracekit.storage import without_secrets
from tracekit.structs import Struct, field
from tracekit.table.account import AccountCollector
from tracekit.table.growth import NewBytes
from tracekit.table.plain_columns import DEVICE_CATEGORIES, NO_ARGS, PlainColumns
from tracekit.table.rows import RowWriter
from tracekit.table.steps import Step, step_columns
from tracekit.traces.collectives.search import find_events
from tracekit.traces.inputs import base_of, rank_inside, stated_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.core import _merge
    from tracekit.formats.trace_event import Event
    from tracekit.table.growth import Growth

_MEMORY_BYTES: Final = 8 * 1024 * 1024
_MORE, _ODD = 0, 1
_MAX_NAME: Final = 200
_XPROF: Final = re.compile(rb'"/(?:host|device):')


class TrackFacts(Struct):
    """A track of a file."""

    pid: int  # its process id; one that is not a number has a number from `FREE_NUMBERS` on, as in a merge
    tid: int  # its thread id, likewise
    process: str | None  # the name or label of the process, or None
    thread: str | None  # the name of the thread, or None
    rank: int | None  # its rank in a merged trace, else None


class FileFacts(Struct):
    """The facts of a file beside its rows. All can be written as JSON.

    Attributes:
        span: The start of the first event and the end of the last; None without events.
    """

    path: str  # the file, as it may be shown
    rank: int | None  # the rank that it states, or None
    is_merged: bool  # true for a merged trace
    host: str | None  # the host that it states, or None
    base_ns: int  # the base of its times, ns since the epoch; 0 if it states none
    tracks: list[TrackFacts] = field(default_factory=list)  # its tracks, by their numbers
    steps: list[Step] = field(default_factory=list)  # its steps, by their indices
    has_batches: bool = False  # true if the steps are batches that tracekit recorded
    has_given_steps: bool = False  # true if the steps are those of other files of the rank
    rows: dict[str, int] = field(default_factory=dict)  # the number of rows of each table
    columns: dict[str, list[str]] = field(default_factory=dict)  # of each table, those that are not NULL in all rows
    damage: str = ""  # the damage, as a sentence; empty for none
    span: tuple[int | None, int | None] = None, None
    unusable: int = 0  # the number of events without a usable time
    account: dict[str, Any] = field(default_factory=dict)  # what it says of itself; see `AccountCollector.result`


def read_columns(
    path: str,
    *,
    folder: str | None = None,
    keeps_args: int = NO_ARGS,
    given_steps: Callable[[FileFacts], list[Step]] | None = None,
    progress: Callable[[int], None] | None = None,
    growth: Growth | None = None,
) -> tuple[_merge.Columns | PlainColumns, FileFacts]:
    """Read the rows of a file.

    Args:
        path: File or URL.
        folder: The folder of the scratch file; the system's folder for temporary files if None.
        keeps_args: The events in the table ``args``: `NO_ARGS`, `KEY_ARGS` or `ALL_ARGS`.
        given_steps: Returns steps to use in place of those of the file, for its facts; an empty list keeps its own.
        progress: Called with the number of unpacked bytes read so far.
        growth: The state behind the rows that are known already, which are not read again; set to the new state. Its `rows` are
            empty if the tables cannot be extended.

    Returns:
        The columns, each table of which can be read once, and the facts of the file.

    Raises:
        StorageError: The file cannot be read.
        TraceFormatError: It is not a trace.
        OSError: The scratch file cannot be written.
    """
    sink = new_columns(folder, keeps_args=keeps_args)
    metadata = _Metadata(path)
    start = 0
    stream = None
    writer = RowWriter(sink, metadata.take if growth is None else _both(growth.note_metadata, metadata.take))
    metadata.on_timestamp = writer.steps.take_metadata
    if growth is not None and growth.at:
        _restore(growth, sink, writer, metadata)
        stream = NewBytes(path, growth.at)
    with TraceReader(path, stream=stream) as reader:
        if isinstance(sink, PlainColumns):
            for run in reader.runs():
                for event in run:
                    writer.take(event)
                if progress is not None:
                    progress(reader.bytes_read)
        else:
            _scan(reader, sink, writer, writer.metadata, progress)
        start = 0 if stream is None else stream.start
    if growth is not None:
        _keep_open(growth, sink, writer)
    writer.finish()
    facts = metadata.facts(reader, sink.tracks(), writer)
    if given_steps is not None and (steps := given_steps(facts)):
        facts.steps, facts.has_given_steps = steps, True
    facts.rows = sink.finish(_groups(facts).tobytes(), step_columns(facts.steps).tobytes())
    facts.columns = sink.used()
    facts.span = sink.span() or facts.span
    if growth is not None:
        has_devices = "correlation" in facts.columns["events"] or facts.is_merged
        open_rows = len(growth.begun) + len(growth.waiting)
        is_extendable = metadata.is_rank_trace and not has_devices and growth.stop(reader, path, start)
        growth.rows = {**facts.rows, "events": facts.rows["events"] - open_rows} if is_extendable else {}
    return sink, facts


def new_columns(folder: str | None, *, keeps_args: int = NO_ARGS) -> _merge.Columns | PlainColumns:
    """Return empty columns; ``folder`` is that of the scratch file."""
    if core.merge is None:
        return PlainColumns(keeps_args=keeps_args)
    columns: _merge.Columns = core.merge.Columns(
        DEVICE_CATEGORIES, folder or tempfile.gettempdir(), _MEMORY_BYTES, keeps_args
    )
    return columns


def _both(first: Callable[[Event], None], second: Callable[[Event], None]) -> Callable[[Event], None]:
    def both(event: Event) -> None:
        first(event)
        second(event)

    return both


def _restore(growth: Growth, sink: _merge.Columns | PlainColumns, writer: RowWriter, metadata: _Metadata) -> None:
    """Give columns the tracks, open slices, steps and metadata of the records before the new ones."""
    for pid, tid in growth.tracks:
        sink.track(pid.encode("utf-8", "surrogateescape"), tid.encode("utf-8", "surrogateescape"))
    for text in growth.metadata:
        metadata.take(_event(text))
    writer.steps.restore(growth.steps)
    for track, text in growth.begun:
        event = _event(text)
        start = time_field(event.ts)
        assert start is not None
        sink.begin(track, start, raw_field(event.name), raw_field(event.cat), text.encode("utf-8", "surrogateescape"))
    for text in growth.waiting:
        writer.take(_event(text))
    writer.unusable = growth.unusable


def _keep_open(growth: Growth, sink: _merge.Columns | PlainColumns, writer: RowWriter) -> None:
    growth.unusable = writer.unusable
    growth.steps = writer.steps.state()
    growth.tracks = [(_text(pid), _text(tid)) for pid, tid in sink.tracks()]
    growth.begun = [(track, _text(text)) for track, text in sink.begun()]
    growth.waiting = [_text(encode_event(event)) for event in writer.waiting()]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _event(text: str) -> Event:
    event = decode(text.encode("utf-8", "surrogateescape"))
    assert event is not None
    return event


class Head(NamedTuple):
    """The facts in the head of a file."""

    rank: int | None = None  # the rank that it states, or None
    is_rank_trace: bool = False  # true for a rank trace of tracekit
    is_merged: bool = False  # true for a merged trace


def peek_head(path: str) -> Head:
    """Return the facts in the head of a file."""
    metadata = _Metadata(path)
    with TraceReader(path) as reader:
        if merged_ranks(reader.header) is not None:
            return Head(is_merged=True)
        if reader.form == "array":
            for event in next(reader.runs(), []):
                if event.ph == "M":
                    metadata.take(event)
        return Head(metadata.rank(reader), metadata.is_rank_trace)


def _scan(
    reader: TraceReader,
    columns: _merge.Columns,
    writer: RowWriter,
    metadata: Callable[[Event], None],
    progress: Callable[[int], None] | None,
) -> None:
    """Read the events of a file with the core, which leaves unusual ones to Python."""
    while reader.in_events:
        reason, at = columns.scan(reader.text, reader.at, reader.final)
        reader.pass_events(at)
        if reason == _ODD:
            _take_noted(columns, writer, metadata)  # first, since the order of the file numbers steps
            run = reader.read_odd()
            for event in run:
                writer.take(event)
            if run:
                columns.passed()
            else:
                reader.end_events()
        elif reason == _MORE:
            _take_noted(columns, writer, metadata)
            if progress is not None:
                progress(reader.bytes_read)
            rest = len(reader.text) - reader.at
            if not reader.fill(2 * rest) and not rest:
                reader.end_events()
        else:
            reader.end_events()
    _take_noted(columns, writer, metadata)


def _take_noted(columns: _merge.Columns, writer: RowWriter, metadata: Callable[[Event], None]) -> None:
    for _, text in columns.metadata():
        metadata(decode_event(text))
    for duration, text in columns.noted():
        writer.note_step(decode_event(text), duration)


class _Metadata:
    """The metadata of a file."""

    def __init__(self, path: str) -> None:
        self._profile = _profile_start(path)
        self.on_timestamp: Callable[[Event, Any, dict[str, Any]], None] | None = None
        self._account = AccountCollector()
        self._own: dict[str, Any] = {}
        self._composer_ranks: set[int] = set()
        self._processes: dict[Any, str] = {}
        self._labels: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}

    def take(self, event: Event) -> None:
        """Process a metadata event."""
        name, args = decode_or_none(event.name), decode_or_none(event.args)
        if not isinstance(name, str) or not isinstance(args, dict):
            return
        pid = raw_number(event.pid)
        if name == METADATA_EVENT:
            self._own = self._own or args
        elif name == COMPOSER_RANK_EVENT and type(args.get("value")) is int and args["value"] >= 0:
            self._composer_ranks.add(args["value"])
        elif name == "process_name":
            _keep(self._processes, pid, args.get("name"))
        elif name == "process_labels":
            _keep(self._labels, pid, args.get("labels"))
        elif name == "thread_name":
            _keep(self._threads, (pid, raw_number(event.tid)), args.get("name"))
        else:
            self._account.take(name, args, pid)
            if self.on_timestamp is not None:
                self.on_timestamp(event, pid, args)

    @property
    def is_rank_trace(self) -> bool:
        """True for a rank trace of tracekit."""
        return bool(self._own)

    def rank(self, reader: TraceReader) -> int | None:
        """Return the rank that a trace states, as far as it was read."""
        found = stated_rank(reader.path, rank_inside(reader.header, self._own or self._profile, self._composer_ranks))
        return None if found is None else found[0]

    def facts(self, reader: TraceReader, tracks: Sequence[tuple[bytes, bytes]], writer: RowWriter) -> FileFacts:
        """Return the facts of the file, after its end."""
        header = reader.header
        ranks = merged_ranks(header)
        own = header.get("tracekit")
        stated = self._own or self._profile
        hosts = (stated.get("host"), header.get("host_name"), own.get("host") if isinstance(own, dict) else None)
        facts = FileFacts(
            path=without_secrets(reader.path),
            rank=None if ranks is not None else self.rank(reader),
            is_merged=ranks is not None,
            host=next((host for host in hosts if isinstance(host, str)), None),
            # The metadata of a process in a merged trace states the base of its input.
            base_ns=base_of(header, {} if ranks is not None else stated),
            damage=_damage(reader, writer.unusable),
            unusable=writer.unusable,
        )
        facts.account = self._account.result(reader, self._own, facts.rank, ranks)
        groups = {}
        places = [(raw_number(decode_json(pid)), raw_number(decode_json(tid))) for pid, tid in tracks]
        tids_of: dict[Any, list[Any]] = {}
        for pid, tid in places:
            tids_of.setdefault(pid, []).append(tid)
        pids = _numbers(tids_of)
        tids = {pid: _numbers(own) for pid, own in tids_of.items()}
        for pid, tid in places:
            rank = None if ranks is None else ranks.get(pid)
            groups[pid] = _group(rank, is_merged=facts.is_merged)
            process = self._labels.get(pid) or self._processes.get(pid) or (pid if isinstance(pid, str) else None)
            thread = self._threads.get((pid, tid)) or (tid if isinstance(tid, str) else None)
            facts.tracks.append(TrackFacts(pids[pid], tids[pid][tid], process, thread, rank))
        facts.steps = writer.steps.steps(groups)
        facts.has_batches = writer.steps.has_batches
        return facts


def _profile_start(path: str) -> dict[str, Any]:
    """Return the identity and the base time of a trace of XLA's profiler; an empty dictionary for other files."""
    if host_in_name(path) is None:
        return {}
    with ByteStream(path) as stream:
        if not _XPROF.search(stream.peek()):
            return {}
    anchors = anchors_of(find_events(path, (ANCHOR_NAME,)))
    profile = start_of_anchors(anchors) or start_in_xplane(path)
    base = {} if profile.start_ns is None else {BASE_TIME_KEY: profile.start_ns}
    return {**profile.identity, **base}


def _keep(names: dict[Any, str], key: Any, name: Any) -> None:
    if isinstance(name, str) and name.strip():
        names[key] = name.strip()[:_MAX_NAME]


def _numbers(places: Iterable[Any]) -> dict[Any, int]:
    """Return the number of each process or thread; those without one get free numbers, in their order."""
    found = {place: place for place in places if isinstance(place, int) and abs(place) < 2**63}
    free = FreeNumbers()
    for number in found:
        if number >= FREE_NUMBERS:
            free.take(number)
    return {place: found[place] if place in found else free.take() for place in places}


def _group(rank: int | None, *, is_merged: bool) -> int:
    return (-1 if rank is None else rank) if is_merged else 0


def _groups(facts: FileFacts) -> array[int]:
    return array("q", (_group(track.rank, is_merged=facts.is_merged) for track in facts.tracks))


def _damage(reader: TraceReader, unusable: int) -> str:
    found = [f"{drop.count} x {drop.kind}" for drop in reader.drops]
    found += ["cut"] if any(repair.kind == "cut_file" for repair in reader.repairs) else []
    found += [f"{unusable} events without a usable time"] if unusable else []
    return ", ".join(found)
