"""A trace of any form as a stream of Chrome JSON; its content tells the form, not its name."""

from __future__ import annotations

import hashlib
from contextlib import closing

from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.flight_dump import FlightDumpStream, is_flight_dump
from tracekit.formats.pftrace_stream import PftraceStream, is_pftrace
from tracekit.storage import modified_ns

__all__ = ["TraceStream", "content_digest", "foreign_form", "open_trace"]

TraceStream = ByteStream | PftraceStream | FlightDumpStream


def foreign_form(head: bytes) -> str:
    """Return, in words, what a trace is that begins so and is no JSON of the Trace Event Format; empty where it may be that."""
    if is_pftrace(head):
        return "a native trace of Perfetto (pftrace)"
    return "a dump of torch's flight recorder" if is_flight_dump(head) else ""


def open_trace(path: str) -> TraceStream:
    """Open a trace as a stream of Chrome JSON.

    Raises:
        StorageError: The file is not there or cannot be read.
    """
    source = ByteStream(path)
    head = source.peek()
    if is_pftrace(head):
        return PftraceStream(source)
    return FlightDumpStream(source, modified_ns(path)) if is_flight_dump(head) else source


def content_digest(path: str) -> bytes:
    """Return a digest of a trace as `open_trace` reads it: the same for a plain file and its packed copy.

    Raises:
        StorageError: The file is not there or cannot be read.
    """
    digest = hashlib.sha256()
    with closing(open_trace(path)) as stream:
        while piece := stream.read():
            digest.update(piece)
    return digest.digest()
