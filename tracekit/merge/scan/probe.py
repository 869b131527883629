"""Identify each input: its kind, rank, clock and processes, from its head and end.

A plain file of a known kind is read at both ends, a packed one at its head. If these do not have the clock, all of it
is read. The rest of a rank trace is searched for the names of its companions. A small file, which one window holds,
gives fewer events at each end, or all. The earliest time is that of the events that were read.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import BytesStream
from tracekit.formats.decimal_time import EPOCH_NS, parse_us
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.kineto import gpu_of_process, is_kineto
from tracekit.formats.merged_head import DEVICES_KEY, DISTRIBUTED_KEY, merged_ranks, truncate_header
from tracekit.formats.rank_trace import BASE_TIME_KEY, COMPANION_EVENT, COMPOSER_RANK_EVENT, METADATA_EVENT
from tracekit.formats.trace_event import UNSET, Event, decode_dict, decode_text, encode_json, raw_number
from tracekit.formats.xprof import anchors_of, host_in_name, is_xprof_process, start_in_xplane, start_of_anchors
from tracekit.merge.scan.input import FileStamp, Head, Input, stamp_of
from tracekit.storage import is_remote, open_read, printable_name
from tracekit.structs import Struct
from tracekit.traces.inputs import base_of, rank_inside
from tracekit.traces.labels import labels_of_trace
from tracekit.traces.process_identity import IDENTITY_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.formats.xprof import ProfileStart

_END_BYTES: Final = 64 * 1024  # the size of the end of a file that is read
_SMALL_END_BYTES: Final = 4 * 1024
"""The size of each end of a small file that is decoded, more while only names are found."""
_DIGEST_BYTES: Final = 4 * 1024
_COMPANION_WORD: Final = b'"tracekit_companion'
"""The names of all metadata of a rank trace that is looked for behind its beginning begin so."""
_PROCESS_WORD: Final = b'"process_'
"""So do the names of metadata that say what a process of torch is: some versions write them between the events."""
_MAX_RANKS: Final = 2**32
_TAKEN_METADATA: Final = {
    "process_name": "name",
    "process_labels": "labels",
    METADATA_EVENT: "",
    COMPANION_EVENT: "file",
    COMPOSER_RANK_EVENT: "value",
}
"""The metadata that the scan looks at, each with the key of the argument that it takes."""


def probe(
    path: str, progress: Callable[[int], None] | None = None, *, whole: bool = False, head_only: bool = False
) -> Input:
    """Find out what a file is.

    Read all of it where ``whole``, only its beginning, which may lack its clock, where ``head_only``.
    """
    stamp = stamp_of(path)
    with TraceReader(path, limit_bytes=stamp.limit_bytes) as reader:
        if len(reader.text) - reader.at < _DIGEST_BYTES:
            reader.fill(_DIGEST_BYTES)
        digest = zlib.crc32(reader.text[reader.at : reader.at + _DIGEST_BYTES])
        is_small = not whole and _is_small(reader, stamp)
        if is_small:
            reader.max_run_bytes = _SMALL_END_BYTES
        survey = _Survey()
        runs = reader.runs()
        survey.take(next(runs, []))
        while is_small and survey.lowest_ns is None and (run := next(runs, None)) is not None:
            survey.take(run)  # so far only names
        mode = "head" if head_only else "whole"
        if not (head_only or whole):
            mode = _mode(path, reader, survey, stamp, is_small=is_small)
        reader.max_run_bytes = TraceReader.max_run_bytes
        end = _read_end(path, reader, stamp) if mode == "ends" and not is_small else None
        has_end = end is not None or mode == "whole" or (mode == "ends" and (is_small or bool(survey.metadata)))
        if end is not None:
            for last in end.runs():
                survey.take(last)
            reader.header.update(end.header)
        elif has_end:
            for run in runs:
                survey.take(run)
                if progress is not None:
                    progress(reader.bytes_read)
    _check(reader, survey)
    found = _found(path, reader, survey, stamp, digest, whole=mode == "whole", has_end=has_end)
    if mode != "whole" and not head_only and (found.base_ns is None or (is_small and reader.drops)):
        # Its clock may be stated in the middle, or its first event must be known.
        return probe(path, progress, whole=True)
    if found.kind == "tracekit" and mode != "whole" and not (is_small or head_only):
        from tracekit.traces.collectives.search import find_events  # only rank traces need it

        names, follow = _Survey(), partial(found.note_end, progress=progress)
        for event in find_events(path, (_COMPANION_WORD,), follow, stamp.limit_bytes):
            names.take([event])
        found.companions = tuple(names.companions)
    return found


def _is_small(reader: TraceReader, stamp: FileStamp) -> bool:
    """Return True if all of a plain file is in the window, and its middle is worth passing over."""
    is_read = reader.bytes_read == stamp.size_bytes and not (reader.compressed or reader.foreign)
    return is_read and len(reader.text) - reader.at >= 4 * _SMALL_END_BYTES


def _pass_middle(reader: TraceReader, survey: _Survey) -> bool:
    """Pass over the events of a small file between its ends; return False if they must be read."""
    text, separator = reader.text, reader.separator
    if separator is None or survey.lowest_ns is None:
        return False
    end = text.find(separator, len(text) - _SMALL_END_BYTES)
    word = _COMPANION_WORD if survey.metadata else _PROCESS_WORD
    is_passed = end >= 0 and text.find(word, reader.at, end) < 0
    if is_passed:
        reader.pass_events(text.index(b"{", end))
    return is_passed


def _mode(path: str, reader: TraceReader, survey: _Survey, stamp: FileStamp, *, is_small: bool) -> str:
    """Return which part of a file is read: the "whole", the "ends" of a plain file, or the "head"."""
    if reader.foreign or not survey.has_events or not (is_small or stamp.size_bytes > 2 * _END_BYTES):
        return "whole"
    if survey.is_xprof or _kind(reader, survey) not in ("merged", "tracekit", "torch"):
        return "whole"
    if is_small:
        return "ends" if _pass_middle(reader, survey) else "whole"
    if reader.compressed or is_remote(path):
        base = BASE_TIME_KEY in {**reader.header, **survey.metadata} or survey.epoch_lowest_ns is not None
        return "head" if base else "whole"
    return "ends"


def _read_end(path: str, reader: TraceReader, stamp: FileStamp) -> TraceReader | None:
    """Read the last events of a plain file, and the keys behind them; None where no event begins there for certain."""
    if reader.separator is None:
        return None
    with open_read(path) as file:
        file.seek(max(stamp.size_bytes - _END_BYTES, 0))
        text = file.read(_END_BYTES)
    at = text.find(reader.separator)
    if at < 0:
        return None
    return TraceReader(path, stream=BytesStream(reader.path, b'{"traceEvents":[' + text[text.index(b"{", at) :]))


def _kind(reader: TraceReader, survey: _Survey) -> str:
    own = reader.header.get("tracekit")
    if isinstance(own, dict) and "merge" in own:
        return "merged"
    if survey.metadata:
        return "tracekit"
    if is_kineto(reader.header):
        return "torch"
    if reader.foreign == "flight recorder":
        return reader.foreign
    return "xprof" if survey.is_xprof else "chrome"


def _check(reader: TraceReader, survey: _Survey) -> None:
    if not reader.events and reader.drops:
        raise TraceFormatError(reader.path, "no event in it can be read", offset_bytes=reader.drops[0].offset_bytes)
    if reader.events and not survey.has_events:
        raise TraceFormatError(
            reader.path, f"this is not a trace: none of its {reader.events} objects is an event (has a ph)"
        )


def _found(
    path: str, reader: TraceReader, survey: _Survey, stamp: FileStamp, digest: int, *, whole: bool, has_end: bool
) -> Input:
    header, kind, own = reader.header, _kind(reader, survey), reader.header.get("tracekit")
    profile = (start_of_anchors(survey.anchors) or start_in_xplane(path)) if kind == "xprof" else None
    metadata = survey.metadata if kind == "tracekit" else {}
    composer_ranks = tuple(sorted(survey.composer_ranks)) if kind == "chrome" else ()
    rank, name = rank_inside(header, metadata, composer_ranks), printable_name(path)
    base_ns = base_of(header, metadata) or (profile and profile.start_ns)
    if not base_ns:
        base_ns = None if survey.epoch_lowest_ns is None else 0
    identity = metadata if profile is None else profile.identity
    if kind == "torch" and isinstance(own, dict):
        identity = own
    host = identity.get("host") or header.get("host_name")
    if host is None and kind == "xprof":
        host = host_in_name(path)
    info, devices = header.get(DISTRIBUTED_KEY), header.get(DEVICES_KEY)
    rank_of_pid = merged_ranks(header) or {} if kind == "merged" else {}
    kept: list[bytes] = []
    left_out: list[str] = []
    if kind != "merged":
        header_kept, metadata_kept, left_out = truncate_header(header, metadata)
        kept = [header_kept, metadata_kept]
        header = {DISTRIBUTED_KEY: info} if isinstance(info, dict) else {}
    return Input(
        path=path,
        shown=reader.path,
        kind=kind,
        form=reader.foreign or reader.form,
        stamp=stamp,
        whole=whole,
        has_end=has_end,
        digest=digest,
        bytes_read=reader.bytes_read if whole or reader.compressed else stamp.size_bytes,
        companions=tuple(survey.companions),
        composer_ranks=composer_ranks,
        profile=profile,
        base_ns=base_ns,
        generation=_generation(base_ns, profile, decimals=survey.decimals),
        first_ns=survey.epoch_lowest_ns if base_ns == 0 else survey.lowest_ns,
        highest_ns=survey.highest_ns,
        identity={key: identity[key] for key in (*IDENTITY_KEYS, "clock") if key in identity},
        host=host if isinstance(host, str) else None,
        rank_inside=rank,
        labels={} if rank is None or kind == "merged" else labels_of_trace(name, header, rank[0]),
        run={key: info[key] for key in ("backend", "world_size") if key in info} if isinstance(info, dict) else None,
        devices=tuple(map(encode_json, devices)) if isinstance(devices, list) else (),
        named_pids=_named_pids(kind, identity.get("pid"), survey.processes),
        rank_of_pid=rank_of_pid,
        header_left_out=tuple(left_out),
        _head=Head(
            header, tuple(kept), {raw: (one.name, one.label, one.category) for raw, one in survey.processes.items()}
        ),
    )


def _generation(base_ns: int | None, profile: ProfileStart | None, *, decimals: bool) -> str:
    if base_ns is None:
        return "times without a base"
    if profile is not None and profile.start_ns == base_ns:
        return f"times relative to the start of the profile, from {profile.source}"
    if base_ns > 0:
        return f"times relative to {BASE_TIME_KEY}"
    return "epoch times with decimals" if decimals else "epoch times in whole microseconds"


def _named_pids(kind: str, pid: Any, processes: dict[Any, _Process]) -> tuple[tuple[int, str | None], ...]:
    if isinstance(pid, int):
        return ((pid, processes[pid].name if pid in processes else None),)
    if kind == "xprof":  # which has 701, 1, 2 ... on every host
        return ()
    return tuple(
        (raw, process.name)
        for raw, process in processes.items()
        if isinstance(raw, int)
        and raw > 0
        and process.used
        and process.label in ("", "CPU")
        and not (kind == "torch" and gpu_of_process(raw, process.label, process.category) is not None)
    )


class _Process(Struct):
    """The metadata of a ``pid``, and the category of its first event, as JSON."""

    name: str | None = None
    label: str = ""
    used: bool = False
    category: bytes = b""


class _Survey:
    """The facts in the events of a file that decide its place in the merge."""

    def __init__(self) -> None:
        self.has_events = False
        self.processes: dict[Any, _Process] = {}
        self.metadata: dict[str, Any] = {}
        self.companions: list[str] = []
        self.composer_ranks: set[int] = set()
        self.lowest_ns: int | None = None
        self.highest_ns: int | None = None
        self.epoch_lowest_ns: int | None = None
        self.decimals = False
        self.is_xprof = False
        self.anchors: list[tuple[int, int, dict[str, Any]]] = []
        self._seen: set[tuple[Any, Any]] = set()

    def take(self, run: list[Event]) -> None:
        """Process a run of events."""
        events = []
        for event in run:
            if event.ph == "M":
                self._metadata(event)
            elif event.ph is not UNSET and event.ph:
                events.append(event)
        self.has_events = self.has_events or bool(events)
        if self.is_xprof:
            self.anchors += anchors_of(events)
        parsed = [parse_us(bytes(event.ts)) for event in events if event.ts is not UNSET]
        if times := [time for time in parsed if time is not None]:
            self._span(times)
        for event in events:
            if (event.pid, event.tid) not in self._seen:
                self._seen.add((event.pid, event.tid))
                process = self._process(event.pid)
                if not process.used and event.cat is not UNSET:
                    process.category = bytes(event.cat)
                process.used = True
                self.decimals = self.decimals or (event.ts is not UNSET and b"." in bytes(event.ts))

    def _process(self, pid: Any) -> _Process:
        return self.processes.get(pid) or self.processes.setdefault(raw_number(pid), _Process())

    def _span(self, times: list[int]) -> None:
        low, high = min(times), max(times)
        self.lowest_ns = low if self.lowest_ns is None else min(low, self.lowest_ns)
        self.highest_ns = high if self.highest_ns is None else max(high, self.highest_ns)
        if high >= EPOCH_NS:
            if low < EPOCH_NS:
                low = min(time for time in times if time >= EPOCH_NS)
            self.epoch_lowest_ns = low if self.epoch_lowest_ns is None else min(low, self.epoch_lowest_ns)

    def _metadata(self, event: Event) -> None:
        self.has_events = True
        process, name = self._process(event.pid), decode_text(event.name)
        if name not in _TAKEN_METADATA:
            return
        args = decode_dict(event.args)
        value = args.get(_TAKEN_METADATA[name])
        if name == METADATA_EVENT:
            self.metadata = self.metadata or args
        elif type(value) is str:
            if name == "process_name":
                process.name = value
                self.is_xprof = self.is_xprof or (value.startswith("/") and is_xprof_process(value))
            elif name == "process_labels":
                process.label = value
            elif name == COMPANION_EVENT and value:
                self.companions.append(value)
        elif name == COMPOSER_RANK_EVENT and type(value) is int and 0 <= value < _MAX_RANKS:
            self.composer_ranks.add(value)
