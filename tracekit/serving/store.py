"""Merged traces in a folder whose size is bounded, by what went into them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError
from tracekit.storage import make_folders
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tracekit.watching.places import Entry

__all__ = ["Store", "key_of", "merge_into"]

_OURS: Final = re.compile(r"[0-9a-f]{32}\.json\.gz")


def key_of(files: Iterable[Entry]) -> str:
    """Return what a merge of some files is known by: another one as soon as one of them has changed."""
    named = sorted((file.path, file.size_bytes, file.written_ns, str(file.identity)) for file in files)
    return hashlib.sha256(json.dumps([__version__, named]).encode()).hexdigest()[:32]


class Store:
    """A folder of merged traces, and beside each what the merge said.

    Any thread may use it. Files of other names in the folder are left alone.

    Args:
        folder: The folder; it is made, with mode 0700, where it is not there.
        most_bytes: What the traces may take together; those that were asked for longest ago are removed. One trace is
            always kept, however large.

    Raises:
        StorageError: The folder cannot be made, or not be written to.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        try:
            make_folders(folder)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be made: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError(f"{folder}: may not be written to")

    def path(self, key: str) -> Path:
        """Return where the trace of a key is, or shall be."""
        return self.folder / f"{key}.json.gz"

    def find(self, key: str) -> dict[str, Any] | None:
        """Return what the merge of a key said, if its trace is there; it is the one that was asked for last then."""
        path = self.path(key)
        try:
            os.utime(path)
            document = json.loads(path.with_suffix(".report").read_bytes())
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def make_room(self, keep: str) -> None:
        """Remove the traces that were asked for longest ago, until the others fit; but not the one of the key ``keep``."""
        found = []
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most_bytes:
                break
            if path.name != f"{keep}.json.gz":
                total -= size
                for file in (path.with_suffix(".report"), path):
                    with contextlib.suppress(OSError):
                        file.unlink()


def merge_into(path: Path, inputs: Sequence[str], *, progress: Callable[[float, str], None]) -> dict[str, Any]:
    """Merge traces, and return what is to be known of the merge: also beside the trace, for the next server.

    Args:
        path: The merged trace.
        inputs: What is merged.
        progress: Called with the share that is done, and words.

    Raises:
        TracekitError: They cannot be merged.
    """
    from tracekit.merge import merge_traces
    from tracekit.storage import atomic_write
    from tracekit.viewing.size import BROWSER_LIMIT_BYTES, counted_bytes

    report = merge_traces(str(path), inputs, overwrite=True, progress=progress)
    document = {
        # Where it is, and what to do with it, is said by the page.
        "lines": [line.strip() for line in report.lines() if not line.startswith(("wrote ", "next: "))],
        "complete": report.complete,
        "bytes": path.stat().st_size,
        "too_big": counted_bytes(str(path)) > BROWSER_LIMIT_BYTES,
    }
    with atomic_write(str(path.with_suffix(".report"))) as file:
        file.write(json.dumps(document).encode())
    return document
