"""Trace handlers with one mistake each: `test_biting` shows that fault tests notice it.

At the end, handlers that raise and hang, beside which others must go on.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import orjson

from tracekit import TraceHandler
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.formats.rank_trace import METADATA_EVENT, SUMMARY_EVENT, base_time_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, Summary

__all__ = ["BAD", "BAD_REMOTE", "Blocks", "RaisesAlways", "RaisesSometimes"]


class _Writer(TraceHandler):
    """Writes the same lines as the handler of tracekit; the subclasses differ in how."""

    profiler_options: ClassVar[dict[str, Any]] = {}
    """What the profiler is made with, when the badness is not in the handler."""
    opening = b"[\n"

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path).removesuffix(".gz")

    def for_children(self) -> Callable[[str], TraceHandler]:
        return functools.partial(_child_writer, type(self), self.path)

    def open(self, recording: Recording) -> None:
        base_ns = base_time_ns(recording.anchor.wall_ns)
        self.encoder = ChromeEncoder(recording.process.pid, base_ns)
        clock = {"wall_ns": recording.anchor.wall_ns, "monotonic_ns": recording.anchor.monotonic_ns, "error_ns": 0}
        head = {"rank": recording.process.rank, "baseTimeNanoseconds": base_ns, "clock": clock}
        self.begin(self.opening + self.encoder.metadata(METADATA_EVENT, head))

    def process_events(self, batch: EventBatch) -> None:
        self.write(self.encoder.encode(batch))

    def summary(self, summary: Summary) -> None:
        counts = {name: getattr(summary, name) for name in ("slices", "instants", "counters", "dropped", "failures")}
        self.write(self.encoder.metadata(SUMMARY_EVENT, counts))

    def begin(self, head: bytes) -> None:
        """Make the file."""
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(self.descriptor, head)

    def write(self, lines: bytes) -> None:
        """Write whole lines."""
        os.write(self.descriptor, lines)

    def close(self) -> None:
        os.close(self.descriptor)


def _child_writer(kind: type[_Writer], path: str, child: str) -> _Writer:
    return kind(path.replace(".json", f"-{child.replace(' ', '')}-{os.getpid()}.json"))


class ObjectAtClose(_Writer):
    """Keeps everything in memory and writes one JSON object at the end, as most recorders do."""

    opening = b'{"traceEvents":[\n'

    def begin(self, head: bytes) -> None:
        self.lines = [head]

    def write(self, lines: bytes) -> None:
        self.lines.append(lines)

    def close(self) -> None:
        Path(self.path).write_bytes(b"".join(self.lines).removesuffix(b",\n") + b"\n]}\n")


class ObjectForm(_Writer):
    """Streams the object form, which Perfetto refuses as a whole when it is cut."""

    opening = b'{"traceEvents":[\n'


class PythonBuffer(_Writer):
    """Writes through Python's buffer and never flushes it: a quiet process keeps its last events for hours."""

    def begin(self, head: bytes) -> None:
        self.file: BinaryIO = Path(self.path).open("xb")  # noqa: SIM115 - open until close()
        self.file.write(head)
        self.file.flush()

    def write(self, lines: bytes) -> None:
        self.file.write(lines)

    def close(self) -> None:
        self.file.close()


class TearsRecords(_Writer):
    """Leaves half of a record in the middle of the file, as after a short write that is not cut back."""

    def write(self, lines: bytes) -> None:
        super().write(lines[:-20])


class InPieces(_Writer):
    """Writes a record in pieces, one call each, so that a kill between them tears it."""

    def write(self, lines: bytes) -> None:
        for start in range(0, len(lines), 10):
            super().write(lines[start : start + 10])


class HeadLater(_Writer):
    """Makes the file first and writes its head with the first events: until then the file is empty."""

    def begin(self, head: bytes) -> None:
        super().begin(b"")
        self.head = head

    def write(self, lines: bytes) -> None:
        super().write(self.head)
        self.head = b""
        super().write(lines)


class LosesSilently(_Writer):
    """Leaves out one record in a thousand, and counts it as written.

    Only records that stand for themselves are counted and lost: a lost name of a thread, a lost end of a slice whose begin is
    there, or a lost counter without values is no lost event, and which records stand at which place differs from run to run.
    """

    seen = 0

    def process_events(self, batch: EventBatch) -> None:
        kept = []
        for line in self.encoder.encode(batch).splitlines(keepends=True):
            whole = any(phase in line for phase in (b'"ph":"X"', b'"ph":"i"', b'"ph":"C"')) and b'"args":{}' not in line
            self.seen += whole
            if not (whole and self.seen % 1000 == 17):
                kept.append(line)
        self.write(b"".join(kept))


