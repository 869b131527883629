"""The names used by XLA's profiler (the base of ``jax.profiler``), and the start time of its traces.

A run of the profiler writes two files to ``plugins/profile/<session>/``. The times in ``<host>.trace.json.gz`` count
from the start of the trace, and the file does not contain the start. The protobuf ``<host>.xplane.pb`` contains it.
There are two sources of the start:

* The event `ANCHOR_EVENT` in the JSON, which `tracekit.integrations.jax` adds. It surrounds one reading of the wall
  clock, and contains the reading and the identity of the process.
* The statistic ``profile_start_time`` of the plane "Task Environment" in the protobuf, in ns since the epoch. The
  protobuf also contains the host and the process.

Sources: openxla/xla ``xla/tsl/profiler/protobuf/xplane.proto`` and ``trace_events_to_json``; the traces of jax 0.10.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.errors import StorageError
from tracekit.formats.decimal_time import whole_number
from tracekit.formats.pftrace import WireError, fields, varint
from tracekit.formats.trace_event import UNSET, Event, decode_dict, time_field
from tracekit.storage import basename, exists, open_read
from tracekit.structs import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# A slice in a JAX trace. ``args`` (all strings): "wall_ns", read within the slice, and the identity as in
# `tracekit_metadata`.
ANCHOR_EVENT: Final = "tracekit_clock_anchor"
ANCHOR_NAME: Final = f'"{ANCHOR_EVENT}"'.encode()  # as JSON
# Maximum number of events in the JSON, the earliest ones. The others are in the protobuf only (jax#21295).
MOST_EVENTS: Final = 1_000_000
# The copy of the JSON that ``jax.profiler.trace(create_perfetto_trace=True)`` makes in the same folder.
PERFETTO_COPY: Final = "perfetto_trace.json.gz"
_PROCESS: Final = re.compile(r"/(?:host|device):\S")
_TRACE_SUFFIX: Final = re.compile(r"\.trace\.json(?:\.gz)?$")
_NUMBERS: Final = ("rank", "local_rank", "world_size", "node", "pid", "attempt", "start_ticks")
_TEXTS: Final = ("host", "boot_id", "run_id")
_MAX_PLANE_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 20
# Upper bound of the rounding error between the start and the events of a trace, which are readings of one clock.
_ROUNDING_NS: Final = 1_000
# Fields of XSpace, XPlane, XStat and XStatMetadata.
_PLANES, _HOSTNAMES = 1, 4
_PLANE_NAME, _STAT_NAMES, _STATS = 2, 5, 6
_KEY, _VALUE, _NAME = 1, 2, 2
_STAT_NAME, _UNSIGNED, _SIGNED = 1, 3, 4
_WANTED_PLANES: Final = frozenset({b"Task Environment", b"/host:metadata"})


class ProfileStart(Struct, frozen=True):
    """The start and the identity of a trace of XLA's profiler, as far as they are known."""

    start_ns: int | None = None  # the zero of its times, in ns since the epoch by its host's wall clock
    error_ns: int = 0
    source: str = ""  # of the start, in words
    identity: dict[str, Any] = field(default_factory=dict)  # ``rank``, ``host``, ``pid``, ``boot_id``, ``run_id`` ...


def is_xprof_process(name: str) -> bool:
    """Return True for a process name of XLA's profiler, such as "/host:CPU" or "/device:GPU:0"."""
    return _PROCESS.match(name) is not None


def host_in_name(path: str) -> str | None:
    """Return the host in a file name ``<host>.trace.json.gz``, or None for other names."""
    name = basename(path)
    host = _TRACE_SUFFIX.sub("", name)
    return host if host != name else None


def anchors_of(events: Iterable[Event]) -> list[tuple[int, int, dict[str, Any]]]:
    """Return the start in ns, the duration in ns (-1 if unknown) and ``args`` of each `ANCHOR_EVENT` among some events."""
    found = []
    for event in events:
        is_anchor = event.name is not UNSET and bytes(event.name) == ANCHOR_NAME
        if is_anchor and (time := time_field(event.ts)) is not None:
            duration = time_field(event.dur)
            found.append((time, -1 if duration is None else duration, decode_dict(event.args)))
    return found


