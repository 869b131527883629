"""Archives of several files, tar and zip, written piece by piece in the ways that Perfetto's readers take.

Perfetto reads zip without zip64, without UTF-8 names and from front to back (``zip_reader.cc``), and tar in the ustar form
(``tar_trace_reader.cc``). The same members give the same bytes: nothing tells of times and owners.
"""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from tracekit.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["ArchiveFile", "TarArchive", "ZipArchive", "archive_format"]

_BLOCK: Final = 512
_TAR_LIMIT_BYTES: Final = 8 << 30
_ZIP_LIMIT_BYTES: Final = (2 << 30) - 1
_DEFLATE_LEVEL: Final = 1
_MODE: Final = 0o644


class ArchiveFile(Protocol):
    """An archive that is being written to a file that can be sought in."""

    def __init__(self, file: BinaryIO) -> None: ...

    def add(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a member.

        Args:
            name: Its path: ASCII, at most 99 characters.
            pieces: Its content.

        Raises:
            MergeError: It is larger than this form of archive can hold.
        """

    def close(self) -> None:
        """Complete the archive; the file stays open."""


class TarArchive:
    """Writes a tar archive in the ustar form."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a member, whose size may be unknown until it ends."""
        start = self._file.tell()
        self._file.write(bytes(_BLOCK))
        size = 0
        for piece in pieces:
            size += len(piece)
            self._file.write(piece)
        if size >= _TAR_LIMIT_BYTES:
            raise MergeError(
                f"{name}: has {size:,} bytes, and a member of a tar archive ends at 8 GiB; merge to .json.gz"
            )
        self._file.write(bytes(-size % _BLOCK))
        end = self._file.tell()
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, _MODE
        self._file.seek(start)
        self._file.write(header.tobuf(tarfile.USTAR_FORMAT))
        self._file.seek(end)

    def close(self) -> None:
        """Write the end of the archive."""
        self._file.write(bytes(2 * _BLOCK))


class ZipArchive:
    """Writes a zip archive, whose members are packed."""

    def __init__(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file, "w")

    def add(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a member."""
        info = zipfile.ZipInfo(name)
        info.create_system = 3  # whatever system this one is
        info.external_attr = _MODE << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        info._compresslevel = _DEFLATE_LEVEL  # type: ignore[attr-defined] # noqa: SLF001 - public from Python 3.13 on
        size = 0
        with self._zip.open(info, "w") as member:
            for piece in pieces:
                size += len(piece)
                if size > _ZIP_LIMIT_BYTES:
                    raise MergeError(
                        f"{name}: has more than {_ZIP_LIMIT_BYTES:,} bytes, which Perfetto does not take in a zip archive; "
                        "write a .tar"
                    )
                member.write(piece)

    def close(self) -> None:
        """Write the directory."""
        self._zip.close()


_FORMATS: Final[dict[str, Callable[[BinaryIO], ArchiveFile]]] = {".tar": TarArchive, ".zip": ZipArchive}


def archive_format(path: str) -> Callable[[BinaryIO], ArchiveFile] | None:
    """Return the archive that a name asks for by its ending, None for other names."""
    return next((kind for ending, kind in _FORMATS.items() if path.endswith(ending)), None)
