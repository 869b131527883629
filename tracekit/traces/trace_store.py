"""List the files of a folder or URL that may be traces, and read parts of them."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.errors import ConfigError, StorageError
from tracekit.storage import explained, filesystem_of, is_remote, without_secrets
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FILES: Final = 200_000  # the maximum number of files below a folder; the others are ignored

_SUFFIXES: Final = (".json", ".json.gz")
_RECOVERED: Final = (".recovered.json", ".recovered.json.gz")  # copies by `tracekit recover`
_MAX_DEPTH: Final = 12


class Entry(Struct, frozen=True):
    """A file as the storage lists it."""

    path: str
    size_bytes: int
    written_ns: int  # the time of its last change, ns since the epoch; 0 if the storage does not state it
    identity: object  # changes when another file replaces it


class Part(NamedTuple):
    """A part of a file: the offsets of its first byte and behind its last."""

    path: str
    start: int
    end: int


def open_place(root: str, *, confined: bool = False) -> TraceStore:
    """Open a folder or URL. Ignore symbolic links that lead out of the folder if ``confined``.

    Raises:
        ConfigError: It is a file.
    """
    if is_remote(root):
        return _RemoteStore(root)
    if Path(root).is_file():
        raise ConfigError(f"{root}: is a file; name the folder that the rank traces are in")
    return _LocalStore(root, confined=confined)


class _LocalStore:
    """A folder. Each method does the same as that of `_RemoteStore`."""

    remote = False
    at_once = 1

    def __init__(self, root: str, *, confined: bool) -> None:
        self.root = root
        self._confined = confined

    def entries(self) -> list[Entry]:
        root = Path(self.root)
        if not root.is_dir():
            raise StorageError(f"{self.root}: no such folder")
        try:
            os.scandir(root).close()
        except OSError as error:
            raise explained(self.root, error, "be listed") from error
        root = root.resolve()
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
                    elif _may_be_trace(file.name) and file.is_file():
                        if self._confined and file.is_symlink() and not Path(file.path).resolve().is_relative_to(root):
                            continue
                        stat = file.stat()
                        identity = (stat.st_dev, stat.st_ino)
                        found.append(Entry(file.path, stat.st_size, stat.st_mtime_ns, identity))
                except OSError:  # removed meanwhile
                    continue
        return found[:MAX_FILES]

    def read(self, parts: Sequence[Part]) -> list[bytes | StorageError]:
        found: list[bytes | StorageError] = []
        for path, start, end in parts:
            try:
                with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
                    found.append(os.pread(file.fileno(), end - start, start))
            except OSError as error:
                found.append(explained(path, error, "be read"))
        return found


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as files:  # it may be removed, or be of another user
        yield from files


def _may_be_trace(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.endswith(_RECOVERED)


class _RemoteStore:
    """The objects below a URL."""

    remote = True
    at_once = 32  # the number of parts to ask for together

    def __init__(self, root: str) -> None:
        self.root = root
        self._filesystem, self._inner = filesystem_of(root)

    def entries(self) -> list[Entry]:
        """Return the files that may be traces.

        Raises:
            StorageError: The folder is missing or cannot be read.
        """
        filesystem = self._filesystem
        try:
            filesystem.invalidate_cache()
            listed = filesystem.find(self._inner, detail=True)
            is_there = bool(listed) or filesystem.exists(self._inner)
        except Exception as error:
            raise explained(self.root, error, "be listed") from error
        if not is_there:
            raise StorageError(f"{without_secrets(self.root)}: no such folder, or nothing is in it")
        found = []
        for name, detail in listed.items():
            inside = name[len(self._inner) :].lstrip("/")
            if _may_be_trace(inside) and not any(part.startswith(".") for part in inside.split("/")):
                size = detail.get("size")
                identity = detail.get("ETag") or detail.get("etag") or detail.get("ino")
                url = str(filesystem.unstrip_protocol(name))
                found.append(Entry(url, size if isinstance(size, int) else 0, _written_ns(detail), identity))
        return found[:MAX_FILES]

    def read(self, parts: Sequence[Part]) -> list[bytes | StorageError]:
        """Return parts of files, shorter at the end of a file; an error for each that cannot be read."""
        filesystem = self._filesystem
        asked = [part for part in parts if part.end > part.start]  # stores refuse a range of nothing
        names = [str(filesystem._strip_protocol(part.path)) for part in asked]  # noqa: SLF001 - fsspec's way
        starts, ends = [part.start for part in asked], [part.end for part in asked]
        try:
            pieces = filesystem.cat_ranges(names, starts, ends, on_error="return")
        except Exception as error:  # noqa: BLE001 - a client of a storage may raise anything
            pieces = [error] * len(asked)
        found = dict(zip(asked, pieces, strict=True))
        return [
            explained(part.path, piece, "be read") if isinstance(piece, BaseException) else bytes(piece)
            for part in parts
            for piece in [found.get(part, b"")]
        ]


def _written_ns(detail: dict[str, Any]) -> int:
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = detail.get(key)
        if isinstance(value, datetime):
            return round(value.timestamp() * 1e9)
        if isinstance(value, int | float):
            return round(value * 1e9)
    return 0


TraceStore = _LocalStore | _RemoteStore  # a folder, or the objects below a URL
