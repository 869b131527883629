"""Whether a trace is small enough for Perfetto in a browser."""

from __future__ import annotations

import zipfile
from typing import Final

from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.storage import basename, size_bytes
from tracekit.viewing.ui import PERFETTO_UI
from tracekit.wording import size_words

__all__ = ["BROWSER_LIMIT_BYTES", "counted_bytes", "too_big"]

BROWSER_LIMIT_BYTES: Final = 1_000_000_000
"""The engine in the browser has 4 GB, and takes about 2.7 bytes for each byte of JSON (measured: 347 MB took 0.94 GB); from
0.9 GB on users report that the tab dies (google/perfetto issue 99, pytorch/kineto issue 595)."""


def counted_bytes(path: str, limit_bytes: int = BROWSER_LIMIT_BYTES) -> int:
    """Return how large a trace is once it is unpacked; of one beyond the limit, a number above the limit.

    Time and memory are bounded by the limit, whatever a packed file claims.

    Args:
        path: A file: JSON or pftrace, plain or gzip; or an archive of such.
        limit_bytes: Where to stop counting.

    Raises:
        StorageError: It cannot be read.
        TraceFormatError: It is called .zip and is none.
    """
    if basename(path).endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as archive:
                return sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile as error:
            raise TraceFormatError(path, f"this is no zip archive: {error}") from error
    with ByteStream(path) as stream:
        if not stream.compressed:
            return size_bytes(path) or 0
        count = 0
        while count <= limit_bytes and (piece := stream.read()):
            count += len(piece)
        return count


def too_big(path: str, count: int, limit_bytes: int = BROWSER_LIMIT_BYTES) -> str | None:
    """Return what to say of a trace that is too big for a browser, and what to do; None for one that is not.

    Args:
        path: The trace, as it may be printed.
        count: Its unpacked size in bytes, as `counted_bytes` returns it.
        limit_bytes: The limit.
    """
    if count <= limit_bytes:
        return None
    return (
        f"{path}: too big for Perfetto in a browser: more than {size_words(limit_bytes)} unpacked, and the tab would run out of "
        f"memory. Take a part of it (tracekit trim --steps 10:20 -o part.json.gz {path}), split it by time (tracekit split "
        f"--seconds 10 {path}), or let the native trace processor load it (trace_processor server http {path}, then open "
        f"{PERFETTO_UI}); or pass --force to try all the same"
    )
