"""The scratch space of a merge: a folder, a file of values in it, and the removal of folders that killed merges have left.

Everything that a merge writes is in one folder, ``.NAME.RANDOM.parts`` beside the output NAME, until the output is renamed into
its place. A killed merge leaves the folder. The next merge to the same output removes it if the owner is certainly gone.

The owner holds a lock on the file ``owner`` in the folder. The kernel releases it when the process ends, also after SIGKILL. A
forked worker holds it too, and may still write. A process id is not enough: ids are reused, and every container has its own.
Locks are only reliable within one kernel and mount, so the file also names boot and device. A folder from elsewhere stays; a
warning names it when nothing was written to it for a day.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import platform
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tracekit.errors import MergeError
from tracekit.processors import boot_id
from tracekit.storage import make_folders

try:
    import fcntl
except ImportError:  # pragma: no cover - without it nothing is removed
    fcntl = None  # type: ignore[assignment]

_T = TypeVar("_T")

OWNER: Final = "owner"
_FORMAT: Final = "tracekit_merge_scratch"
_VERSION: Final = 1
_SUFFIX: Final = ".parts"
_RANDOM: Final = "[a-z0-9_]{8}"
"""The random part of names of `tempfile.mkdtemp`."""
_MAX_OWNER_BYTES: Final = 4096
_MAX_MEMORY_BYTES: Final = 4 << 20
"""A scratch file is held in memory up to this size."""
_MIN_STALE_S: Final = 24 * 3600.0


class ScratchFolder:
    """A new scratch folder, owned by this process. Use it in a ``with``, which yields its path and removes it.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, parent: Path, name: str) -> None:
        make_folders(parent)
        self.path = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=_SUFFIX))
        self._lock = -1
        try:
            self._own()
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> str:
        return str(self.path)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _own(self) -> None:
        new = self.path / f"{OWNER}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        locked = _lock(self._lock)
        owner = {
            _FORMAT: _VERSION,
            "host": platform.node(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "device": os.fstat(self._lock).st_dev,
            "locked": locked,
        }
        os.write(self._lock, json.dumps(owner).encode() + b"\n")
        new.rename(self.path / OWNER)  # appears locked

    def remove(self) -> None:
        """Remove the folder. Raises nothing; the next merge removes what remains."""
        for _ in range(3):  # a worker of a broken pool may just have made a file
            with contextlib.suppress(OSError):
                for path in self.path.iterdir():
                    with contextlib.suppress(OSError):
                        if path.name != OWNER:
                            path.unlink()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        with contextlib.suppress(OSError):
            if [path.name for path in self.path.iterdir()] in ([], [OWNER]):
                shutil.rmtree(self.path)


class ScratchStore:
    """A scratch file of pickled values, so that a thousand inputs take little memory. Use it in a ``with``, from one thread.

    The file has no name if the system supports that, so it does not outlive the process.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or tempfile.gettempdir()
        self._shared: dict[Any, Any] = {}
        try:
            self._file = tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES, dir=self._folder)  # noqa: SIM115 - closed later
        except OSError as error:
            raise self._failed("written", error) from error

    def __enter__(self) -> ScratchStore:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what cannot be written any more is of no use
            self._file.close()

    def put(self, value: object) -> tuple[int, int]:
        """Store a value; return its place."""
        text = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise self._failed("written", error) from error
        return place, len(text)

    def get(self, place: tuple[int, int]) -> Any:
        """Return a copy of the value at a place."""
        try:
            self._file.seek(place[0])
            return pickle.loads(self._file.read(place[1]))  # noqa: S301 - nobody else can write there
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise self._failed("read", error) from error

    def one_of_equals(self, value: _T) -> _T:
        """Return one object, which stays in memory, for all equal values."""
        return cast("_T", self._shared.setdefault(value, value))

    def _failed(self, what: str, error: Exception) -> MergeError:
        # Not as StorageError: the input is not to blame, and must not be left out.
        reason = error.strerror if isinstance(error, OSError) else "the file ends early"
        return MergeError(f"{self._folder}: cannot be {what}: {reason}; the merge keeps there what exceeds memory")


def remove_stale(parent: Path, name: str) -> None:
    """Remove the scratch folders of killed merges to an output. Raises nothing.

    Skips folders of other users and folders that no merge has made, and follows no links. Logs a warning for a folder that may
    belong to a merge on another host if nothing was written to it for a day.
    """
    if fcntl is None:  # pragma: no cover - not on this system
        return
    folder_name = re.compile(re.escape(f".{name}.") + _RANDOM + re.escape(_SUFFIX), re.ASCII)
    with contextlib.suppress(OSError):
        for found in filter(folder_name.fullmatch, os.listdir(parent)):  # noqa: PTH208 - names
            with contextlib.suppress(OSError):
                _remove_if_stale(parent / found)


def _remove_if_stale(path: Path) -> None:
    with contextlib.ExitStack() as opened:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, folder)
        if os.fstat(folder).st_uid != os.geteuid():
            return
        # O_NONBLOCK: opening a pipe must not wait for its writer.
        file = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, file)
        owner = _read_owner(file)
        if owner is None:
            return
        if not _is_local(owner, file):
            _warn_if_old(path, folder, owner)
        elif _lock(file):
            _remove(path, folder)


def _read_owner(file: int) -> dict[str, Any] | None:
    """Return the content of a file ``owner``, or None if a merge has not written it."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > _MAX_OWNER_BYTES:
        return None
    try:
        owner = json.loads(os.read(file, _MAX_OWNER_BYTES))
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and owner.get(_FORMAT) == _VERSION else None


def _is_local(owner: dict[str, Any], file: int) -> bool:
    """Return True if a lock of the owner would be visible to this process."""
    boot = boot_id()
    same = boot is not None and owner.get("boot_id") == boot and owner.get("device") == os.fstat(file).st_dev
    return same and owner.get("locked") is True


def _remove(path: Path, folder: int) -> None:
    """Remove a folder, the file ``owner`` last: if this fails, the next attempt still recognises the folder."""
    for name in os.listdir(folder):
        if name != OWNER:
            os.unlink(name, dir_fd=folder)
    os.unlink(OWNER, dir_fd=folder)
    path.rmdir()
    import logging  # rarely needed

    logging.getLogger("tracekit").info("tracekit: %s: removed; a merge that was killed had left it", path)


def _warn_if_old(path: Path, folder: int, owner: dict[str, Any]) -> None:
    names = [".", *os.listdir(folder)]
    last_s = max(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime for name in names)
    age_s = time.time() - last_s
    if age_s > _MIN_STALE_S:
        import logging

        logging.getLogger("tracekit").warning(
            "tracekit: %s: left by a merge (process %s on %s) of which cannot be told from here whether it still runs; "
            "nothing was written there for %d hours: remove it if that merge is gone",
            path,
            owner.get("pid"),
            owner.get("host"),
            age_s // 3600,
        )


def _lock(descriptor: int) -> bool:
    """Lock an open file; return False if another process has locked it, or the file system has no locks."""
    if fcntl is None:  # pragma: no cover - not on this system
        return False
    try:
        # Not lockf: two merges of one process would share its locks.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
