"""Find the traces that the user named, and the rank and base time that each of them states."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, StorageError, TraceFormatError, TracekitError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.decimal_time import whole_number
from tracekit.formats.kineto import rank_in_name, rank_of_header
from tracekit.formats.rank_trace import BASE_TIME_KEY, COMPANION_EVENT, COMPOSER_RANK_EVENT, METADATA_EVENT
from tracekit.formats.xprof import ANCHOR_EVENT
from tracekit.storage import basename, exists, expand, is_remote, open_read, printable_name, same_file
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

TRACE_SUFFIXES: Final = (".json", ".json.gz", ".json.zst", ".json.tmp", ".pftrace", ".pftrace.gz", ".pftrace.zst")
"""Suffixes of trace files."""

# As `tracekit.capture.control_folder` names them.
_CONTROL_NAME: Final = re.compile(r"(?:.*[/\\])?(?:request|ranks[/\\]rank\d+)\.json", re.DOTALL)
_MAX_OTHER_BYTES: Final = 16 * 1024 * 1024
_MAX_CONTROL_BYTES: Final = 64 << 10
_CONTROL_KEYS: Final = (
    {"rank", "world_size", "look_seconds"},
    {"steps"},
    {"seconds"},
    {"stop"},
)  # of a status, or a request

ANONYMOUS: Final = ".anonymous.json"
"""The ending of the copies of `tracekit anonymise` in place of that of the trace, without ``.gz``."""

CERTAIN_RANKS: Final = frozenset({METADATA_EVENT, "distributedInfo.rank"})
"""The sources of a rank that nothing outside the file can change."""

_ALIAS: Final = re.compile(r"(?:host|user)\\-\d+")
_ENDINGS: Final = (".json.gz.tmp", *sorted(TRACE_SUFFIXES, key=len, reverse=True), ".gz")


def trace_files(
    pattern: str, suffixes: Sequence[str] = TRACE_SUFFIXES, *, flight_dumps: bool = False, pipes: bool = False
) -> list[str]:
    """Return the traces at a path, glob, folder or URL, sorted by name.

    The path of a single file is returned without a check. The documents of on-demand capture are not traces. An
    ``xplane.pb`` of XLA's profiler is replaced by the trace next to it, which needs it for its start time. ``flight_dumps`` also
    finds torch's flight-recorder dumps in a folder: they have no suffix, or ``.bin``. ``pipes`` accepts a pipe, which can be read
    only once.

    Raises:
        ConfigError: ``pattern`` is empty, as an unset variable of a shell is.
        StorageError: Nothing is found, or a pipe is found and not accepted.
    """
    if not pattern:
        raise ConfigError("the path of a trace is empty; give a file, a folder (. for this one), a glob or a URL")
    found = expand(pattern, tuple(suffixes), _is_flight_dump if flight_dumps else None, pipes=pipes)
    found = list(dict.fromkeys(map(_trace_of_xplane, found)))
    if len(found) == 1 and same_file(found[0], pattern):
        return found
    traces = [path for path in found if not _is_control_document(path)]
    if not traces:
        raise StorageError(f"{pattern}: the only JSON files there are documents of on-demand capture, not traces")
    return traces


def is_other_json(path: str) -> bool:
    """Return True if a file that is not a trace is a whole JSON document, such as a report or settings."""
    text = b""
    try:
        with ByteStream(path) as stream:
            while (piece := stream.read()) and len(text) <= _MAX_OTHER_BYTES:
                text += piece
            if stream.damage or len(text) > _MAX_OTHER_BYTES:
                return False
        json.loads(text)
    except (TraceFormatError, StorageError, ValueError, RecursionError):
        return False
    return True


def _trace_of_xplane(path: str) -> str:
    stem = path.removesuffix(".xplane.pb")
    traces = [] if stem == path else [f"{stem}.trace.json.gz", f"{stem}.trace.json"]
    return next((trace for trace in traces if exists(trace)), path)


def _is_flight_dump(path: str) -> bool:
    """Return True for a flight-recorder dump: a name without a suffix or with ``.bin``, and the content of a dump."""
    name = basename(path)
    if "." in name and not name.endswith(".bin"):
        return False
    if is_remote(path) and rank_in_name(name) is None:  # opening every object of a bucket takes too long
        return False
    from tracekit.formats.flight_dump import is_flight_dump  # rarely needed

    try:
        with ByteStream(path) as stream:
            return is_flight_dump(stream.peek())
    except TracekitError:
        return False


def _is_control_document(path: str) -> bool:
    if not _CONTROL_NAME.fullmatch(path):
        return False
    try:
        with open_read(path) as file:
            data = file.read(_MAX_CONTROL_BYTES + 1)
        document = json.loads(data) if len(data) <= _MAX_CONTROL_BYTES else None
    except (StorageError, OSError, ValueError, RecursionError):
        return False
    return (
        isinstance(document, dict)
        and "traceEvents" not in document
        and any(keys <= document.keys() for keys in _CONTROL_KEYS)
    )


def files_of(patterns: Sequence[str], *, pipes: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield each file that a pattern matches, with True if the pattern is the file itself and not a folder or glob."""
    for pattern in patterns:
        files = trace_files(pattern, flight_dumps=True, pipes=pipes)
        named = len(files) == 1 and same_file(files[0], pattern)
        yield from ((path, named) for path in files)


