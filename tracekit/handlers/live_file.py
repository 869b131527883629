"""LiveFile: a local trace file that opens at any moment while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, NoReturn

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this system
    fcntl = None  # type: ignore[assignment]

from tracekit.errors import ConfigError, StorageError
from tracekit.storage import PRIVATE_MODE, make_folders, name_temporary, temporary_file

if TYPE_CHECKING:
    from pathlib import Path


class NameTakenError(ConfigError):
    """A file of that name exists, and tracekit never overwrites a trace."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: exists already, and tracekit never overwrites a trace; choose another name "
            "(with {run_id} or {attempt} in it), or remove the file"
        )


class LiveFile:
    """A local file that is whole after every write.

    Written with ``os.write`` to a descriptor that nothing else uses, without a buffer that a fork could write twice.
    After a short or failed write it is cut back to the last whole record, because a tear in the middle makes the file
    unreadable. Opened with ``O_APPEND``: if somebody truncates the file, the next write must not leave a hole of NUL
    bytes. The file never exists without ``head``, its first records; ``name`` is for messages.

    Raises:
        NameTakenError: The path exists.
        StorageError: The file cannot be made.
    """

    def __init__(self, path: Path, head: bytes, name: str, mode: int = PRIVATE_MODE) -> None:
        self.path = path
        make_folder(path.parent, name, mode)
        if os.path.lexists(path):
            raise NameTakenError(path)
        self.size_bytes = 0  # of the complete records
        self._torn = False
        self._head = b""  # records to write first, in a file that begins again
        self._descriptor = -1
        try:
            self._create(head, mode)
        except FileExistsError:
            raise NameTakenError(path) from None
        except OSError as error:
            raise StorageError(f"{name}: cannot be written: {error.strerror or error}") from error

    def _create(self, head: bytes, mode: int) -> None:
        # Under a temporary name first, so that nobody ever sees a file without its metadata.
        self._descriptor, temporary = temporary_file(self.path.parent, self.path.name)
        try:
            os.fchmod(self._descriptor, mode)  # exactly this mode, independent of the umask
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, os.O_APPEND)
            self.write(head)
            name_temporary(temporary, self.path)
        except OSError:
            os.close(self._descriptor)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @property
    def gone(self) -> bool:
        """True if somebody has removed or replaced the file, so that nobody can read later writes."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # another problem of the storage; the next write reports it
            return False

    @property
    def truncated(self) -> bool:
        """True if somebody has truncated the file in place, as logrotate does with ``copytruncate``."""
        try:
            return os.fstat(self._descriptor).st_size < self.size_bytes
        except OSError:
            return False

    def restart(self, head: bytes) -> None:
        """Empty the file, and begin it again with other first records, now or with the next write."""
        self.size_bytes, self._torn, self._head = 0, True, head
        with contextlib.suppress(OSError):
            self.write(b"")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.path}: a file that is being written cannot be sent to another process")

    def write(self, data: bytes) -> None:
        """Append whole records; on an OSError none of them is in the file."""
        if self._torn:
            self._cut_back()
        data = self._head + data
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._descriptor, view)
                if not written:
                    raise OSError(errno.EIO, "nothing was written")
                view = view[written:]
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # retried before the next write
                self._cut_back()
            raise
        self.size_bytes += len(data)
        self._head = b""

    def _cut_back(self) -> None:
        if os.fstat(self._descriptor).st_size > self.size_bytes:  # ftruncate would extend a shorter file
            os.ftruncate(self._descriptor, self.size_bytes)
        self._torn = False

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes that are already in the file. Works even on a full disk; raises nothing."""
        with contextlib.suppress(OSError):
            if os.fstat(self._descriptor).st_size < offset:
                return  # truncated meanwhile; a hole would read as NUL bytes
            # With O_APPEND, pwrite on Linux ignores the offset and appends.
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_APPEND)
            try:
                os.pwrite(self._descriptor, data, offset)
            finally:
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def finish(self, lines: bytes) -> None:
        """Write the last lines, close the array, and close the file. Raises nothing."""
        try:
            self.write(lines)
            # Perfetto accepts a comma before the bracket, but JSON does not.
            self.overwrite(self.size_bytes - len(b",\n"), b"\n]\n")
        except OSError:
            pass  # Perfetto reads the file without its end
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def check_mode(mode: int) -> int:
    """Return a file mode with which the user can read and write the files; refuse others."""
    if isinstance(mode, bool) or not isinstance(mode, int) or mode & ~0o666 or mode & PRIVATE_MODE != PRIVATE_MODE:
        shown = oct(mode) if isinstance(mode, int) else repr(mode)
        raise ConfigError(f"mode must say who may read and write the files, such as 0o600, 0o640 or 0o664, not {shown}")
    return mode


def make_folder(folder: Path, path: str, mode: int = PRIVATE_MODE) -> None:
    """Make the folder of a trace if it does not exist; by default for the user alone (mode 0700).

    Users who may read the files by ``mode`` may also list and enter the folder. ``path`` is for the error message.

    Raises:
        StorageError: The folder cannot be made or written to.
    """
    try:
        make_folders(folder, mode)
        if not folder.is_dir():
            raise NotADirectoryError(20, "its folder is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "its folder may not be written to")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
