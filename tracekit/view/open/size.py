"""Decide if a trace is small enough for Perfetto in a browser."""

from __future__ import annotations

import zipfile
from typing import Final

from tracekit.errors import TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.storage import basename, size_bytes
from tracekit.view.open.ui import PERFETTO_UI
from tracekit.wording import size_words

BROWSER_LIMIT_BYTES: Final = 1_000_000_000
"""The engine in the browser has 4 GB, and takes about 2.7 bytes for each byte of JSON (measured: 347 MB took 0.94 GB); from
0.9 GB on users report that the tab dies (google/perfetto issue 99, pytorch/kineto issue 595)."""

_ADVICE_BYTES: Final = 500_000_000
_LOADING_BYTES_PER_S: Final = 30_000_000  # measured with the engine v52; 2 to 5 times as many without arguments


def counted_bytes(path: str, limit_bytes: int = BROWSER_LIMIT_BYTES) -> int:
    """Return the unpacked size of a file or an archive; beyond the limit, any number above it, in bounded time and memory.

    Raises StorageError if it cannot be read, TraceFormatError if it is called .zip and is none.
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
    """Return what to do with a trace of ``count`` unpacked bytes that is too big for a browser; None for others."""
    if count <= limit_bytes:
        return None
    return (
        f"{path}: too big for Perfetto in a browser: more than {size_words(limit_bytes)} unpacked, and the tab would run out of "
        f"memory. Take a part of it (tracekit trim --steps 10:20 -o part.json.gz {path}), split it by time (tracekit split "
        f"--seconds 10 {path}), leave out the arguments of events (tracekit open --args none {path}), or let the native trace "
        f"processor load it (trace_processor server http {path}, then open {PERFETTO_UI}); or pass --force to try all the same"
    )


def loading_advice(count: int, event_args: str) -> str | None:
    """Return how long Perfetto loads a trace of ``count`` unpacked bytes and what shortens it; None for a small one."""
    if count <= _ADVICE_BYTES:
        return None
    size = (
        f"{size_words(count)} unpacked"
        if count <= BROWSER_LIMIT_BYTES
        else f"more than {size_words(BROWSER_LIMIT_BYTES)}"
    )
    advice = f"{size}: Perfetto takes about {count / _LOADING_BYTES_PER_S:.0f} s to load this"
    if event_args == "all":
        advice += "; without arguments of events it loads 2 to 5 times as fast: pass --args ids or --args none"
    return advice
