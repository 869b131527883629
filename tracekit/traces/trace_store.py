"""List the files of a folder or URL that may be traces, and read parts of them."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tracekit.errors import ConfigError, StorageError
from tracekit.storage import explained, filesystem_of, is_remote, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FILES: Final = 200_000
"""The maximum number of files below a folder; the others are ignored."""

_SUFFIXES: Final = (".json", ".json.gz")
_RECOVERED: Final = (".recovered.json", ".recovered.json.gz")  # copies by `tracekit recover`
_MAX_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as the storage lists it.

    Attributes:
        path: Its path or URL.
        size_bytes: Its size.
        written_ns: The time of its last change, ns since the epoch; 0 if the storage does not state it.
        identity: Changes when another file replaces it.
    """

    path: str
    size_bytes: int
    written_ns: int
    identity: object


class Part(NamedTuple):
    """A part of a file: the offsets of its first byte and behind its last."""

    path: str
    start: int
    end: int


class TraceStore(Protocol):
    """A folder, or the objects below a URL."""

    root: str
    remote: bool
    at_once: int
    """The number of parts to ask for together."""

    def entries(self) -> list[Entry]:
        """Return the files that may be traces.

        Raises:
            StorageError: The folder is missing or cannot be read.
        """

    def read(self, parts: Sequence[Part]) -> list[bytes | StorageError]:
        """Return parts of files, shorter at the end of a file; an error for each that cannot be read."""


def open_place(root: str, *, confined: bool = False) -> TraceStore:
    """Open a folder or URL.

    Args:
        root: The folder or URL.
        confined: Ignore symbolic links that lead out of the folder.

    Raises:
        ConfigError: It is a file.
    """
    if is_remote(root):
        return _RemoteStore(root)
    path = root
    if Path(path).is_file():
        raise ConfigError(f"{path}: is a file; name the folder that the rank traces are in")
    return _LocalStore(path, confined=confined)


class _LocalStore:
    remote = False
    at_once = 1

    def __init__(self, root: str, *, confined: bool) -> None:
        self.root = root
        self._confined = confined

    def entries(self) -> list[Entry]:
        if not Path(self.root).is_dir():
            raise StorageError(f"{self.root}: no such folder")
        found: list[Entry] = []
        # Breadth first: the limit must not be used up by one run.
        folders = deque([(self.root, 0)])
        while folders and len(found) < MAX_FILES:
            folder, depth = folders.popleft()
            for file in _scan(folder):
                if file.name.startswith("."):
                    continue
                try:
                    if file.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            folders.append((file.path, depth + 1))
                    elif _may_be_trace(file.name) and file.is_file() and not (self._confined and self._leads_out(file)):
                        stat = file.stat()
                        identity = (stat.st_dev, stat.st_ino)
                        found.append(Entry(file.path, stat.st_size, stat.st_mtime_ns, identity))
                except OSError:  # removed meanwhile
                    continue
        return found[:MAX_FILES]

    def _leads_out(self, file: os.DirEntry[str]) -> bool:
        return file.is_symlink() and not Path(file.path).resolve().is_relative_to(Path(self.root).resolve())

    def read(self, parts: Sequence[Part]) -> list[bytes | StorageError]:
        return [_read_local(part) for part in parts]


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as files:
            yield from files
    except OSError:  # removed, or of another user
        return


def _read_local(part: Part) -> bytes | StorageError:
    try:
        descriptor = os.open(part.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            return os.pread(descriptor, part.end - part.start, part.start)
        finally:
            os.close(descriptor)
    except OSError as error:
        return explained(part.path, error, "be read")


def _may_be_trace(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.endswith(_RECOVERED)


class _RemoteStore:
    remote = True
    at_once = 32

    def __init__(self, root: str) -> None:
        self.root = root
        self._filesystem, self._inner = filesystem_of(root)

    def entries(self) -> list[Entry]:
        filesystem = self._filesystem
        try:
            filesystem.invalidate_cache()
            listed = filesystem.find(self._inner, detail=True)
        except Exception as error:
            raise explained(self.root, error, "be listed") from error
        found = []
        for name, detail in listed.items():
            inside = name[len(self._inner) :].lstrip("/")
            if _may_be_trace(inside) and not any(part.startswith(".") for part in inside.split("/")):
                size = detail.get("size")
                identity = detail.get("ETag") or detail.get("etag") or detail.get("ino")
                url = str(filesystem.unstrip_protocol(name))
                found.append(Entry(url, size if isinstance(size, int) else 0, _written_ns(detail), identity))
                if len(found) >= MAX_FILES:
                    break
        if not listed and not self._is_there():
            raise StorageError(f"{without_secrets(self.root)}: no such folder, or nothing is in it")
        return found

    def _is_there(self) -> bool:
        try:
            return bool(self._filesystem.exists(self._inner))
        except Exception as error:
            raise explained(self.root, error, "be reached") from error

    def read(self, parts: Sequence[Part]) -> list[bytes | StorageError]:
        filesystem = self._filesystem
        asked = [part for part in parts if part.end > part.start]  # stores refuse a range of nothing
        names = [str(filesystem._strip_protocol(part.path)) for part in asked]  # noqa: SLF001 - fsspec's way
        try:
            starts, ends = [part.start for part in asked], [part.end for part in asked]
            pieces = iter(filesystem.cat_ranges(names, starts, ends, on_error="return"))
        except Exception as error:  # noqa: BLE001 - a client of a storage may raise anything
            pieces = iter([error] * len(asked))
        found: list[bytes | StorageError] = []
        for part in parts:
            piece = next(pieces) if part.end > part.start else b""
            if isinstance(piece, BaseException):
                found.append(explained(part.path, piece, "be read"))
            else:
                found.append(bytes(piece))
        return found


def _written_ns(detail: dict[str, Any]) -> int:
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = detail.get(key)
        if isinstance(value, datetime):
            return round(value.timestamp() * 1e9)
        if isinstance(value, int | float):
            return round(value * 1e9)
    return 0
