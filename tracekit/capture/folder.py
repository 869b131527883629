"""ControlFolder: reads and writes the documents that control a running job."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import Final

from tracekit.capture.documents import MAX_DOCUMENT_BYTES, RankStatus, Request
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import atomic_write, make_folders

REQUEST: Final = "request.json"
RANKS: Final = "ranks"

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # follow no link, and wait for no pipe


class ControlFolder:
    """A folder on a file system that all ranks share. Documents appear whole, with mode 0600, in folders of mode 0700.

    Every method may wait for the file system. It raises OSError if it cannot read, and StorageError if it cannot
    write. One object belongs to one thread at a time. With ``trust_others`` it also accepts requests of users other
    than this one and root, and files that others may write to: for file systems that do not report owners and modes
    correctly.
    """

    def __init__(self, path: Path, *, trust_others: bool = False) -> None:
        self.path = path
        self._trust_others = trust_others
        self._request_version: tuple[int, ...] | None = None  # of the request that was read last
        self._statuses: dict[str, tuple[tuple[int, ...], RankStatus]] = {}

    @classmethod
    def find(cls, folder: Path) -> ControlFolder | None:
        """Return a folder, or its subfolder ``control``, if ranks have written there; else None."""
        for candidate in (folder, folder / "control"):
            if (candidate / RANKS).is_dir():
                return cls(candidate.absolute())
        return None

    def make(self) -> None:
        """Make the folder if it is missing; raise StorageError also if it is not writable."""
        folder = self.path / RANKS
        try:
            make_folders(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it may not be written to")
        except OSError as error:
            raise StorageError(f"{self.path}: the control folder cannot be made: {error.strerror or error}") from error

    # ---- the request --------------------------------------------------------------------------------------------------

    def read_request(self) -> Request | None:
        """Return the request if it has changed since the last call, else None.

        Opens the file each time: on NFS this asks the server, while ``stat`` may return old values for a minute.

        Raises:
            ConfigError: There is a new request, and it is refused; once for each.
        """
        try:
            descriptor = os.open(self.path / REQUEST, _READ)
        except FileNotFoundError:
            self._request_version = None
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not self._is_new((-1,)):
                return None
            raise ConfigError("a request: it is a symbolic link") from None
        try:
            found = os.fstat(descriptor)
            if not self._is_new((found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)):
                return None
            self._check(found)
            data = os.read(descriptor, MAX_DOCUMENT_BYTES + 1)
        except OSError:
            self._request_version = None  # read it again next time
            raise
        finally:
            os.close(descriptor)
        return Request.from_bytes(data, id=f"file-{found.st_mtime_ns}")

    def write_request(self, request: Request) -> None:
        """Replace the request."""
        self._put(self.path / REQUEST, request.to_bytes())

    def _is_new(self, version: tuple[int, ...]) -> bool:
        before, self._request_version = self._request_version, version
        return version != before

    def _check(self, found: os.stat_result) -> None:
        """Raise ConfigError unless this is a file that no other user could have written."""
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("a request: it is not a file")
        if found.st_uid not in (os.geteuid(), 0) and not self._trust_others:
            raise ConfigError(f"a request: it belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o022 and not self._trust_others:
            raise ConfigError("a request: other users may write to it")

    # ---- the ranks ----------------------------------------------------------------------------------------------------

    def write_status(self, status: RankStatus) -> None:
        """Replace the status of a rank."""
        self._put(self._status_path(status.rank), status.to_bytes())

    def has_status(self, rank: int) -> bool:
        """Return True if the status of a rank is there."""
        return self._status_path(rank).exists()

    def statuses(self) -> dict[int, RankStatus]:
        """Return the status of each rank. Other and damaged files are ignored."""
        kept: dict[str, tuple[tuple[int, ...], RankStatus]] = {}
        with os.scandir(self.path / RANKS) as entries:
            files = [entry for entry in entries if entry.name.startswith("rank") and entry.name.endswith(".json")]
        for entry in sorted(files, key=lambda entry: entry.name):
            with contextlib.suppress(OSError, ConfigError):
                found = entry.stat(follow_symlinks=False)
                version = (found.st_ino, found.st_mtime_ns, found.st_size)
                known = self._statuses.get(entry.name)
                if known is not None and known[0] == version:
                    kept[entry.name] = known
                elif stat.S_ISREG(found.st_mode):
                    kept[entry.name] = (version, RankStatus.from_bytes(_read(entry.path)))
        self._statuses = kept
        return {status.rank: status for _, status in kept.values()}

    def _status_path(self, rank: int) -> Path:
        return self.path / RANKS / f"rank{rank:05d}.json"

    def _put(self, path: Path, data: bytes) -> None:
        with atomic_write(os.fspath(path)) as file:  # makes the folder again if somebody has removed it
            file.write(data)


def _read(path: str) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        return os.read(descriptor, MAX_DOCUMENT_BYTES + 1)
    finally:
        os.close(descriptor)


@cache
def machine() -> str | None:
    """Return an id that processes have in common if they can see each other's pids; None if the system does not report it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        name = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None
    return hashlib.sha256(name.encode()).hexdigest()[:16]  # a hash, because the boot id may be private


def listens(status: RankStatus) -> bool:
    """Return True if a rank reads requests. If its process has died, this is known on the same machine only."""
    if not status.listening or status.machine is None or status.machine != machine():
        return status.listening
    try:
        text = Path(f"/proc/{status.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] != ["Z"]  # a zombie: its parent has not waited for it yet
