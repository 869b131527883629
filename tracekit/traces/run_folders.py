"""Find the runs below a local folder: the folders that hold traces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import StorageError
from tracekit.formats.trace_files import TRACE_SUFFIXES, trace_files

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, order=True)
class RunFolder:
    """A folder with the traces of a run. Later ones are greater.

    Attributes:
        modified_s: Time of the last write to a trace, in seconds since the epoch.
        path: The folder.
        files: Number of traces.
        size_bytes: Their size.
    """

    modified_s: float
    path: Path
    files: int
    size_bytes: int


def find_runs(root: Path) -> Iterator[RunFolder]:
    """Yield the runs at and below a folder, in no order.

    A folder below a run, such as that of the JAX traces, is no further run. The root may hold traces and runs.
    """
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if not any(name.endswith(TRACE_SUFFIXES) for name in files):
            continue
        parent = Path(place)
        try:
            status = [Path(path).stat() for path in trace_files(place) if parent != root or Path(path).parent == root]
        except (StorageError, OSError):
            continue  # only documents of captures, or it is being removed
        if not status:
            continue
        if parent != root:
            folders.clear()
        yield RunFolder(
            max(found.st_mtime for found in status), parent, len(status), sum(found.st_size for found in status)
        )
