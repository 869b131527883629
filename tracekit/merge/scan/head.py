"""The head of an input, and what its file was when it was read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracekit.storage import is_remote, modified_ns, size_bytes


class FileStamp(NamedTuple):
    """A file at one moment, to detect a later change; all fields are 0 if nothing is known.

    The inode of a remote file is 0.
    """

    size_bytes: int = 0
    modified_ns: int = 0
    inode: int = 0

    @property
    def limit_bytes(self) -> int | None:
        """The size to read, since a trace that is still recorded grows meanwhile. None reads all."""
        return self.size_bytes or None

    def differs(self, now: FileStamp) -> bool:
        """Return True if a file was replaced or rewritten since; it may have grown."""
        if not self.size_bytes:
            return False
        if self.inode != now.inode or now.size_bytes < self.size_bytes:
            return True
        return now.size_bytes == self.size_bytes and now.modified_ns != self.modified_ns


def stamp_of(path: str) -> FileStamp:
    """Return the current stamp of a file."""
    if is_remote(path):
        return FileStamp(size_bytes(path) or 0, modified_ns(path) or 0)
    try:
        found = os.stat(path)  # noqa: PTH116 - a thousand of them
    except OSError:
        return FileStamp()
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass(slots=True)
class ProcessScan:
    """A ``pid`` of an input.

    Attributes:
        name: From ``process_name``.
        label: From ``process_labels``: "CPU", "GPU 3".
        category: The category of its first event, as JSON.
    """

    name: str | None = None
    label: str = ""
    used: bool = False
    category: bytes = b""


class Head(NamedTuple):
    """The header and metadata of an input.

    Attributes:
        header: The keys next to ``traceEvents``, as far as they were read.
        metadata: ``args`` of ``tracekit_metadata``, or empty.
        processes: The processes that were seen, by ``pid``.
    """

    header: dict[str, Any]
    metadata: dict[str, Any]
    processes: dict[Any, ProcessScan]
