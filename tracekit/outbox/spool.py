"""Spool: a local folder that holds the files of one recording until they are uploaded.

Its journal has the state and the URL of every file, so that ``tracekit upload`` can finish the uploads of a process that was
killed or lost its storage. The journal has one JSON object per line, and is append-only with one write per line. So it stays
readable when the process dies; a torn last line is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import stat
import tempfile
import threading
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import resolve_path
from tracekit.errors import StorageError
from tracekit.formats.rank_trace import Segment
from tracekit.naming import safe_text
from tracekit.storage import basename, make_folders
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

SPOOL_VARIABLE: Final = "TRACEKIT_SPOOL"
JOURNAL: Final = "spool.jsonl"
_VERSION: Final = 1
# The state of a file after each change in the journal.
_STATES: Final = {"begin": "open", "finish": "waiting", "deliver": "delivered", "drop": "dropped"}

logger = logging.getLogger("tracekit")


class BusyError(StorageError):
    """Another process records into the spool, or uploads it."""


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default parent folder of spools: ``TRACEKIT_SPOOL``, else one of this user for temporary files.

    On clusters, temporary files are on the local disk of the node, while home folders are small and on a network.
    """
    given = environ.get(SPOOL_VARIABLE)
    return Path(resolve_path(given)) if given else Path(tempfile.gettempdir()) / f"tracekit-spool-{os.geteuid()}"


def default_spools() -> list[Path]:
    """Return the spools in the default folder, and those next to it that replaced an unusable default folder.

    Folders in the folder for temporary files count only if they belong to this user alone: a spool names files to upload.
    """
    root, is_given = default_root(), bool(os.environ.get(SPOOL_VARIABLE))
    moved = [] if is_given else root.parent.glob(f"{root.name}-*")
    found = [path for path in moved if _problem(path, private=True) is None]
    if is_given or _problem(root, private=True) is None:
        found += root.glob("*")
    return sorted(path for path in found if (path / JOURNAL).is_file())


