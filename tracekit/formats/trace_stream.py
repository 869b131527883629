"""Open a trace of any form as a stream of Chrome JSON. The content decides the form, not the file name."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

from tracekit.formats.byte_stream import PIECE_BYTES, ByteStream, ConvertedStream
from tracekit.storage import modified_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.formats.byte_stream import TraceStream

# The beginning of most JSON traces, and of no other form. It saves loading the modules of other forms.
_USUAL: Final = re.compile(rb'(?!\n)\s*\[|\s*\{\s*"(?:schemaVersion|traceEvents)"')
# The beginning of an event whose line goes on. Not compiled here, since few files need it.
_CUT_LINE: Final = rb'\{(?:\s*"(?!traceEvents")[^"\\]*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)\s*,)*\s*"ph"\s*:\s*"'
_LINE_END: Final = re.compile(rb"\}([ \t\r]*)\n(?=\s*\{)")


# The forms of traces that are not JSON of the Trace Event Format.
FOREIGN_FORMS: Final = {
    "pftrace": "a native trace of Perfetto (pftrace)",
    "flight recorder": "a dump of torch's flight recorder",
}


def form_of(head: bytes) -> str:
    """Return the form of a trace from its first bytes: one of `FOREIGN_FORMS`, "JSON lines", or empty for any other file."""
    if _USUAL.match(head):
        return ""
    from tracekit.formats.flight_dump import is_flight_dump
    from tracekit.formats.pftrace_stream import is_pftrace

    if is_pftrace(head):
        return "pftrace"
    if _is_json_lines(head):
        return "JSON lines"
    return "flight recorder" if is_flight_dump(head) else ""


def open_trace(path: str, limit_bytes: int | None = None) -> TraceStream:
    """Open a trace as a stream of Chrome JSON.

    Args:
        path: The file or URL.
        limit_bytes: Maximum number of bytes to read from the file; None for all.
    """
    source = ByteStream(path, limit_bytes)
    form = form_of(source.peek())
    if form == "pftrace":
        from tracekit.formats.pftrace_stream import PftraceStream

        return PftraceStream(source)
    if form == "flight recorder":
        from tracekit.formats.flight_dump import FlightDumpStream

        return FlightDumpStream(source, modified_ns(path))
    return JsonLinesStream(source) if form else source


def content_digest(path: str) -> bytes:
    """Return a digest of the result of `open_trace`. It is the same for a plain file and its packed copy."""
    digest = hashlib.sha256()
    with open_trace(path) as stream:
        while piece := stream.read():
            digest.update(piece)
    return digest.digest()


def _is_json_lines(head: bytes) -> bool:
    text = head.lstrip()
    if not text.startswith(b"{"):
        return False
    line, newline, _ = text.partition(b"\n")
    if not newline and len(head) >= PIECE_BYTES:  # the line goes on
        return re.match(_CUT_LINE, line) is not None
    try:
        first = json.loads(line.decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and isinstance(first.get("ph"), str) and "traceEvents" not in first


class JsonLinesStream(ConvertedStream):
    """Reads JSON lines as an array."""

    foreign = "JSON lines"

    def _convert(self) -> Iterator[bytes]:
        held = b"["
        while piece := self._source.read():
            text = held + piece
            at = text.rfind(b"}")
            # An event may follow in the next piece.
            cut = at if at >= 0 and not text[at + 1 :].strip() else len(text)
            held = text[cut:]
            yield _LINE_END.sub(rb"},\1", text[:cut])
        # A cut file stays an array without an end, which the reader reports.
        yield held + b"]" if held.startswith(b"}") else held
