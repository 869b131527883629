"""Finishing: uploads the remaining files in the spool of a recording that has ended or was killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tracekit.outbox.spool import Spool
from tracekit.outbox.upload import GoneError, Uploader
from tracekit.storage import RefusedError, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.errors import StorageError
    from tracekit.formats.rank_trace import Segment


def finish_spool(folder: Path, *, tries: int = 4) -> dict[str, Any]:
    """Upload the remaining files of a spool; return a report for JSON.

    The journal stays, so that a second call has nothing to do.

    Raises:
        BusyError: The recording goes on, or another process uploads the spool.
        StorageError: The folder is not a spool.
    """
    spool = Spool.load(folder)
    uploader = Uploader(spool)
    before = [without_secrets(segment.url) for segment in spool.segments.values() if segment.state == "delivered"]
    uploaded, left, lost = [], [], []
    error: StorageError | None = None
    try:
        spool.drop_unmade()  # the process died before these were made
        for segment in spool.waiting:
            path = str(spool.path(segment))
            error = _upload(uploader, segment, tries)
            if error is None:
                uploaded.append({"url": without_secrets(segment.url), "bytes": segment.size_bytes})
            elif isinstance(error, GoneError):
                lost.append(path)
            else:
                left.append({"file": path, "reason": str(error)})
        if not spool.index_done:
            error = _upload(uploader, None, tries)
            if error is None:
                spool.note("index")
    finally:
        spool.close()
    return {
        "spool": str(spool.folder),
        "complete": not (left or lost or error),
        "uploaded": uploaded,
        "uploaded_before": before,
        "left": left,
        "lost": lost,
        "index": {"uploaded": error is None, "reason": None if error is None else str(error)},
    }


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report of `finish_spool` as lines of text."""
    spool, uploaded, left, before = (report[key] for key in ("spool", "uploaded", "left", "uploaded_before"))
    lines = [f"{one['url']}: uploaded, {one['bytes']} bytes" for one in uploaded]
    lines += [f"{one['file']}: not uploaded: {one['reason']}" for one in left]
    lines += [f"{file}: is gone from the spool, and lost" for file in report["lost"]]
    if not report["index"]["uploaded"]:
        lines.append(f"{spool}: the index could not be uploaded: {report['index']['reason']}")
    total = f"{len(uploaded)} uploaded ({sum(one['bytes'] for one in uploaded)} bytes)"
    others = [f", {len(before)} uploaded before"] * bool(before) + [f", {len(left)} left"] * bool(left)
    return [*lines, f"{spool}: {total}{''.join(others)}"]


def _upload(uploader: Uploader, segment: Segment | None, tries: int) -> StorageError | None:
    """Upload a segment or the index; return the last error."""
    error = uploader.upload(segment)
    for _ in range(tries - 1):
        if error is None or isinstance(error, RefusedError | GoneError):
            break
        time.sleep(uploader.pause_s)
        error = uploader.upload(segment)
    return error
