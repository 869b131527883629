"""Input discovery: find the trace files at a path, folder, glob or URL."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError, TraceFormatError, TracekitError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.kineto import rank_in_name
from tracekit.storage import basename, exists, expand, is_remote, open_read, same_file

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACE_SUFFIXES: Final = (".json", ".json.gz", ".json.zst", ".json.tmp", ".pftrace", ".pftrace.gz", ".pftrace.zst")
"""Suffixes of trace files."""

# As `tracekit.capture.folder` names them.
_CONTROL_NAME: Final = re.compile(r"(?:.*[/\\])?(?:request|ranks[/\\]rank\d+)\.json", re.DOTALL)
_MAX_OTHER_BYTES: Final = 16 * 1024 * 1024
_MAX_CONTROL_BYTES: Final = 64 << 10
_CONTROL_KEYS: Final = (
    frozenset({"rank", "world_size", "look_seconds"}),  # the status of a rank
    frozenset({"steps"}),  # a request
    frozenset({"seconds"}),
    frozenset({"stop"}),
)


def trace_files(
    pattern: str, suffixes: Sequence[str] = TRACE_SUFFIXES, *, flight_dumps: bool = False, pipes: bool = False
) -> list[str]:
    """Return the traces at a path, glob, folder or URL, sorted by name.

    The path of a single file is returned without a check. The documents of on-demand capture are not traces. An
    ``xplane.pb`` of XLA's profiler is replaced by the trace next to it, which needs it for its start time.

    Args:
        pattern: Path, glob, folder or URL.
        suffixes: Suffixes of the traces in a folder.
        flight_dumps: Also find the flight-recorder dumps of torch in a folder. They have no suffix, or ``.bin``.
        pipes: Accept a pipe, which can be read only once.

    Raises:
        StorageError: Nothing is found, or a pipe is found and not accepted.
    """
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
