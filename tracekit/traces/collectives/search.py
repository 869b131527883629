"""Find events by name in the bytes of a trace, without reading the events between them."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Final

from tracekit.formats.json.reader import decode
from tracekit.formats.json.window import scan_value
from tracekit.formats.trace_event import UNSET, Event
from tracekit.formats.trace_stream import open_trace
from tracekit.storage import open_read, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

_REACH_BYTES: Final = 64 * 1024  # an event that is larger is not found

_TRIES: Final = 16
_TEXT_BYTES: Final = 1024 * 1024
_MIN_SAMPLE_BYTES: Final = 1024 * 1024
_MAX_SAMPLE_BYTES: Final = 16 * 1024 * 1024
_SAMPLE_SHARE: Final = 1 / 20
_PROBE_BYTES: Final = 32 * 1024
_has_gpu: Final = re.compile(b'"kernel"|"gpu_').search


def find_events(
    path: str,
    words: Sequence[bytes],
    follow: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
    limit_bytes: int | None = None,
) -> Iterator[Event]:
    """Yield the events of a trace in any form with a name that begins with one of ``words``, in the order of the file.

    The words are JSON, with the opening quote. ``follow`` passes on the unpacked pieces of the trace, for a search for something
    else in them. At most ``limit_bytes`` of a plain file are read.
    """
    with closing(open_trace(path, limit_bytes)) as stream:
        yield from _find(follow(iter(stream.read, b"")), words)


def find_sampled_events(path: str, words: Sequence[bytes]) -> Iterator[Event] | None:
    """Yield the same events from a few parts of a trace: its ends, and where the work of the GPU begins.

    torch.profiler writes the work of the CPU before that of the GPU, each in the order of time. These parts hold the first and
    the last events of both, so the samples of all ranks are of the same parts of a run. Return None for a trace that cannot be
    read in parts (packed, foreign), or that is hardly larger than the sample.
    """
    size = size_bytes(path) or 0
    sample_bytes = max(_MIN_SAMPLE_BYTES, min(int(size * _SAMPLE_SHARE), _MAX_SAMPLE_BYTES))
    if size < 2 * sample_bytes:
        return None
    with closing(open_trace(path)) as stream:
        if stream.foreign or stream.compressed:
            return None
    return _sampled(path, size, sample_bytes, words)


def _sampled(path: str, size: int, sample_bytes: int, words: Sequence[bytes]) -> Iterator[Event]:
    half, quarter = sample_bytes // 2, sample_bytes // 4
    with open_read(path) as file:
        parts = [(0, half), (size - half, size)]
        if not _has_gpu(_part(file, *parts[0])) and _has_gpu(_part(file, *parts[1])):
            begin = _begin_of_gpu(file, half, size - half)
            parts = [(0, quarter), (begin - quarter, begin + quarter), (size - quarter, size)]
        for start, end in parts:
            yield from _find(iter([_part(file, start, end)]), words)


def _part(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def _begin_of_gpu(file: BinaryIO, low: int, high: int) -> int:
    """Return about where the first event of a GPU is; there is one at the end of the range, and none at its start."""
    while high - low > _PROBE_BYTES:
        at = (low + high) // 2
        low, high = (low, at) if _has_gpu(_part(file, at, at + _PROBE_BYTES)) else (at, high)
    return high


def _find(pieces: Iterator[bytes], words: Sequence[bytes]) -> Iterator[Event]:
    """Yield the events of a text that comes in pieces."""
    text, start, last = b"", 0, False
    while not last:
        batch, size_bytes = [text], 0
        while size_bytes < _TEXT_BYTES and not last:
            piece = next(pieces, None)
            last = piece is None
            batch.append(piece or b"")
            size_bytes += len(batch[-1])
        text = b"".join(batch)
        end = len(text) if last else max(start, len(text) - _REACH_BYTES)
        places = []
        for word in words:
            at = text.find(word, start, end + len(word))
            while 0 <= at < end:
                places.append(at)
                at = text.find(word, at + 1, end + len(word))
        for at in sorted(places):
            event = _event_around(text, at)
            if event is not None and event.name is not UNSET and bytes(event.name).startswith(tuple(words)):
                yield event
        kept = max(0, end - _REACH_BYTES)
        text, start = text[kept:], end - kept


def _event_around(text: bytes, at: int) -> Event | None:
    """Return the event that has a string at a place; None if the string belongs to a nested object."""
    begin = at
    for _ in range(_TRIES):
        begin = text.rfind(b"{", max(0, at - _REACH_BYTES), begin)
        if begin < 0:
            break
        found = text[begin : begin + _REACH_BYTES]
        end, is_whole = scan_value(found, 0)
        if is_whole and begin + end > at:
            event = decode(found[:end])
            return None if event is None or event.ph is UNSET else event
    return None
