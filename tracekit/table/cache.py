"""The private cache of the event table: one folder for each version of a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError, QueryError, StorageError
from tracekit.storage import is_remote, open_read, remote_version
from tracekit.table.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER_VARIABLE: Final = "TRACEKIT_CACHE"  # the environment variable that names the folder of the cache
_SIZE_VARIABLE: Final = "TRACEKIT_CACHE_BYTES"
_MAX_BYTES: Final = 20 * 10**9
_END_BYTES: Final = 64 * 1024
_BUILDING: Final = "building-"
_LATEST: Final = "latest-"
_SUPERSEDED: Final = "superseded"
_DONE: Final = "facts"  # no suffix: a folder of traces may hold the cache
_IN_USE_S: Final = 3600  # an entry that was used since is never removed: a query may be reading it
_STALE_S: Final = 24 * 3600
_TRIMS: Final = 64  # looks at all entries while a cache is filled


class TableCache:
    """Folders of tables, by key. Any number of processes may use and fill it at the same time.

    Args:
        folder: Created with mode 0700 if it is missing.
        max_bytes: The maximum size of all entries. Those that were used last stay.
        variable: The environment variable that names the folder.

    Raises:
        StorageError: The folder cannot be created, or other users can write to it.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES, variable: str = FOLDER_VARIABLE) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._remedy = f"name another folder with {variable}"
        self._added_bytes = max_bytes  # since the last look at all entries; the first entry makes one
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(0o700)
        except OSError as error:
            raise StorageError(f"{folder}: the cache cannot be created: {error.strerror}; {self._remedy}") from error
        if found.st_uid != os.getuid():
            raise StorageError(f"{folder}: the cache belongs to another user; {self._remedy}")

    def find(self, key: str) -> Path | None:
        """Return the folder of an entry, and note its use; None if there is none."""
        folder = self.folder / key
        if not (folder / _DONE).is_file():
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        return folder

    def add(self, key: str, build: Callable[[Path], None]) -> Path:
        """Build an entry, which appears whole or not at all, and return its folder; ``build`` writes the file ``facts`` too."""
        folder = self.folder / key
        with self.scratch() as building:
            build(building)
            self._added_bytes += _size_bytes(building)
            if not self._publish(building, folder):
                self.remove(key)  # an entry that was removed in part
                if not self._publish(building, folder):
                    raise StorageError(f"{folder}: the cache cannot be written; remove this folder")
        if self._added_bytes >= self._max_bytes // _TRIMS:
            self.trim()
            self._added_bytes = 0
        return folder

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a folder next to the entries, and remove it at the end of the block.

        Raises:
            StorageError: The block could not write to the disk.
        """
        building = None
        try:
            building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self.folder))
            yield building
        except (OSError, QueryError) as error:
            reason = error.strerror if isinstance(error, OSError) else _disk_error(error)
            if reason is None:
                raise
            raise StorageError(f"{self.folder}: the cache cannot be written: {reason}; {self._remedy}") from error
        finally:
            if building is not None:
                shutil.rmtree(building, ignore_errors=True)

    def _publish(self, building: Path, folder: Path) -> bool:
        """Make a new entry available; return True if there is one, which another process may have been faster to build."""
        with contextlib.suppress(OSError):
            building.rename(folder)
        return (folder / _DONE).is_file()

    def latest(self, path: str) -> Path | None:
        """Return the folder of the last entry of a local file, whatever its version; None if there is none."""
        try:
            key = self._pointer(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return self.find(key) if re.fullmatch("[0-9a-f]{40}", key) else None

    def set_latest(self, path: str, key: str) -> None:
        """Record the last entry of a local file."""
        with contextlib.suppress(OSError):
            pointer = self._pointer(path)
            handle, name = tempfile.mkstemp(prefix=_BUILDING, dir=self.folder)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(key)
            before = self.latest(path)
            Path(name).replace(pointer)
            if before is not None and before.name != key:
                (before / _SUPERSEDED).touch()

    def _pointer(self, path: str) -> Path:
        found = Path(path).stat()
        return self.folder / f"{_LATEST}{key_of(found.st_dev, found.st_ino)}"

    def remove(self, key: str) -> None:
        """Remove an entry."""
        # A half removed entry must not be found.
        with contextlib.suppress(OSError):
            (self.folder / key / _DONE).unlink()
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def trim(self) -> None:
        """Remove the entries that were not used for longest, until the rest fits, and what killed processes left."""
        now = time.time()
        entries = []
        for entry in self.folder.iterdir():
            with contextlib.suppress(OSError):
                used = entry.stat().st_mtime
                is_stale = now - used > _STALE_S
                if entry.name.startswith(_LATEST):
                    if is_stale and not (self.folder / entry.read_text("ascii")).exists():
                        entry.unlink()
                elif entry.name.startswith(_BUILDING):
                    if is_stale:
                        entry.unlink() if entry.is_file() else shutil.rmtree(entry, ignore_errors=True)
                elif now - used > _IN_USE_S and (entry / _SUPERSEDED).exists():
                    self.remove(entry.name)
                else:
                    entries.append((used, _size_bytes(entry), entry))
        total = sum(size for _, size, _ in entries)
        for used, size, entry in sorted(entries):
            if total <= self._max_bytes or now - used < _IN_USE_S:
                break
            self.remove(entry.name)
            total -= size


def _disk_error(error: QueryError) -> str | None:
    """Return why the engine could not use the disk; None for other errors."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else None


def _size_bytes(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())


@contextlib.contextmanager
def open_cache(*, keep: bool = True) -> Iterator[TableCache]:
    """Open the cache of the user or, unless it is to be kept, one that is removed at the end of the block."""
    if not keep:
        with tempfile.TemporaryDirectory(prefix="tracekit-table-") as folder:
            yield TableCache(Path(folder), variable="TMPDIR")
        return
    limit = os.environ.get(_SIZE_VARIABLE, "")
    if limit and not (limit.isascii() and limit.isdecimal()):
        raise ConfigError(f"{_SIZE_VARIABLE}={limit!r} is not a number of bytes")
    yield TableCache(_user_folder(), int(limit) if limit else _MAX_BYTES)


def _user_folder() -> Path:
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracekit"
    except RuntimeError as error:
        raise StorageError(
            f"this account has no home folder for the cache; name a folder with {FOLDER_VARIABLE}"
        ) from error


def key_of(*parts: object) -> str:
    """Return a key for values that their representation identifies."""
    return hashlib.blake2b(repr((VERSION, *parts)).encode(), digest_size=20).hexdigest()


def file_key(path: str, *parts: object) -> str:
    """Return the key of a file as it is now."""
    if is_remote(path):
        return key_of(path, remote_version(path), *parts)
    with open_read(path) as file:
        found = os.fstat(file.fileno())
        first = file.read(_END_BYTES)
        file.seek(max(found.st_size - _END_BYTES, 0))
        ends = first, file.read(_END_BYTES)
    version = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return key_of(version, ends, *parts)
