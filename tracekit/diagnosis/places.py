"""The storage: whether a place takes traces, and how much room it has."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.diagnosis.findings import Section
from tracekit.errors import StorageError, TracekitError
from tracekit.storage import is_remote, put, read, remove_all, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["examine_place"]

_LITTLE_BYTES: Final = 1_000_000_000
_CONTENT: Final = b"tracekit doctor was here\n"


def examine_place(place: str) -> Section:
    """Write, rename, read and remove a small file in a folder, or an object below a URL, as a recording would.

    Args:
        place: The folder or URL. Folders that are missing are not made; the next one above is looked at.
    """
    section = Section(f"storage {without_secrets(place)}")
    try:
        if is_remote(place):
            _examine_url(place, section)
        else:
            _examine_folder(Path(place), section)
    except TracekitError as error:
        section.problems.append(str(error))
    except OSError as error:
        section.problems.append(f"{without_secrets(place)}: {error.strerror or error}: traces cannot be written here")
    return section


def _examine_url(url: str, section: Section) -> None:
    name = f"{url.rstrip('/')}/tracekit-doctor-{os.urandom(8).hex()}"
    with tempfile.NamedTemporaryFile() as file:
        file.write(_CONTENT)
        file.flush()
        put(file.name, name)
    section.facts["writes"] = True
    try:
        section.facts["reads"] = read(name) == _CONTENT
    finally:
        remove_all(name)
    if not section.facts["reads"]:
        raise StorageError(f"{without_secrets(url)}: what was written does not come back")


def _examine_folder(folder: Path, section: Section) -> None:
    found = next((above for above in _upwards(folder) if above.exists()), Path())
    if found != folder.absolute():
        section.notes.append(f"{folder} is not there; looked at {found}, where it would be made")
    if not found.is_dir():
        raise StorageError(f"{found}: is no folder")
    section.facts["writes"] = False
    descriptor, name = tempfile.mkstemp(prefix=".tracekit-doctor-", dir=found)
    renamed = Path(f"{name}.renamed")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_CONTENT)
            file.flush()
            os.fsync(file.fileno())
        section.facts["writes"] = True
        os.replace(name, renamed)
        section.facts["renames"] = renamed.read_bytes() == _CONTENT
        section.facts["links"] = _links(renamed, Path(f"{name}.linked"))
    finally:
        for path in (Path(name), renamed):
            path.unlink(missing_ok=True)
    free = shutil.disk_usage(found).free
    section.facts["free_bytes"] = free
    if free < _LITTLE_BYTES:
        section.problems.append(
            f"{found}: only {free / 1e6:.0f} MB are free; a full disk loses events (they are counted)"
        )


def _links(path: Path, other: Path) -> bool:
    """Tell whether a name can be taken exclusively by a link, as over NFS, where there may be no other way."""
    try:
        os.link(path, other)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EMLINK):
            return False
        raise
    other.unlink()
    return True


def _upwards(folder: Path) -> Iterator[Path]:
    absolute = folder.absolute()
    yield absolute
    yield from absolute.parents