class OneTrack(_Writer):
    """Puts all threads and tasks on one track, where what overlaps is lost."""

    def write(self, lines: bytes) -> None:
        super().write(re.sub(rb'"tid":\d+', b'"tid":1', lines))


class NeverFlushes(_Writer):
    """Is delivered to once an hour."""

    profiler_options: ClassVar[dict[str, Any]] = {"flush_interval": 3600.0}


class OnlyWholeSlices(_Writer):
    """Writes no slice before it has ended: what a process hangs in never shows."""

    def write(self, lines: bytes) -> None:
        super().write(b"".join(line for line in lines.splitlines(keepends=True) if b'"ph":"B"' not in line))


class PythonJSON(_Writer):
    """Leaves the encoding to Python's ``json``, which writes characters as two escapes: Perfetto refuses the file."""

    def write(self, lines: bytes) -> None:
        events = [orjson.loads(line.removesuffix(b",")) for line in lines.splitlines()]
        super().write(b"".join(json.dumps(event).encode() + b",\n" for event in events))


class LocksAfterFork(_Writer):
    """Takes, in a forked child, a lock that the writer thread may have held at the fork: the child hangs."""

    def begin(self, head: bytes) -> None:
        super().begin(head)
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self.lock.acquire)

    def write(self, lines: bytes) -> None:
        with self.lock:
            time.sleep(0.05)
            super().write(lines)


class StreamsToObject(_Writer):
    """Writes into a remote object that stays open for the whole recording: nothing is there before its end."""

    def begin(self, head: bytes) -> None:
        import fsspec

        self.file: Any = fsspec.open(self.path, "wb").open()
        self.file.write(head)

    def write(self, lines: bytes) -> None:
        self.file.write(lines)
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class UploadsAtClose(_Writer):
    """Writes a local file, and uploads it on the thread that records when it is complete: no retry, no deadline."""

    def begin(self, head: bytes) -> None:
        self.url, self.path = self.path, "local.json"
        super().begin(head)

    def close(self) -> None:
        import fsspec

        super().close()
        filesystem, inner = fsspec.core.url_to_fs(self.url)
        filesystem.put_file(self.path, inner)
        os.unlink(self.path)


class UploadsEachFlush(_Writer):
    """Writes the remote object anew with every flush, on the thread that records, over whatever is there."""

    def begin(self, head: bytes) -> None:
        self.data = head

    def write(self, lines: bytes) -> None:
        import fsspec

        self.data += lines
        filesystem, inner = fsspec.core.url_to_fs(self.path)
        filesystem.pipe_file(inner, self.data)

    def close(self) -> None:
        pass


BAD: dict[str, type[_Writer]] = {
    "head later": HeadLater,
    "in pieces": InPieces,
    "locks after fork": LocksAfterFork,
    "loses silently": LosesSilently,
    "never flushes": NeverFlushes,
    "object at close": ObjectAtClose,
    "object form": ObjectForm,
    "one track": OneTrack,
    "only whole slices": OnlyWholeSlices,
    "python buffer": PythonBuffer,
    "python json": PythonJSON,
    "tears records": TearsRecords,
}
BAD_REMOTE: dict[str, type[_Writer]] = {
    "streams to object": StreamsToObject,
    "uploads at close": UploadsAtClose,
    "uploads each flush": UploadsEachFlush,
}


class RaisesAlways(TraceHandler):
    """Raises in every method that the writer calls.

    Args:
        error: What is raised.
        methods: Where; everywhere if none are given.
    """

    ALL = ("process_events", "flush", "batch_start", "batch_end", "clock_anchor", "summary", "close")

    def __init__(self, error: type[BaseException] = RuntimeError, *methods: str) -> None:
        self.calls = 0
        for name in methods or self.ALL:
            setattr(self, name, functools.partial(self._raise, error, name))

    def _raise(self, error: type[BaseException], name: str, *_: object) -> None:
        self.calls += 1
        if self.due():
            raise error(f"bad handler: {name}")

    def due(self) -> bool:
        """Return whether this call fails."""
        return True


class RaisesSometimes(RaisesAlways):
    """Raises in one of ``every`` calls."""

    every = 1000

    def due(self) -> bool:
        return self.calls % self.every == 0


class Blocks(TraceHandler):
    """Hangs in a method for an hour, as a storage without a time limit does.

    Args:
        method: Where it hangs.
    """

    def __init__(self, method: str = "process_events") -> None:
        self.blocked = threading.Event()
        """Set when it hangs."""
        setattr(self, method, self._hang)

    def _hang(self, *_: object) -> None:
        self.blocked.set()
        time.sleep(3600)
