"""Runs that wait for a request to record: the control folders below a folder."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.capture.drive import is_gone
from tracekit.capture.folder import RANKS, ControlFolder

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.capture.documents import RankStatus

__all__ = ["ListeningRun", "listening_runs"]

_MOST_FOLDERS: Final = 20_000
_MOST_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class ListeningRun:
    """A run that has a control folder.

    Attributes:
        run_id: Its name.
        control: The control folder.
        ranks: What each rank says of itself, and whether it listens as far as is known.
        changed_s: When a rank wrote there last, seconds since the epoch.
    """

    run_id: str
    control: Path
    ranks: tuple[tuple[RankStatus, bool], ...]
    changed_s: float

    @property
    def folder(self) -> Path:
        """The folder of the run: that which the control folder is in."""
        return self.control.parent

    @property
    def listens(self) -> bool:
        """Whether any rank listens."""
        return any(listens for _, listens in self.ranks)


def listening_runs(root: Path) -> list[ListeningRun]:
    """Return the runs with a control folder at or below a folder; links are not followed."""
    found = []
    folders = deque([(root, 0)])
    seen = 0
    while folders and seen < _MOST_FOLDERS:
        folder, depth = folders.popleft()
        seen += 1
        if folder.name == RANKS and folder != root:
            with contextlib.suppress(OSError):
                run = _read(folder.parent, folder)
                if run is not None:
                    found.append(run)
                    continue
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            folders.extend(
                (folder / entry.name, depth + 1)
                for entry in entries
                if depth < _MOST_DEPTH and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    return found


def _read(control: Path, ranks: Path) -> ListeningRun | None:
    statuses = [status for _, status in sorted(ControlFolder(control).statuses().items())]
    if not statuses:
        return None
    # A rank that starts again writes over what it said; those of an earlier run with more ranks stay.
    of_run = [(status, status.listening and not is_gone(status)) for status in statuses]
    run_id = next((status.run_id for status, listens in of_run if listens), statuses[0].run_id)
    own = tuple((status, listens) for status, listens in of_run if status.run_id == run_id)
    return ListeningRun(run_id, control, own, ranks.stat().st_mtime)