def start_of_anchors(anchors: Iterable[tuple[int, int, Mapping[str, Any]]]) -> ProfileStart | None:
    """Return the start of a trace from its anchors, or None without a valid anchor.

    Args:
        anchors: Those of `anchors_of`.
    """
    found = []
    for start_ns, duration_ns, args in anchors:
        wall_ns = whole_number(args.get("wall_ns"))
        if wall_ns is not None and duration_ns >= 0 and wall_ns - start_ns > duration_ns:
            # The clock was read at an unknown moment of the slice.
            error_ns = duration_ns // 2 + 1
            found.append((error_ns, wall_ns - start_ns - duration_ns // 2, args))
    if not found:
        return None
    error_ns, begin_ns, args = min(found, key=lambda anchor: anchor[:2])
    numbers = {key: number for key in _NUMBERS if (number := whole_number(args.get(key))) is not None}
    texts = {key: args[key] for key in _TEXTS if isinstance(args.get(key), str) and args[key]}
    return ProfileStart(begin_ns, error_ns + _ROUNDING_NS, "a reading of the clock in the trace", {**numbers, **texts})


def start_in_xplane(trace: str) -> ProfileStart:
    """Return the start and identity from the protobuf next to a JSON trace. Empty without a readable protobuf."""
    path = _TRACE_SUFFIX.sub(".xplane.pb", trace)
    try:
        if path == trace or not exists(path):
            return ProfileStart()
        with open_read(path) as file:
            hosts, stats = _read(file)
    except (StorageError, OSError, WireError, IndexError):
        return ProfileStart()
    identity: dict[str, Any] = {"host": hosts[0]} if len(hosts) == 1 else {}
    if stats.get(b"process_id", 0) > 0:
        identity["pid"] = stats[b"process_id"]
    start_ns = stats.get(b"profile_start_time", 0)
    if start_ns <= 0:
        return ProfileStart(identity=identity)
    return ProfileStart(start_ns, _ROUNDING_NS, "the start in its xplane.pb", identity)


def _read(file: BinaryIO) -> tuple[list[str], dict[bytes, int]]:
    """Return the host names of an XSpace and the numbers in its small planes; large planes are skipped."""
    hosts: list[str] = []
    stats: dict[bytes, int] = {}
    for number, wire_type, size in _entries(file):
        if wire_type and number == _HOSTNAMES:
            hosts.append(file.read(size).decode("utf-8", "replace"))
        elif wire_type and number == _PLANES and size <= _MAX_PLANE_BYTES:
            stats |= _numbers_of_plane(file.read(size))
        elif wire_type:
            file.seek(size, 1)
    return hosts, stats


def without_hosts(source: BinaryIO, target: BinaryIO) -> None:
    """Copy an XSpace without the names of its hosts; raise ValueError if the source is not an XSpace."""
    for number, wire_type, size in _entries(source):
        kept = number != _HOSTNAMES
        if kept:
            target.write(varint(number << 3 | wire_type) + varint(size))
        left = size if wire_type else 0
        while left > 0:
            piece = source.read(min(left, _PIECE_BYTES))
            if not piece:
                raise WireError("the message is cut off")
            left -= len(piece)
            if kept:
                target.write(piece)


def _entries(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Yield number, wire type and size (for a number, its value) of each field. The caller reads the content."""
    while (key := _varint(file)) is not None:
        size = _varint(file)
        if size is None or key & 7 not in (0, 2):
            raise WireError("a field of a kind that there cannot be")
        yield key >> 3, key & 7, size


def _numbers_of_plane(plane: bytes) -> dict[bytes, int]:
    content: dict[int, list[int | bytes]] = {}
    for number, value in fields(plane):
        content.setdefault(number, []).append(value)
    if content.get(_PLANE_NAME, [b""])[0] not in _WANTED_PLANES:
        return {}
    names, stats = {}, {}
    for entry in content.get(_STAT_NAMES, ()):
        pair = dict(fields(entry))
        names[pair.get(_KEY, 0)] = dict(fields(pair.get(_VALUE, b""))).get(_NAME)
    for stat in content.get(_STATS, ()):
        told = dict(fields(stat))
        name, value = names.get(told.get(_STAT_NAME, 0)), told.get(_UNSIGNED, told.get(_SIGNED, 0))
        if isinstance(name, bytes) and isinstance(value, int) and value < 2**63:
            stats[name] = value
    return stats


def _varint(file: BinaryIO) -> int | None:
    """Read a number. Return None at the end of the file."""
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
        if shift >= 70:
            raise WireError("a number that does not end")
    if shift:
        raise WireError("the message is cut off")
    return None
