"""Finishing: uploads the remaining files in the spool of a recording that has ended or was killed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit.errors import StorageError
from tracekit.outbox.spool import Spool
from tracekit.outbox.upload import GoneError, Pace, Retry, Uploader
from tracekit.storage import RefusedError, TooSlowError, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(slots=True)
class Finished:
    """The result of finishing a spool.

    Attributes:
        uploaded: URL and size in bytes of each file that was uploaded now.
        there: URLs of files that had been uploaded before.
        left: Path and error of each file that could not be uploaded.
        lost: Files that are gone from the spool.
        reason: Error of the upload of the index.
    """

    spool: str
    uploaded: list[tuple[str, int]] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    reason: str | None = None

    @property
    def complete(self) -> bool:
        """True if every file and the index are uploaded."""
        return not self.left and not self.lost and self.reason is None

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        size_bytes = sum(size_bytes for _, size_bytes in self.uploaded)
        lines = [f"{url}: uploaded, {one_bytes} bytes" for url, one_bytes in self.uploaded]
        lines += [f"{file}: not uploaded: {reason}" for file, reason in self.left]
        lines += [f"{file}: is gone from the spool, and lost" for file in self.lost]
        if self.reason is not None:
            lines.append(f"{self.spool}: the index could not be uploaded: {self.reason}")
        there = f", {len(self.there)} uploaded before" if self.there else ""
        left = f", {len(self.left)} left" if self.left else ""
        lines.append(f"{self.spool}: {len(self.uploaded)} uploaded ({size_bytes} bytes){there}{left}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            "spool": self.spool,
            "complete": self.complete,
            "uploaded": [{"url": url, "bytes": size_bytes} for url, size_bytes in self.uploaded],
            "uploaded_before": self.there,
            "left": [{"file": file, "reason": reason} for file, reason in self.left],
            "lost": self.lost,
            "index": {"uploaded": self.reason is None, "reason": self.reason},
        }


def finish_spool(folder: Path, *, tries: int = 4, retry: Retry | None = None) -> Finished:
    """Upload the remaining files of a spool. The journal stays, so that a second call has nothing to do.

    Raises:
        BusyError: The recording goes on, or another process uploads the spool.
        StorageError: The folder is not a spool.
    """
    spool = Spool.load(folder)
    uploader, pace = Uploader(spool), Pace(retry or Retry())
    report = Finished(
        str(spool.folder),
        there=[without_secrets(segment.url) for segment in spool.segments.values() if segment.state == "delivered"],
    )
    refusal: RefusedError | None = None
    try:
        spool.drop_unmade()  # the process died before these were made
        for segment in spool.waiting:
            path = str(spool.path(segment))
            try:
                _deliver(partial(uploader.deliver, segment), pace, tries, refusal)
            except GoneError:
                spool.drop(segment)
                report.lost.append(path)
            except StorageError as error:
                refusal = error if isinstance(error, RefusedError) else None
                report.left.append((path, str(error)))
            else:
                report.uploaded.append((without_secrets(segment.url), segment.size_bytes))
        if not spool.index_done:
            try:
                _deliver(uploader.deliver_index, pace, tries, refusal)
            except StorageError as error:
                report.reason = str(error)
            else:
                spool.note_index()
    finally:
        uploader.close()
        spool.close()
    return report


def _deliver(request: Callable[[float], None], pace: Pace, tries: int, refusal: RefusedError | None) -> None:
    """Make a request until it works, ``tries`` times at most. After a refusal, all further requests fail immediately."""
    if refusal is not None:
        raise refusal
    for left in reversed(range(max(1, tries))):
        try:
            request(pace.answer_s)
        except (RefusedError, GoneError):
            raise
        except StorageError as error:
            pause_s = pace.failed(too_slow=isinstance(error, TooSlowError))
            if not left:
                raise
            threading.Event().wait(pause_s)
        else:
            pace.succeeded()
            return
