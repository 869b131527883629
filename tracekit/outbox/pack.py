"""Packing: replaces a finished plain file by a ``.gz`` file, atomically."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from tracekit.storage import temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CHUNK_BYTES: Final = 1 << 20


class StoppedError(Exception):
    """Packing was stopped; the plain file is unchanged."""


def pack(plain: Path, packed: Path, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Replace a file by its packed copy. zlib releases the interpreter lock while it works.

    The same content gives the same bytes. ``stopped`` is called between two pieces; True stops the packing. Return
    False if somebody has removed the plain file meanwhile.

    Raises:
        StoppedError: ``stopped`` returned True.
        OSError: Packing failed, or another file has the name of the copy; the plain file still exists.
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
        packed.unlink(missing_ok=True)  # a file that a user has removed must not come back
        return False
    return True


def _link(temporary: str, packed: Path) -> None:
    """Give a file its final name without replacing another file, unlike a rename."""
    try:
        os.link(temporary, packed)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if packed.exists():
            raise
        os.rename(temporary, packed)
