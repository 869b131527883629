"""Packing: a finished plain file becomes a ``.gz`` that is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from tracekit.storage import temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["StoppedError", "pack"]

_CHUNK_BYTES: Final = 1 << 20


class StoppedError(Exception):
    """Packing was told to stop; the plain file is as it was."""


def pack(plain: Path, packed: Path, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Replace a file by its packed copy. zlib lets go of the interpreter lock while it works.

    The same content gives the same bytes.

    Args:
        plain: The finished file.
        packed: Name of the copy.
        stopped: Asked between two pieces; True ends it.

    Returns:
        Whether the packed file is there; False when somebody has removed the plain one meanwhile.

    Raises:
        StoppedError: It was told to stop.
        OSError: It could not be done, or another file has that name; the plain file is still there.
    """
    import gzip  # here: most recordings pack nothing

    temporary = ""
    try:
        with plain.open("rb") as source:
            descriptor, temporary = temporary_file(packed.parent, packed.name)
            # Level 1: a fifth of the time of the default for a quarter more bytes.
            with os.fdopen(descriptor, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as out:
                os.fchmod(descriptor, os.fstat(source.fileno()).st_mode & 0o777)
                while piece := source.read(_CHUNK_BYTES):
                    if stopped():
                        raise StoppedError
                    out.write(piece)
        _link(temporary, packed)
    except FileNotFoundError:
        if plain.exists():
            raise
        return False
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    try:
        os.unlink(plain)
    except FileNotFoundError:
        packed.unlink(missing_ok=True)  # what was removed shall not come back
        return False
    return True


def _link(temporary: str, packed: Path) -> None:
    """Give a file its name, unless another one has it; a rename would replace that one."""
    try:
        os.link(temporary, packed)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if packed.exists():
            raise
        os.rename(temporary, packed)
