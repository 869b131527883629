"""LiveFile: a trace file that can be opened at any moment while it is being written."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import shutil
import tempfile
from pathlib import Path

from tracekit import storage
from tracekit.errors import ConfigError, StorageError

__all__ = ["LiveFile", "NameTakenError", "make_folder"]

logger = logging.getLogger("tracekit")


class NameTakenError(ConfigError):
    """A file of that name exists, and tracekit never overwrites a trace."""


class LiveFile:
    """A file that is whole after every write.

    Written with ``os.write`` to a descriptor that is this file's alone: no buffer that a fork could write twice. After a
    short or failed write it is cut back to the last whole record, because a tear in the middle makes the file unreadable.
    """

    def __init__(self, path: str, head: bytes) -> None:
        self.path = path
        self._spool: Path | None = None
        if storage.is_remote(path):
            self._spool = Path(tempfile.mkdtemp(prefix="tracekit-"))
            local = self._spool / storage.basename(path)
        else:
            local = Path(path)
            make_folder(local.parent, path)
        self._final = local
        self._live = local.with_name(local.name.removesuffix(".gz"))
        for existing in {self._final, self._live}:
            if os.path.lexists(existing):
                raise NameTakenError(
                    f"{existing}: exists already, and tracekit never overwrites a trace; choose another name "
                    "(with {run_id} or {attempt} in it), or remove the file"
                )
        self._good_bytes = 0
        self._descriptor = -1
        try:
            self._create(head)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _create(self, head: bytes) -> None:
        # Under another name first, so that nobody ever sees a file without its metadata. A link, unlike a rename, does not
        # replace a file that somebody else made meanwhile.
        temporary = self._live.with_name(f".{self._live.name}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(temporary, flags, 0o600)
        try:
            self.write(head)
            try:
                os.link(temporary, self._live)
            except OSError:
                if self._live.exists():
                    raise
                os.rename(temporary, self._live)  # a file system without links
        except OSError:
            os.close(self._descriptor)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @property
    def size_bytes(self) -> int:
        """How much has been written, before compression."""
        return self._good_bytes

    def write(self, data: bytes) -> None:
        """Append whole records, or nothing.

        Raises:
            OSError: They could not be written, and are not in the file.
        """
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._good_bytes)
                os.lseek(self._descriptor, self._good_bytes, os.SEEK_SET)
            raise
        self._good_bytes += len(data)

    def finish(self, lines: bytes) -> Path | None:
        """Write the last lines and close the array; compress and upload where the name asks for it.

        Raises nothing: what fails is logged.

        Returns:
            The local file that remains; None when it was uploaded.
        """
        try:
            self.write(lines)
            # Perfetto would take the last comma, but JSON has none before the bracket.
            self._good_bytes -= len(b",\n")
            os.lseek(self._descriptor, self._good_bytes, os.SEEK_SET)
            self.write(b"\n]\n")
        except OSError:
            pass  # Perfetto reads the file without its end
        finally:
            os.close(self._descriptor)
        try:
            if self._final != self._live:
                _compress(self._live, self._final)
            if self._spool is not None:
                storage.upload(os.fspath(self._final), self.path)
                shutil.rmtree(self._spool, ignore_errors=True)
                return None
        except (OSError, StorageError) as error:
            kept = self._final if self._final.exists() else self._live
            logger.warning(
                "tracekit: %s is not complete where it should be (%s); the trace is kept in %s", self.path, error, kept
            )
            return kept
        return self._final


def _compress(plain: Path, packed: Path) -> None:
    temporary = packed.with_name(f".{packed.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Level 1: a fifth of the time of the default for a quarter more bytes.
        with (
            os.fdopen(descriptor, "wb") as raw,
            gzip.GzipFile("", "wb", 1, raw, mtime=0) as out,
            plain.open("rb") as source,
        ):
            shutil.copyfileobj(source, out, 1 << 20)
        os.replace(temporary, packed)
        plain.unlink()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def make_folder(folder: Path, path: str) -> None:
    """Make the folder of a trace, for the user alone (mode 0700), if it is not there.

    Args:
        folder: The folder.
        path: The file that it is for, for the message.

    Raises:
        StorageError: It cannot be made, or may not be written to.
    """
    try:
        # makedirs gives its mode to the last folder only; parents follow the umask.
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another rank made it meanwhile
                parent.mkdir(mode=0o700)
        if not folder.is_dir():
            raise NotADirectoryError(20, "its folder is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "its folder may not be written to")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