def find_traces(patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the files that the patterns match, each once, and whether it was named itself (not by folder or glob).

    Raises:
        ConfigError: Nothing was named.
        StorageError: A pattern matches nothing.
    """
    if not patterns:
        raise ConfigError("no trace is named: give files, folders, globs or URLs")
    found: dict[str, bool] = {}
    places: dict[str, str] = {}
    for path, named in files_of(patterns, pipes=True):  # each trace is read once
        key = path if is_remote(path) else str(PurePath(path))
        # Two names of one file are one, also where one is a link.
        key = places.setdefault(path if is_remote(path) else str(Path(path).resolve()), key)
        found[key] = found.get(key, False) or named
    return [(path, named) for path, named in sorted(found.items()) if named or not omission_reason(path, found)]


def omission_reason(path: str, files: Collection[str]) -> str:
    """Return the reason why the events of a file are those of another one of these files; empty if they are not."""
    if any(copy in files for copy in recovered_copies(path)):
        return "its recovered copy is merged instead"
    stem, is_anonymous, _ = path.rpartition(ANONYMOUS)
    if is_anonymous:
        # Words stand for the hosts and users in the name.
        name = _ALIAS.sub(".+", re.escape(stem))
        source = re.compile(f"{name}(?:{'|'.join(map(re.escape, _ENDINGS))})") if name != re.escape(stem) else None
        if any(f"{stem}{ending}" in files for ending in _ENDINGS) or (
            source is not None and any(source.fullmatch(file) for file in files if ANONYMOUS not in file)
        ):
            return "the trace that it is an anonymous copy of is merged instead"
    return ""


def recovered_copies(path: str) -> tuple[str, str]:
    """Return the names that `tracekit recover` gives the copy of a trace: plain, and packed."""
    return copy_name(path, ".recovered.json"), copy_name(path, ".recovered.json.gz")


def copy_name(path: str, ending: str) -> str:
    """Return the name of a copy in the folder of a trace, with another ending."""
    path = path.split("?", 1)[0] if is_remote(path) else path
    own = next((own for own in _ENDINGS if path.endswith(own) and basename(path) != own), "")
    return path.removesuffix(own) + ending


def rank_inside(
    header: dict[str, Any], metadata: dict[str, Any], composer_ranks: Collection[int] = ()
) -> tuple[int, str] | None:
    """Return the rank that a trace states inside, and the event or key that states it; None when none does.

    ``composer_ranks`` are the ranks in Composer's metadata: several where Composer has merged.
    """
    own = whole_number(metadata.get("rank"))
    if own is not None:
        return own, METADATA_EVENT
    composer = [(rank, COMPOSER_RANK_EVENT) for rank in composer_ranks]
    return rank_of_header(header) or (composer[0] if len(composer) == 1 else None)


def stated_rank(
    path: str, inside: tuple[int, str] | None, companions: Mapping[str, int] | None = None, anchored: int | None = None
) -> tuple[int, str] | None:
    """Return the rank of a trace, and what states it; None when nothing does.

    ``inside`` is the result of `rank_inside`, ``companions`` has the rank of each file that a rank trace names as a trace of
    its process, and ``anchored`` is the rank in the clock anchor of a trace of XLA's profiler.
    """
    name = printable_name(path)
    if inside is not None and inside[1] in CERTAIN_RANKS:
        return inside
    if anchored is not None:
        return anchored, ANCHOR_EVENT
    if companions and name in companions:
        return companions[name], COMPANION_EVENT
    in_name = rank_in_name(name)
    return inside or (None if in_name is None else (in_name, "file name"))


def base_of(header: dict[str, Any], metadata: dict[str, Any]) -> int:
    """Return the base of the times of a file in ns since the epoch; 0 if the file does not state it."""
    viztracer = header.get("viztracer_metadata")
    base = metadata.get(BASE_TIME_KEY, header.get(BASE_TIME_KEY))
    if base is None and isinstance(viztracer, dict):
        base = viztracer.get(BASE_TIME_KEY)
    if isinstance(base, float) and 0 < base < 2**62:
        # A double holds it to 256 ns, and Kineto's bases are whole seconds.
        base = round(base / 1e9) * 10**9
    return whole_number(base, 2**62) or 0


class RunFolder(Struct, frozen=True, order=True):
    """A folder with the traces of a run. Later ones are greater."""

    modified_s: float  # time of the last write to a trace, since the epoch
    path: Path
    files: int
    size_bytes: int


def find_runs(root: Path) -> Iterator[RunFolder]:
    """Yield the runs at and below a folder, in no order.

    A folder below a run, such as that of the JAX traces, is not a run. The root may hold traces and runs.
    """
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if not any(name.endswith(TRACE_SUFFIXES) for name in files):
            continue
        parent = Path(place)
        try:
            status = [Path(path).stat() for path in trace_files(place) if parent != root or Path(path).parent == root]
        except (StorageError, OSError):
            continue  # only documents of captures, or it is being removed
        if not status:
            continue
        if parent != root:
            folders.clear()
        modified_s, size_bytes = max(found.st_mtime for found in status), sum(found.st_size for found in status)
        yield RunFolder(modified_s, parent, len(status), size_bytes)
