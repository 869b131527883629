"""Write tar and zip archives in the forms that Perfetto reads. The same members give the same bytes.

Perfetto reads zip without zip64 and only with ASCII names (``zip_reader.cc``), and tar as ustar (``tar_trace_reader.cc``).
"""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Members = Iterable[tuple[str, Iterable[bytes]]]

MANIFEST_KEY: Final = "perfetto_manifest"
MANIFEST_NAME: Final = "perfetto_manifest.json"

_BLOCK: Final = 512
_TAR_LIMIT_BYTES: Final = (8 << 30) - 1
_ZIP_LIMIT_BYTES: Final = (2 << 30) - 1


def write_tar(file: BinaryIO, members: Members) -> None:
    """Write a tar archive of members, each a name of at most 99 ASCII characters and its pieces, to a seekable file.

    Raises:
        MergeError: A member is too large for this form of archive.
    """
    for name, pieces in members:
        header, start = tarfile.TarInfo(name), file.tell()
        file.write(bytes(_BLOCK))
        file.writelines(_limited(name, pieces, _TAR_LIMIT_BYTES, "a tar archive; merge to .json.gz"))
        end = file.tell()
        header.size = end - start - _BLOCK
        file.seek(start)
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.seek(end)
        file.write(bytes(-header.size % _BLOCK))
    file.write(bytes(2 * _BLOCK))


def write_zip(file: BinaryIO, members: Members) -> None:
    """Write a zip archive, with packed members; see `write_tar`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, pieces in members:
            with archive.open(name, "w") as member:
                member.writelines(_limited(name, pieces, _ZIP_LIMIT_BYTES, "a zip archive for Perfetto; write a .tar"))


def _limited(name: str, pieces: Iterable[bytes], limit_bytes: int, form: str) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit_bytes:
            raise MergeError(f"{name}: more than {limit_bytes:,} bytes do not fit into {form}")
        yield piece
