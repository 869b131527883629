"""Trace handlers that do what a recorder must not do, each one thing, so that fault tests can be shown to notice it.

`make_writer` gives a handler by name, `GOOD` the one of tracekit; see `tests.faults.bites` for how tests use them.
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

from tracekit import JSONTraceHandler, TraceHandler
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.formats.rank_trace import METADATA_EVENT, SUMMARY_EVENT, base_time_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, Summary

__all__ = ["BAD", "GOOD", "Blocks", "RaisesAlways", "RaisesSometimes", "make_writer"]

GOOD = "tracekit"


class _Writer(TraceHandler):
    """Writes the same lines as the handler of tracekit; the subclasses differ in how."""

    profiler_options: ClassVar[dict[str, Any]] = {}
    """What the profiler is made with, when the badness is not in the handler."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path).removesuffix(".gz")

    def for_children(self) -> Callable[[str], TraceHandler]:
        return functools.partial(_child_writer, type(self), self.path)

    def open(self, recording: Recording) -> None:
        base_ns = base_time_ns(recording.anchor.wall_ns)
        self.encoder = ChromeEncoder(recording.process.pid, base_ns)
        clock = {"wall_ns": recording.anchor.wall_ns, "monotonic_ns": recording.anchor.monotonic_ns, "error_ns": 0}
        head = {"rank": recording.process.rank, "baseTimeNanoseconds": base_ns, "clock": clock}
        self.begin(self.encoder.metadata(METADATA_EVENT, head))

    def process_events(self, batch: EventBatch) -> None:
        self.write(self.encoder.encode(batch))

    def summary(self, summary: Summary) -> None:
        counts = {name: getattr(summary, name) for name in ("slices", "instants", "counters", "dropped", "failures")}
        self.write(self.encoder.metadata(SUMMARY_EVENT, counts))

    def begin(self, head: bytes) -> None:
        """Make the file."""
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(self.descriptor, b"[\n" + head)

    def write(self, lines: bytes) -> None:
        """Write whole lines."""
        os.write(self.descriptor, lines)

    def close(self) -> None:
        os.close(self.descriptor)


def _child_writer(kind: type[_Writer], path: str, child: str) -> _Writer:
    return kind(path.replace(".json", f"-{child.replace(' ', '')}-{os.getpid()}.json"))


class ObjectAtClose(_Writer):
    """Keeps everything in memory and writes one JSON object at the end, as most recorders do."""

    def begin(self, head: bytes) -> None:
        self.lines = [head]

    def write(self, lines: bytes) -> None:
        self.lines.append(lines)

    def close(self) -> None:
        Path(self.path).write_bytes(b'{"traceEvents":[\n' + b"".join(self.lines).removesuffix(b",\n") + b"\n]}\n")


class ObjectForm(_Writer):
    """Streams the object form, which Perfetto refuses as a whole when it is cut."""

    def begin(self, head: bytes) -> None:
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(self.descriptor, b'{"traceEvents":[\n' + head)


class PythonBuffer(_Writer):
    """Writes through Python's buffer and never flushes it: a quiet process keeps its last events for hours."""

    def begin(self, head: bytes) -> None:
        self.file: BinaryIO = Path(self.path).open("xb")  # noqa: SIM115 - open until close()
        self.file.write(b"[\n" + head)
        self.file.flush()

    def write(self, lines: bytes) -> None:
        self.file.write(lines)

    def close(self) -> None:
        self.file.close()


class TearsRecords(_Writer):
    """Leaves half of a record in the middle of the file, as after a short write that is not cut back."""

    def write(self, lines: bytes) -> None:
        os.write(self.descriptor, lines[: len(lines) - 20])


class InPieces(_Writer):
    """Writes a record in pieces, one call each, so that a kill between them tears it."""

    def write(self, lines: bytes) -> None:
        for start in range(0, len(lines), 10):
            os.write(self.descriptor, lines[start : start + 10])


class HeadLater(_Writer):
    """Makes the file first and writes its head with the first events: until then the file is empty."""

    def begin(self, head: bytes) -> None:
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.head = b"[\n" + head

    def write(self, lines: bytes) -> None:
        os.write(self.descriptor, self.head)
        self.head = b""
        os.write(self.descriptor, lines)


class LosesSilently(_Writer):
    """Leaves out one record in a thousand, and counts it as written.

    Only records that stand for themselves are counted and lost: a lost name of a thread, a lost end of a slice whose begin is
    there, or a lost counter without values is no lost event, and which records stand at which place differs from run to run.
    """

    seen = 0

    def process_events(self, batch: EventBatch) -> None:
        lines = self.encoder.encode(batch).splitlines(keepends=True)
        kept = []
        for line in lines:
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

    def process_events(self, batch: EventBatch) -> None:
        lines = self.encoder.encode(batch).splitlines(keepends=True)
        self.write(b"".join(line for line in lines if b'"ph":"B"' not in line))


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


class RaisesAlways(TraceHandler):
    """Raises in every method that the writer calls.

    Args:
        error: What is raised.
        methods: Where; everywhere if none are given.
    """

    def __init__(self, error: type[BaseException] = RuntimeError, *methods: str) -> None:
        self.calls = 0
        for name in methods or (
            "process_events",
            "flush",
            "batch_start",
            "batch_end",
            "clock_anchor",
            "summary",
            "close",
        ):
            setattr(self, name, self._raiser(name, error))

    def _raiser(self, name: str, error: type[BaseException]) -> Callable[..., None]:
        def raise_(*_: object) -> None:
            self.calls += 1
            if self.due():
                raise error(f"bad handler: {name}")

        return raise_

    def due(self) -> bool:
        """Return whether this call fails."""
        return True


class RaisesSometimes(RaisesAlways):
    """Raises in one of ``every`` calls."""

    every = 1000

    def due(self) -> bool:
        return self.calls % self.every == 0


class Blocks(TraceHandler):
    """Hangs in a method, as a storage without a time limit does, for some seconds or until it is let go.

    Args:
        method: Where it hangs.
        seconds: For how long at most.
    """

    def __init__(self, method: str = "process_events", seconds: float = 3600.0) -> None:
        self.blocked = threading.Event()
        """Set when it hangs."""
        self.let_go = threading.Event()
        """Set it to let it go."""
        self._seconds = seconds
        setattr(self, method, self._hang)

    def _hang(self, *_: object) -> None:
        self.blocked.set()
        end = time.monotonic() + self._seconds
        while not self.let_go.wait(0.05) and time.monotonic() < end:
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
"""The bad writers of trace files, by name."""


def make_writer(name: str, path: str | Path) -> TraceHandler:
    """Return a handler that writes a rank trace: tracekit's own for `GOOD`, or a bad one."""
    return JSONTraceHandler(path) if name == GOOD else BAD[name](path)
