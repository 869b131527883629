"""The scratch folder of a merge, and what becomes of those that killed merges have left.

Everything that a merge writes lies in one folder, ``.NAME.RANDOM.parts`` beside the output NAME, until the output is
renamed into its place. A merge that is killed (SIGKILL, for want of memory or by a scheduler) leaves it. The next merge to
the same output removes it, if its owner is certainly gone.

The owner holds a lock on the file ``owner`` in the folder, which the kernel takes back however the process ends; a worker that
was forked meanwhile holds it too, and rightly: it may still write there. A process id would say less: it is used again, and
every container counts its own. Whether anybody holds the lock is certain only for the same kernel and the same mount, since
some file systems do not pass locks on to other hosts. So the file tells boot and mount too, and the folder of another one
stays, and is named in a warning when nothing was written there for a day.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tracekit.storage import make_folders

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this system: what is left stays
    fcntl = None  # type: ignore[assignment]

__all__ = ["OWNER", "Scratch", "remove_left"]

OWNER: Final = "owner"
_FORMAT: Final = "tracekit_merge_scratch"
_VERSION: Final = 1
_SUFFIX: Final = ".parts"
_RANDOM: Final = re.compile(r"[a-z0-9_]{8}", re.ASCII)
"""What `tempfile.mkdtemp` makes of a prefix."""
_MOST_BYTES: Final = 4096
_OLD_S: Final = 24 * 3600.0

logger = logging.getLogger("tracekit")


class Scratch:
    """A new scratch folder of this process.

    Args:
        parent: Where it is made; made if it is not there.
        name: The name of the output.

    Attributes:
        path: The folder.

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

    def _own(self) -> None:
        new = self.path / f"{OWNER}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        locked = _lock(self._lock)
        owner = {
            _FORMAT: _VERSION,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "boot_id": _boot_id(),
            "device": os.fstat(self._lock).st_dev,
            "locked": locked,
        }
        os.write(self._lock, json.dumps(owner).encode() + b"\n")
        new.rename(self.path / OWNER)  # who finds it finds it locked

    def remove(self) -> None:
        """Remove the folder. Raises nothing; what cannot be removed now is left for the next merge."""
        tries = 3  # a worker of a pool that broke may just have made a file
        while (others := self._others()) and tries:
            tries -= 1
            for name in others:
                with contextlib.suppress(OSError):
                    os.unlink(self.path / name)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if not others:
            shutil.rmtree(self.path, ignore_errors=True)

    def _others(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.path) if name != OWNER]  # noqa: PTH208 - names
        except OSError:
            return []


def remove_left(parent: Path, name: str) -> None:
    """Remove the scratch folders that merges to an output have left which are certainly gone. Raises nothing.

    Only folders of this user that a merge has made are touched, and nothing is followed out of them. Those that may belong to
    a merge on another host, and in which nothing was written for a day, are named in a warning.

    Args:
        parent: Where the folders are.
        name: The name of the output.
    """
    if fcntl is None:  # pragma: no cover - not on this system
        return
    with contextlib.suppress(OSError):
        for found in os.listdir(parent):  # noqa: PTH208 - names
            if found.startswith(f".{name}.") and found.endswith(_SUFFIX):
                random = found[len(name) + 2 : -len(_SUFFIX)]
                if _RANDOM.fullmatch(random):
                    with contextlib.suppress(OSError):
                        _look_at(parent / found)


def _look_at(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        # Neither waits for the writer of a pipe.
        file = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            owner = _owner(file)
            if owner is None:
                return
            if not _can_be_judged(owner, file):
                _warn_of_old(path, folder, owner)
            elif _lock(file):
                _remove(path, folder)
        finally:
            os.close(file)
    finally:
        os.close(folder)


def _owner(file: int) -> dict[str, Any] | None:
    """Return what an owner wrote about itself; None: it is no such file."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > _MOST_BYTES:
        return None
    try:
        owner = json.loads(os.read(file, _MOST_BYTES))
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and owner.get(_FORMAT) == _VERSION else None


def _can_be_judged(owner: dict[str, Any], file: int) -> bool:
    """Tell whether a lock of the owner would be seen here."""
    boot_id = _boot_id()
    same = boot_id is not None and owner.get("boot_id") == boot_id and owner.get("device") == os.fstat(file).st_dev
    return same and owner.get("locked") is True


def _remove(path: Path, folder: int) -> None:
    """Remove a folder whose owner is gone, the owner's file last: until then another try can tell whose it was."""
    for name in os.listdir(folder):
        if name != OWNER:
            os.unlink(name, dir_fd=folder)
    os.unlink(OWNER, dir_fd=folder)
    path.rmdir()
    logger.info("tracekit: %s: removed; a merge that was killed had left it", path)


def _warn_of_old(path: Path, folder: int, owner: dict[str, Any]) -> None:
    names = [".", *os.listdir(folder)]
    last_s = max(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime for name in names)
    age_s = time.time() - last_s
    if age_s > _OLD_S:
        logger.warning(
            "tracekit: %s: left by a merge (process %s on %s) of which cannot be told from here whether it still runs; "
            "nothing was written there for %d hours: remove it if that merge is gone",
            path,
            owner.get("pid"),
            owner.get("host"),
            age_s // 3600,
        )


def _lock(descriptor: int) -> bool:
    """Lock a file for as long as it is open; returns False where somebody else has, or the file system knows no locks."""
    if fcntl is None:  # pragma: no cover - not on this system
        return False
    try:
        # Not lockf: its locks are the process's, so that two merges of one process would not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _boot_id() -> str | None:
    """Return the kernel's id of this boot, or None where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