class Spool:
    """The spool of one recording. Use `create` to record, and `load` to finish the uploads of a process that has ended.

    Threads: `begin`, `finish` and `drop` belong to the thread that writes the files, `delivered` to the one that uploads them.

    ``header`` identifies the recording: a unique id, run_id, rank, attempt, pid, and the URL of the index.
    """

    def __init__(self, folder: Path, header: dict[str, Any], descriptor: int) -> None:
        self.folder = folder
        self.header = header
        self.segments: dict[int, Segment] = {}  # all files, by number
        self.closed = False  # True if the recording has ended normally
        self.index_done = False  # True if the uploaded index is complete; only set by `load`
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @classmethod
    def create(cls, root: Path | None, header: Mapping[str, Any]) -> Spool:
        """Make a new spool, for this process alone, in ``root`` (mode 0700) or the default folder.

        If the default folder cannot be used, such as one that another user owns or may enter, the spool is a new
        folder next to it. The header has ``run_id``, ``rank``, ``attempt``, ``pid`` and ``index``.

        Raises:
            StorageError: The folder cannot be made, or does not belong to this user.
        """
        stem = f"{safe_text(str(header['run_id']))}-rank{header['rank']}-attempt{header['attempt']}-{header['pid']}"
        may_move = root is None and not os.environ.get(SPOOL_VARIABLE)
        root = (default_root() if root is None else root).absolute()  # training may change the current folder
        try:
            try:
                make_folders(root.parent)
                with contextlib.suppress(FileExistsError):
                    root.mkdir(mode=0o700)
                if problem := _problem(root, private=may_move):
                    raise PermissionError(errno.EACCES, problem)
                folder = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=root))  # mode 0700, unique name
            except OSError as error:
                if not may_move:
                    raise
                folder = Path(tempfile.mkdtemp(prefix=f"{root.name}-{stem}-", dir=root.parent))
                logger.warning(
                    "tracekit: %s cannot be used for files that wait for their upload (%s); they wait in %s",
                    root,
                    error.strerror or error,
                    folder,
                )
            descriptor = _open_journal(folder, os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise StorageError(
                f"{root}: the spool, which files wait in for their upload, cannot be made: {error.strerror or error}; "
                f"name another folder with spool= or {SPOOL_VARIABLE}"
            ) from error
        spool = cls(folder, {"id": uuid.uuid4().hex, "tracekit_version": __version__, **header}, descriptor)
        spool._append({"tracekit_spool": _VERSION, **spool.header})
        return spool

    @classmethod
    def load(cls, folder: Path) -> Spool:
        """Take over the spool of a process that has ended; refuse one in use (`BusyError`) and any other folder."""
        try:
            descriptor = _open_journal(folder)
        except OSError as error:
            raise StorageError(f"{folder}: no spool of tracekit ({JOURNAL}: {error.strerror or error})") from error
        # Do not open the file again: closing any descriptor of a file releases the locks of the process on it.
        header, *lines = map(_decoded, os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n"))
        spool = cls(folder, header, descriptor)
        is_whole = isinstance(header.get("id"), str) and isinstance(header.get("index"), str)
        if header.pop("tracekit_spool", None) != _VERSION or not is_whole:
            spool.close()
            raise StorageError(f"{folder}: {JOURNAL} is not one that this tracekit {__version__} can read")
        for line in filter(None, lines):
            spool._replay(line)
        return spool

    @property
    def waiting(self) -> list[Segment]:
        """Files to upload, oldest first. Includes files that are not finished: a process that died leaves them open."""
        return [segment for segment in list(self.segments.values()) if segment.state in ("open", "waiting")]

    def path(self, segment: Segment) -> Path:
        """Return the path of a segment's file: the packed file if it exists, else the plain one."""
        plain = self.folder / segment.file
        packed = plain.with_name(plain.name + ".gz")
        return packed if segment.url.endswith(".gz") and packed.exists() else plain

    def segment_of(self, path: Path) -> Segment:
        """Return the segment that is written to a path."""
        return self.segments[int(path.name.partition("-")[0])]

    def begin(self, url: str) -> Segment:
        """Record a file that will be written."""
        number = len(self.segments)
        segment = Segment(number, f"{number:06d}-{basename(url).removesuffix('.gz')}", url)
        self.segments[number] = segment
        self._append({"begin": number, "file": segment.file, "url": url})
        return segment

    def finish(self, segment: Segment, events: int, start_ns: int, end_ns: int, max_bytes: float = math.inf) -> bool:
        """Record that a file is complete. Drop it, and return False, if the files to upload would be larger than a limit."""
        segment.events, segment.start_ns, segment.end_ns = events, start_ns, end_ns
        with contextlib.suppress(OSError):
            segment.size_bytes = self.path(segment).stat().st_size
        self._append({"finish": segment.number, "events": events, "start_ns": start_ns, "end_ns": end_ns})
        if sum(one.size_bytes for one in self.waiting) > max_bytes:
            self.drop(segment)
            return False
        segment.state = "waiting"  # from here on the uploader may take it
        return True

    def drop(self, segment: Segment) -> None:
        """Remove a file that will never be uploaded."""
        segment.state = "dropped"
        self._remove(segment)
        self._append({"drop": segment.number})

    def drop_unmade(self) -> None:
        """Drop the files that were to be written, and were not made before the recording ended."""
        for segment in self.waiting:
            if segment.state == "open" and not self.path(segment).exists():
                self.drop(segment)

    def delivered(self, segment: Segment, url: str, size_bytes: int, sha256: str) -> None:
        """Record that a file was uploaded, and remove it from the spool. Do nothing after `close`."""
        with self._lock:
            if self._descriptor < 0:
                return
            segment.url, segment.size_bytes, segment.sha256, segment.state = url, size_bytes, sha256, "delivered"
        self._append({"deliver": segment.number, "url": url, "bytes": size_bytes, "sha256": sha256})
        self._remove(segment)

    def note(self, fact: str) -> None:
        """Record that the recording has ended normally ("closed"), or that its complete index is uploaded ("index")."""
        self.closed |= fact == "closed"
        self._append({fact: True})

    def close(self) -> None:
        """Release the lock, so that another process can take over the spool."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _remove(self, segment: Segment) -> None:
        for name in (segment.file, f"{segment.file}.gz"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def _append(self, line: Mapping[str, Any]) -> None:
        # A full disk must not stop the recording. A missing line does no harm: a segment without a note of its delivery is
        # compared with the object in the storage.
        with self._lock, contextlib.suppress(OSError):
            if self._descriptor >= 0:
                os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _replay(self, line: dict[str, Any]) -> None:
        """Add one line of the journal; skip unknown and unsafe lines."""
        self.closed |= "closed" in line
        self.index_done = "index" in line
        for change in _STATES.keys() & line:
            with contextlib.suppress(KeyError, TypeError):
                number = line.pop(change)
                known = {"number": number} if change == "begin" else asdict(self.segments[number])
                if "bytes" in line:
                    line["size_bytes"] = line.pop("bytes")
                line["number"], line["state"] = number, _STATES[change]
                segment = Segment(**{**known, **line})
                has_types = all(type(value).__name__ == Segment.__annotations__[name] for name, value in line.items())
                if has_types and Path(segment.file).name == segment.file and not segment.file.startswith("."):
                    self.segments[number] = segment


def _open_journal(folder: Path, flags: int = 0) -> int:
    """Open the journal, and lock the spool against other processes; a forked child does not inherit the lock."""
    import fcntl  # not on every system

    descriptor = os.open(folder / JOURNAL, flags | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise BusyError(f"{folder}: another process uses this spool: it still records, or uploads it") from error
    except OSError:  # a file system without locks; objects are still made exclusively
        pass
    return descriptor


def _problem(folder: Path, *, private: bool) -> str | None:
    """Return why a folder is not safe for spools; None if it is.

    If its parent is public (``private``), it must belong to this user, and nobody else may enter it.
    """
    try:
        found = folder.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid() and (private or found.st_uid):
        return "it belongs to another user"
    if private and found.st_mode & 0o077:
        return "other users may enter it"
    return None


def _decoded(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one for a torn line."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
