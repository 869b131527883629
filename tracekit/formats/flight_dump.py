"""FlightDumpStream: reads a dump of torch's flight recorder as Chrome JSON.

The recorder keeps the last collectives of a process. When a job hangs, each rank writes a dump, as a pickle
(``nccl_trace_rank_0``) or as JSON. A collective becomes a slice on the track of its process group, from its enqueue
(``time_created_ns``) to the discovery of its completion (``time_discovered_completed_ns``). This is its time in flight.
Its run time is shorter; ``duration_ms`` holds it if torch measured it. The watchdog of torch polls about ten times a
second, so both discovered times are up to 100 ms late. Slices of one poll end together, at its last discovery, so that
they nest and do not need a row each; their arguments have the discovered times. A collective that never completed is a
slice without an end, and its name says so. A completed collective without a time (gloo records none) is an instant.
Sends and receives are on a separate track.

A dump contains neither rank nor host. The rank comes from the file name. The times are ns since the epoch by the wall
clock. A dump does not contain the time of its writing either, which is a lower bound for the duration of a hang. The
modification time of the file replaces it, up to the timeout of the hung collective, because a copy may have a later
time.

Source: torch 2.13 ``torch/csrc/distributed/c10d/FlightRecorderDetail.hpp`` (version 2.10 of the dump) and its dumps.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.byte_stream import ConvertedStream
from tracekit.formats.decimal_time import format_us
from tracekit.formats.json.repair import repair_object
from tracekit.formats.json.window import scan_value
from tracekit.formats.kineto import rank_in_name
from tracekit.formats.plain_pickle import PickleRefusedError, is_pickle, read_pickle
from tracekit.storage import basename

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.formats.byte_stream import ByteStream

_MAX_DUMP_BYTES: Final = 64 << 20
_MAX_TEXT_BYTES: Final = 1 << 30  # of JSON; a pickle can contain one object many times
_MAX_ENTRY_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 4 << 20
_PIECE: Final = 200  # number of events in a piece of output
_MAX_CHARACTERS: Final = 2000
_MAX_ITEMS: Final = 64
_MAX_NS: Final = 2**62
_MAX_GAP_IN_POLL_NS: Final = 1_000_000
_MAX_POLL_NS: Final = 100_000_000
_MAX_TIMEOUT_MS: Final = 86_400_000

_OF_A_DUMP: Final = re.compile(rb"collective_seq_id|pg_config|pg_status|nccl_comm_state|comm_lib_version")
_FIRST_KEY: Final = re.compile(
    rb'\s*\{\s*"(?:comm_lib_version|entries|nccl_comm_state|pg_config|pg_status|version)"\s*:'
)
_TRACE: Final = b'"traceEvents"'
_ENTRIES: Final = re.compile(rb'(?<!\\)"entries"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb"[\s,]*")

_PROCESS: Final = "flight recorder"
_CATEGORY: Final = "flight_recorder"
_UNNAMED: Final = ("", "undefined")  # the descriptions of process groups without a description
_COPIED: Final = ("state", "retired", "record_id", "op_id", "p2p_seq_id", "timeout_ms", "duration_ms", "thread_name")
_LAST_NUMBER: Final = re.compile(r"(?<!\d)(\d{1,5})(?:\.bin|\.json)?(?:\.gz)?$")
_TIMES: Final = ("time_discovered_started_ns", "time_discovered_completed_ns")


def is_flight_dump(head: bytes) -> bool:
    """Return True if these first bytes are of a dump of torch's flight recorder, in JSON or a pickle."""
    if is_pickle(head):
        return _OF_A_DUMP.search(head) is not None
    return _FIRST_KEY.match(head) is not None and _OF_A_DUMP.search(head) is not None and _TRACE not in head


class _Launch(NamedTuple):
    """The key of a group of coalesced entries, which are launched and complete together."""

    group: int | None
    is_p2p: bool
    sequence: int | None


