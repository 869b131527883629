"""Who writes the traces of a fault test: tracekit, or one of the `bad_writers` where `test_biting` says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.faults import processes
from tests.faults.bad_writers import BAD, BAD_REMOTE
from tracekit import JSONTraceHandler, TraceHandler

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["impatient", "in_process_writer", "make_remote_writer", "make_writer"]


def make_writer(name: str, path: str | Path) -> TraceHandler:
    """Return a handler that writes a rank trace: tracekit's own for `GOOD`, or a bad one."""
    return JSONTraceHandler(path) if name == processes.GOOD else BAD[name](path)


def in_process_writer(path: str | Path) -> TraceHandler:
    """Return the writer for a test in this process."""
    return make_writer(processes.writer, path)


def make_remote_writer(name: str, url: str, **options: Any) -> TraceHandler:
    """Return a handler that writes to a remote storage: tracekit's own for `GOOD`, or a bad one."""
    if name == processes.GOOD:
        return JSONTraceHandler(url, **options)
    return BAD_REMOTE[name](url.replace("{run_id}", "run"))


def impatient(**times: float) -> None:
    """Shorten the pauses of uploads; wait for an answer as long as a busy machine may need, or as is said."""
    from tracekit.outbox import upload

    defaults = {"WARM_UP_S": 60.0, "ANSWER_S": 60.0, "FIRST_PAUSE_S": 0.02, "MAX_PAUSE_S": 0.2, "INDEX_S": 0.2}
    for name, seconds in {**defaults, **times}.items():
        setattr(upload, name, seconds)
