"""Files that the service keeps: merged traces within a limit of bytes, and the tags of runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import StorageError
from tracekit.storage import atomic_write, make_folders
from tracekit.version import __version__

if TYPE_CHECKING:
    from tracekit.traces.trace_store import Entry

_OWN: Final = re.compile(r"[0-9a-f]{32}\.json\.gz")
MAX_TAGS: Final = 10
_SEPARATOR: Final = re.compile(r"[,\s]+")


def key_of(files: Iterable[Entry]) -> str:
    """Return the key of a merge of some files, which changes as soon as one of them does."""
    named = sorted((file.path, file.size_bytes, file.written_ns, str(file.identity)) for file in files)
    return hashlib.sha256(json.dumps([__version__, named]).encode()).hexdigest()[:32]


class Store:
    """A folder (mode 0700) of merged traces, each with the report of its merge. Any thread may use it. Raises StorageError.

    Above a limit of bytes, traces that were asked for longest ago are removed, but the last. Other files are left alone.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        try:
            make_folders(folder)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be made: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError(f"{folder}: may not be written to")

    def path(self, key: str) -> Path:
        """Return the path of the trace of a key."""
        return self.folder / f"{key}.json.gz"

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the report of the trace of a key, if it is there, and count it as the one asked for last."""
        path = self.path(key)
        report = path.with_suffix(".report")
        try:
            document = json.loads(report.read_bytes())
            os.utime(report)  # not the trace: it would count as another one for the cache of event tables
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) and path.exists() else None

    def make_room(self, keep: str) -> None:
        """Remove the traces that were asked for longest ago until the others fit, but not the one of the key ``keep``."""
        found = []
        for path in self.folder.iterdir():
            if _OWN.fullmatch(path.name):
                report = path.with_suffix(".report")
                with contextlib.suppress(OSError):
                    asked_ns = (report if report.exists() else path).stat().st_mtime_ns
                    found.append((asked_ns, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            if path.name != f"{keep}.json.gz":
                total -= size
                for file in (path.with_suffix(".report"), path):
                    with contextlib.suppress(OSError):
                        file.unlink()


def merge_into(path: Path, inputs: Sequence[str], *, progress: Callable[[float, str], None]) -> dict[str, Any]:
    """Merge traces into a file, and return the report that is kept with it; raise TracekitError where that fails."""
    from tracekit.merge import merge_traces
    from tracekit.view.open.ui import BROWSER_LIMIT_BYTES, counted_bytes

    report = merge_traces(str(path), inputs, overwrite=True, progress=progress)
    document = {
        # The page itself says where the trace is and what to do next.
        "lines": [line.strip() for line in report.lines() if not line.startswith(("wrote ", "next: "))],
        "complete": report.complete,
        "bytes": path.stat().st_size,
        "too_big": counted_bytes(str(path)) > BROWSER_LIMIT_BYTES,
    }
    with atomic_write(str(path.with_suffix(".report"))) as file:
        file.write(json.dumps(document).encode())
    return document


class Tags:
    """The tags of all runs, by id, in one file. Any thread may use it; a file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError):
            document = None
        items = document.items() if isinstance(document, dict) else ()
        self._tags = {run: tuple(map(str, own[:MAX_TAGS])) for run, own in items if isinstance(own, list) and own}

    def all(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of each run that has some."""
        with self._lock:
            return dict(self._tags)

    def set(self, run: str, text: str) -> None:
        """Replace the tags of a run by the words of a text, separated by commas or spaces; raise StorageError."""
        words = dict.fromkeys(word[:30] for word in _SEPARATOR.split(text.strip()) if word.isprintable() and word)
        with self._lock:
            tags = {**self._tags, run: tuple(words)[:MAX_TAGS]}
            kept = {name: own for name, own in list(tags.items())[-10_000:] if own}
            try:
                with atomic_write(str(self._path)) as file:
                    file.write(json.dumps(kept).encode())
            except OSError as error:
                raise StorageError(f"{self._path}: cannot be written: {error.strerror or error}") from error
            self._tags = kept