class FlightDumpStream(ConvertedStream):
    """Reads a dump, written at a time since the epoch (None if unknown), as Chrome JSON of the object form."""

    foreign = "flight recorder"

    def __init__(self, source: ByteStream, written_ns: int | None = None) -> None:
        super().__init__(source)
        self._header: dict[str, Any] = {}
        self._tracks: set[str] = set()
        self._written_ns = written_ns
        self._ends: dict[int, int] = {}
        self._last_ns = 0
        self._timeout_ns = 0

    def _convert(self) -> Iterator[bytes]:
        return (text.encode("utf-8", "replace") for text in self._text())

    def _text(self) -> Iterator[str]:
        dump = self._open()
        if dump is None:
            return
        self._header, entries = dump
        # One of the entries of a launch has the time of its completion.
        times = ((entry, _time(entry.get("time_discovered_completed_ns"))) for entry in map(_entry, entries))
        completed = {_launch(entry): time_ns for entry, time_ns in times if time_ns is not None}
        self._ends = _ends_of_polls(completed.values())
        left = _MAX_TEXT_BYTES
        name = basename(self.path)
        # torch appends the rank to the user's prefix, unless the name states it in another way.
        rank = _LAST_NUMBER.search(name) if rank_in_name(name) is None else None
        yield '{"traceEvents":[\n' if rank is None else f'{{"rank":{int(rank[1])},"traceEvents":[\n'
        separator = ""
        batch: list[str] = []
        for entry in map(_entry, entries):
            batch += self._events(entry, completed)
            if len(batch) >= _PIECE:
                text = separator + ",\n".join(batch)
                yield text
                separator, batch = ",\n", []
                left -= len(text)
                if left < 0:
                    self.damage = f"it makes more than {_MAX_TEXT_BYTES >> 20} MB of events"
                    return
        batch += self._end_of_what_hung()
        about = {key: _text_of(self._header[key]) for key in ("version", "comm_lib_version") if key in self._header}
        end = f'\n],\n"flight_recorder": {json.dumps(about)}'
        # The reader reports an object that is not closed as a cut file.
        yield (separator if batch else "") + ",\n".join(batch) + end + ("" if self.damage else "}\n")

    # The dump.

    def _open(self) -> tuple[dict[str, Any], list[Any]] | None:
        """Return the dump without its entries, and these, which `_entry` decodes. Set ``damage`` if unreadable."""
        data = bytearray()
        while piece := self._source.read():
            data += piece
            if len(data) > _MAX_DUMP_BYTES:
                self.damage = (
                    f"this is a flight-recorder dump of more than {_MAX_DUMP_BYTES >> 20} MB, which is not read"
                )
                return None
        self.damage = self._source.damage
        text = bytes(data)
        return self._open_pickle(text) if is_pickle(text) else self._open_json(text)

    def _open_pickle(self, data: bytes) -> tuple[dict[str, Any], list[Any]] | None:
        try:
            value, whole = read_pickle(data)
        except PickleRefusedError as error:
            self.damage = f"this flight-recorder dump cannot be read: {error}"
            return None
        if not whole:
            self.damage = self.damage or "the pickle is cut off"
        header = _dict(value)
        found = header.pop("entries", [])
        entries = found if isinstance(found, list) else []
        if not header and not entries:
            self.damage = "this pickle holds no flight-recorder dump" if whole else self.damage
            return None
        return header, entries

    def _open_json(self, text: bytes) -> tuple[dict[str, Any], list[Any]] | None:
        begin = _ENTRIES.search(text)
        if begin is None:
            header = self._read_header(text)
            return None if header is None else (header, [])
        entries: list[bytes] = []
        at = begin.end()
        while text.startswith(b"{", at := at + len(_BETWEEN.match(text, at)[0])):  # type: ignore[index]
            end, is_whole = scan_value(text, at)
            entry = text[at:end]
            if not is_whole:
                repaired = repair_object(text, at, min(len(text), at + _MAX_ENTRY_BYTES))
                if repaired is None:
                    break
                entry, end, _ = repaired
            entries.append(entry)
            at = end
        header = None
        if text.startswith(b"]", at):
            header = self._read_header(text[: begin.end() - 1] + b"null" + text[at + 1 :])
        else:
            self.damage = self.damage or f"the entries of the dump end in the middle, at byte {at}"
        return header or {}, entries

    def _read_header(self, text: bytes) -> dict[str, Any] | None:
        try:
            if len(text) > _MAX_HEADER_BYTES:
                raise ValueError("too long")
            return _dict(json.loads(text.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            self.damage = self.damage or "what the dump says beside its entries cannot be read"
            return None

    # Entries.

    def _events(self, entry: dict[str, Any], completed: dict[_Launch, int]) -> Iterator[str]:
        """Yield the event of an entry, after the metadata of its track if that is new."""
        created_ns = _time(entry.get("time_created_ns"))
        if created_ns is None:
            self.losses["entries_without_a_time" if entry else "broken_entries"] += 1
            return
        launch = _launch(entry)
        self._last_ns = max([self._last_ns, created_ns, *(_time(entry.get(key)) or 0 for key in _TIMES)])
        group, description = _group(entry)
        track = f"process group {group}" + (f" ({description})" if description else "")
        track += " send/recv" if launch.is_p2p else ""
        if not self._tracks:
            yield _metadata("process_name", _PROCESS, {"name": _PROCESS})
        if track not in self._tracks:
            self._tracks.add(track)
            yield _metadata("thread_name", track, {"name": track})
            yield _metadata("thread_sort_index", track, {"sort_index": min(launch.group or 0, 2**20)})
        args = self._args(entry, launch)
        name = _text_of(entry.get("profiling_name")) or "collective"
        end_ns = _time(entry.get("time_discovered_completed_ns"))
        status = _dict(_dict(self._header.get("pg_status")).get(str(launch.group)))
        last = _integer(status.get("last_completed_collective"))
        if end_ns is None and launch in completed:
            end_ns, args["completed"] = completed[launch], "with the others of its launch (coalesced)"
        if end_ns is not None:
            args.setdefault("completed", "yes")
            dur = format_us(max(0, self._ends.get(end_ns, end_ns) - created_ns)).decode()
            yield _event("X", track, created_ns, name, args, f', "dur": {dur}')
        elif entry.get("state") == "completed" or (
            not launch.is_p2p and last is not None and launch.sequence is not None and launch.sequence <= last
        ):
            args["completed"] = "yes; when is not recorded"
            yield _event("i", track, created_ns, name, args, ', "s": "t"')
        else:
            args["completed"] = "no; it timed out" if entry.get("retired") is True else "no"
            for key in ("last_enqueued_collective", "last_started_collective", "last_completed_collective"):
                number = _integer(status.get(key))
                if number is not None:
                    args[f"{key} of the group"] = number
            timeout_ms = min(_integer(entry.get("timeout_ms")) or 0, _MAX_TIMEOUT_MS)
            self._timeout_ns = max(self._timeout_ns, created_ns + timeout_ms * 1_000_000)
            yield _event("B", track, created_ns, f"{name} (not completed)", args, "")

    def _end_of_what_hung(self) -> list[str]:
        """Return an instant at the time of writing, so that viewers draw hung collectives up to that time."""
        if self._written_ns is None or self._written_ns <= self._last_ns or self._timeout_ns <= self._last_ns:
            return []
        late = self._written_ns > self._timeout_ns
        end_ns = self._timeout_ns if late else self._written_ns
        name = "timeout (the file is younger)" if late else "dump written"
        return [_event("i", _PROCESS, end_ns, name, {}, ', "s": "p"')]

    def _args(self, entry: dict[str, Any], launch: _Launch) -> dict[str, Any]:
        """Return the arguments of a collective under the names that torch.profiler uses."""
        group, description = _group(entry)
        ranks = _dict(_dict(self._header.get("pg_config")).get(group)).get("ranks")
        name = _text_of(entry.get("profiling_name"))
        found: dict[str, Any] = {
            "Collective name": name.rpartition(":")[2],
            "Process Group Name": group,
            "Process Group Description": description,
            "Process Group Ranks": _text_of(ranks),
            "Seq": None if launch.is_p2p else launch.sequence,
        }
        found |= {key: _plain(entry.get(key)) for key in _COPIED}
        found |= {key: _time(entry.get(key)) for key in _TIMES}
        for side in ("input", "output"):
            found[f"{side}_sizes"] = [
                [number for item in _items(sizes) if (number := _integer(item)) is not None]
                for sizes in _items(entry.get(f"{side}_sizes"))
            ]
            found[f"{side}_dtypes"] = [_text_of(item) for item in _items(entry.get(f"{side}_dtypes"))]
        found["frames"] = [
            f"{_text_of(frame.get('name'))} ({_text_of(frame.get('filename'))}:{_integer(frame.get('line'))})"
            for frame in map(_dict, _items(entry.get("frames")))
        ]
        return {key: value for key, value in found.items() if value not in (None, "", [])}


def _ends_of_polls(times: Iterable[int]) -> dict[int, int]:
    """Return the time of the last discovery in the same poll of the watchdog for each time of a discovery."""
    ends: dict[int, int] = {}
    last = later = 1 << 63
    for time_ns in sorted(times, reverse=True):
        if later - time_ns > _MAX_GAP_IN_POLL_NS or last - time_ns > _MAX_POLL_NS:
            last = time_ns
        ends[time_ns] = last
        later = time_ns
    return ends


def _launch(entry: dict[str, Any]) -> _Launch:
    is_p2p = entry.get("is_p2p") is True
    return _Launch(
        _integer(entry.get("pg_id")), is_p2p, _integer(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id"))
    )


def _group(entry: dict[str, Any]) -> tuple[str, str]:
    names = [_text_of(name) for name in _items(entry.get("process_group"))]
    name, description = (*names, "", "")[:2]
    return name, "" if description in _UNNAMED else description


def _event(phase: str, track: str, time_ns: int, name: str, args: dict[str, Any], more: str) -> str:
    event = {"ph": phase, "cat": _CATEGORY, "name": name, "pid": _PROCESS, "tid": track, "args": args}
    return f'{json.dumps(event, ensure_ascii=False)[:-1]}, "ts": {format_us(time_ns).decode()}{more}}}'


def _metadata(what: str, track: str, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": _PROCESS, "tid": track, "args": args}, ensure_ascii=False)


def _entry(value: Any) -> dict[str, Any]:
    """Return an entry of a dump; of a JSON dump, it is text so far. It is empty if it is broken."""
    if isinstance(value, bytes):
        try:
            value = json.loads(value.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}
    return _dict(value)


# An entry may contain any value of any size.


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return list(value[:_MAX_ITEMS]) if isinstance(value, (list, tuple)) else []


def _integer(value: Any) -> int | None:
    """Return an integer, which may be a string as in JSON dumps, or None."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.removeprefix("-").isdecimal():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else None


def _time(value: Any) -> int | None:
    """Return a time in ns since the epoch, or None. JSON dumps have 0 for a missing value."""
    return value if type(value) is int and 0 < value < _MAX_NS else None


def _text_of(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:_MAX_CHARACTERS] if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    number = _integer(value)
    return _text_of(value) if number is None else number
