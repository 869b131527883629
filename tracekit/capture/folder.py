"""ControlFolder: reads and writes the documents through which a running job is steered."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.capture.documents import LARGEST_BYTES, RankStatus, Request
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import make_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ControlFolder", "machine"]

REQUEST: Final = "request.json"
RANKS: Final = "ranks"

# A link is not followed, a pipe is not waited for.
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class ControlFolder:
    """A folder on a file system that all ranks share. Documents appear whole, with mode 0600, in folders of mode 0700.

    Every method may wait for the file system. Threads: one object belongs to one thread at a time.

    Args:
        path: The folder.
        trust_others: Also obey requests of other users than this one and root, and files that others may write to. For file
            systems that do not tell owners and modes as they are.
    """

    def __init__(self, path: Path, *, trust_others: bool = False) -> None:
        self.path = path
        self._trust_others = trust_others
        self._seen: tuple[int, ...] | None = None  # which version of the request was read last
        self._statuses: dict[str, tuple[tuple[int, ...], RankStatus]] = {}

    def make(self) -> None:
        """Make the folder, if it is not there.

        Raises:
            StorageError: It cannot be made, or may not be written to.
        """
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

        Opening is on purpose: on NFS it asks the server, where ``stat`` may tell what was true a minute ago.

        Raises:
            ConfigError: There is a new one, and it is refused; once for each.
            OSError: It cannot be read.
        """
        try:
            descriptor = os.open(self.path / REQUEST, _READ)
        except FileNotFoundError:
            self._seen = None
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self._refuse_once((-1,), "it is a symbolic link")
            return None
        try:
            found = os.fstat(descriptor)
            version = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
            if version == self._seen:
                return None
            why = self._suspicion(found)
            if why is not None:
                self._refuse_once(version, why)
            data = os.read(descriptor, LARGEST_BYTES + 1)
        finally:
            os.close(descriptor)
        self._seen = version
        return Request.from_bytes(data, default_id=f"file-{found.st_mtime_ns}")

    def write_request(self, request: Request) -> None:
        """Put a request in the place of the one that is there.

        Raises:
            OSError: It cannot be written.
        """
        self._put(self.path / REQUEST, request.to_bytes())

    def _suspicion(self, found: os.stat_result) -> str | None:
        if not stat.S_ISREG(found.st_mode):
            return "it is not a file"
        if found.st_size > LARGEST_BYTES:
            return f"it is larger than {LARGEST_BYTES} bytes"
        if self._trust_others or not hasattr(os, "geteuid"):
            return None
        if found.st_uid not in (os.geteuid(), 0):
            return f"it belongs to another user (uid {found.st_uid})"
        return "other users may write to it" if found.st_mode & 0o022 else None

    def _refuse_once(self, version: tuple[int, ...], why: str) -> None:
        if version != self._seen:
            self._seen = version
            raise ConfigError(f"a request: {why}")

    # ---- the ranks ----------------------------------------------------------------------------------------------------

    def write_status(self, status: RankStatus) -> None:
        """Say what a rank does.

        Raises:
            OSError: It cannot be written.
        """
        path = self._status_path(status.rank)
        try:
            self._put(path, status.to_bytes())
        except FileNotFoundError:  # somebody has cleared up
            with contextlib.suppress(StorageError):
                self.make()
            self._put(path, status.to_bytes())

    def has_status(self, rank: int) -> bool:
        """Tell whether a rank has said something that is still there."""
        return self._status_path(rank).exists()

    def statuses(self) -> dict[int, RankStatus]:
        """Return what each rank has said last; files that are no status are passed over.

        Raises:
            OSError: The folder cannot be read.
        """
        kept: dict[str, tuple[tuple[int, ...], RankStatus]] = {}
        for name, version in self._versions():
            known = self._statuses.get(name)
            if known is not None and known[0] == version:
                kept[name] = known
                continue
            with contextlib.suppress(OSError, ConfigError):
                kept[name] = (version, RankStatus.from_bytes(_read(self.path / RANKS / name)))
        self._statuses = kept
        return {status.rank: status for _, status in kept.values()}

    def _status_path(self, rank: int) -> Path:
        return self.path / RANKS / f"rank{rank:05d}.json"

    def _versions(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        with os.scandir(self.path / RANKS) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.startswith("rank") or not entry.name.endswith(".json"):
                    continue
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_BYTES:
                        yield entry.name, (found.st_ino, found.st_mtime_ns, found.st_size)

    def _put(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        descriptor = os.open(temporary, _MAKE, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _read(path: Path) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        return os.read(descriptor, LARGEST_BYTES + 1)
    finally:
        os.close(descriptor)


@cache
def machine() -> str | None:
    """Return what the processes that can see each other's pids have in common, or None where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        name = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None
    return hashlib.sha256(name.encode()).hexdigest()[:16]  # it is only compared, and the boot may be private
