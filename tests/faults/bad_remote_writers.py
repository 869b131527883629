"""Trace handlers that treat a remote storage as they must not, so that its fault tests can be shown to notice it."""

from __future__ import annotations

import os
from typing import Any

from tests.faults.bad_writers import GOOD, _Writer
from tracekit import JSONTraceHandler, TraceHandler
from tracekit.outbox import remote
from tracekit.outbox.upload import Retry

__all__ = ["BAD_REMOTE", "impatient", "make_remote_writer"]


class StreamsToObject(_Writer):
    """Writes into an object that stays open for the whole recording: nothing is there before its end."""

    url = ""

    def begin(self, head: bytes) -> None:
        import fsspec

        self.file: Any = fsspec.open(self.url, "wb").open()
        self.file.write(b"[\n" + head)

    def write(self, lines: bytes) -> None:
        self.file.write(lines)
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class UploadsAtClose(_Writer):
    """Writes a local file, and uploads it on the thread that records when it is complete: no retry, no deadline."""

    url = ""

    def begin(self, head: bytes) -> None:
        super().begin(b"" + head)

    def close(self) -> None:
        import fsspec

        super().close()
        filesystem, inner = fsspec.core.url_to_fs(self.url)
        filesystem.put_file(self.path, inner)
        os.unlink(self.path)


class UploadsEachFlush(StreamsToObject):
    """Writes the object anew with every flush, on the thread that records, over whatever is there."""

    def begin(self, head: bytes) -> None:
        self.data = b"[\n" + head

    def write(self, lines: bytes) -> None:
        import fsspec

        self.data += lines
        filesystem, inner = fsspec.core.url_to_fs(self.url)
        filesystem.pipe_file(inner, self.data)

    def close(self) -> None:
        pass


BAD_REMOTE: dict[str, type[Any]] = {
    "streams to object": StreamsToObject,
    "uploads at close": UploadsAtClose,
    "uploads each flush": UploadsEachFlush,
}


def make_remote_writer(name: str, url: str, **options: Any) -> TraceHandler:
    """Return a handler that writes to a remote storage: tracekit's own for `GOOD`, or a bad one."""
    if name == GOOD:
        return JSONTraceHandler(url, **options)
    writer: TraceHandler = BAD_REMOTE[name]("local.json")
    writer.url = url.replace("{run_id}", "run").replace("-part{part}", "")  # type: ignore[attr-defined]
    return writer


def impatient(**times: float) -> None:
    """Shorten the pauses of uploads; wait for an answer as long as a busy machine may need, or as is said."""
    defaults = {"warm_up_s": 60.0, "answer_s": 60.0, "first_s": 0.02, "longest_s": 0.2, "index_s": 0.2}
    remote.DEFAULT_RETRY = Retry(**{**defaults, **times})  # type: ignore[misc]
