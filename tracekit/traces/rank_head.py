"""Read the head of a file: the rank trace it belongs to, or the other kind of trace that it is."""

from __future__ import annotations

import re
from typing import Any, Final

from tracekit.formats.decimal_time import parse_us, whole_number
from tracekit.formats.gzip_codec import InflateError, inflater
from tracekit.formats.rank_trace import (
    BASE_TIME_KEY,
    DUMP_EVENT,
    INDEX_KEY,
    LOSS_EVENT,
    LOST_EVENTS_KEY,
    METADATA_EVENT,
)
from tracekit.formats.trace_event import decode_json
from tracekit.structs import Struct

HEAD_BYTES: Final = 8192
MAX_HEAD_BYTES: Final = 256 << 10

_MAX_RANKS: Final = 10_000_001
_MAX_TEXT: Final = 200
_METADATA: Final = re.compile(rb'\[\s*(\{[^\n]{0,60}"name":"%b"[^\n]*\}),?\r?\n' % METADATA_EVENT.encode())
_BEGUN: Final = re.compile(rb'\[\s*\{[^\n]{0,60}"name":"%b"[^\n]*\Z' % METADATA_EVENT.encode())
_TIME: Final = re.compile(rb'"ts":(\d{1,19}\.\d{3})\b')
_LOSS: Final = re.compile(rb'\{[^\n]{0,60}"name":"%b"[^\n]*\}' % LOSS_EVENT.encode())
_LOST: Final = re.compile(rb'"%b":(\d{1,18})\b' % LOST_EVENTS_KEY.encode())
_DUMP: Final = re.compile(rb'\n\{[^\n]{0,60}"name":"%b"' % DUMP_EVENT.encode())
_INDEX: Final = re.compile(rb'\A\s*\{\s*"%b"' % INDEX_KEY.encode())
_COMPLETE: Final = re.compile(rb'"complete"\s*:\s*true')
_RUN_ID: Final = re.compile(rb'"run_id"\s*:\s*("(?:[^"\\]|\\.)*")')
_OTHER: Final = re.compile(
    rb'\s*(?:\{.*?"(?:traceEvents|deviceProperties|displayTimeUnit)"\s*:|\[\s*\{.{0,400}?"ph"\s*:)', re.DOTALL
)
_RANK: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*"rank"\s*:\s*(\d{1,8})\b')
_NUMBERS: Final = re.compile(rb'"(rank|attempt|pid)"\s*:\s*(\d{1,12})\b')


class Head(Struct, frozen=True):
    """The first lines of a rank trace; see `tracekit.formats.rank_trace`."""

    run_id: str
    rank: int
    local_rank: int  # its number on its host
    world_size: int
    node: int
    host: str
    pid: int
    attempt: int
    boot_id: str | None
    start_ticks: int | None
    child: bool  # True for a process that the rank has started, such as a worker of a data loader
    dump: bool  # True for a dump of a flight recorder, which repeats other files
    base_ns: int  # the base of its times, ns since the epoch
    start_ns: int  # the start of the recording, ns since the epoch
    first_ns: int | None  # the first time in the file; None if the head has none
    body_at: int  # the offset of the second record in the unpacked file
    loss: tuple[int, int] | None  # start and end offset of the line that states losses; None without one
    lost_events: int  # the number of lost events in that line

    @property
    def process(self) -> tuple[object, ...]:
        """The identity of the process among those of its rank."""
        return self.attempt, self.start_ns, self.host, self.boot_id, self.pid, self.start_ticks


class Index(Struct, frozen=True):
    """The index of a recording on an object store."""

    run_id: str
    rank: int
    attempt: int
    pid: int
    complete: bool  # True if the recording has ended and everything is there


class OtherTrace(Struct, frozen=True):
    """A trace of another tool, such as torch.profiler, vLLM, sglang or JAX, or the result of a merge."""

    rank: int | None  # the rank that its head states; None where it states none


def read_head(data: bytes, *, packed: bool) -> Head | Index | OtherTrace | int | None:
    """Return the facts in the first bytes of a file: `HEAD_BYTES` or more, ``packed`` by gzip or not.

    Return the number of bytes that are needed to decide if these are too few, and None for a file that is not a trace.
    """
    size = len(data)
    if packed:
        try:
            data = inflater().decompress(data, MAX_HEAD_BYTES)
        except InflateError:
            return None
    found = _METADATA.match(data)
    if found is None:
        if _INDEX.match(data):
            return _index(data)
        if not _BEGUN.match(data) and _OTHER.match(data):
            found_rank = _RANK.search(data)
            return OtherTrace(None if found_rank is None else int(found_rank[1]))
        return 8 * HEAD_BYTES if size == HEAD_BYTES and data.lstrip()[:1] in (b"{", b"[") else None
    try:
        own: dict[str, Any] = dict(decode_json(found[1])["args"])
    except (ValueError, KeyError, TypeError):
        return None
    rank, run_id = whole_number(own.get("rank"), _MAX_RANKS), own.get("run_id")
    if rank is None or not isinstance(run_id, str):
        return None

    def number(key: str, below: int) -> int:
        return whole_number(own.get(key), below) or 0

    loss, time = _LOSS.search(data, found.end()), _TIME.search(data, found.end())
    base_ns = number(BASE_TIME_KEY, 2**62)
    clock, boot_id = own.get("clock"), own.get("boot_id")
    first_ns = None if time is None else parse_us(time[1])
    return Head(
        run_id=run_id[:_MAX_TEXT],
        rank=rank,
        local_rank=number("local_rank", _MAX_RANKS),
        world_size=max(rank + 1, number("world_size", _MAX_RANKS)),
        node=number("node", _MAX_RANKS),
        host=str(own.get("host", ""))[:_MAX_TEXT],
        pid=number("pid", 2**32),
        attempt=number("attempt", 2**32),
        boot_id=boot_id[:_MAX_TEXT] if isinstance(boot_id, str) else None,
        start_ticks=whole_number(own.get("start_ticks")),
        child="parent_pid" in own,
        dump=_DUMP.search(data, found.end(1)) is not None,
        base_ns=base_ns,
        start_ns=whole_number(clock.get("wall_ns"), 2**62) or 0 if isinstance(clock, dict) else 0,
        first_ns=None if first_ns is None else base_ns + first_ns,
        body_at=found.end(1),
        loss=None if loss is None else loss.span(),
        lost_events=0 if loss is None else lost_in(loss[0]),
    )


def lost_in(line: bytes) -> int:
    """Return the number of lost events in a line that states losses; 0 for any other text."""
    found = _LOST.search(line)
    return 0 if found is None else int(found[1])


def _index(data: bytes) -> Index | None:
    # The identity comes before the list of segments, which may be long.
    begin = data.partition(b'"segments"')[0]
    run_id = _RUN_ID.search(begin)
    numbers = {name.decode(): int(value) for name, value in _NUMBERS.findall(begin)}
    if run_id is None or len(numbers) != 3:
        return None
    try:
        name = str(decode_json(run_id[1]))[:_MAX_TEXT]
    except ValueError:
        return None
    return Index(name, **numbers, complete=_COMPLETE.search(begin) is not None)
