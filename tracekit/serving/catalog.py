"""The runs below a folder or URL, as the pages show them: found again and again, and known by names that are no paths."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.formats.trace_files import trace_files
from tracekit.serving.control import listening_runs
from tracekit.serving.runs import waiting_run, watched_run
from tracekit.serving.store import key_of
from tracekit.storage import is_remote, without_secrets
from tracekit.watching import RunState, Watch
from tracekit.watching.places import Entry, open_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.serving.control import ListeningRun
    from tracekit.serving.runs import Run

__all__ = ["Catalog", "Inputs"]

_FRESH_S: Final = 1.0
_FOLLOWED_S: Final = 60.0
_LISTED_S: Final = 5.0
_MOST_LISTED: Final = 64
_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is merged and explained of a run.

    Attributes:
        names: Files, or the folder that all of them are in.
        key: What this state of them is known by.
        bytes: How much there is of it.
        notes: What the reader should know.
    """

    names: tuple[str, ...]
    key: str
    bytes: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    runs: dict[str, Run] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""
    at_s: float = -_ALL


class Catalog:
    """Looks at the runs below a folder or URL, when somebody asks and not more often than once a second.

    Any thread may use it; each method may wait for the storage.

    Args:
        root: The folder or URL.

    Raises:
        ConfigError: It is a file.
        StorageError: The storage is not known.
    """

    def __init__(self, root: str) -> None:
        self._root = root if is_remote(root) else os.fspath(Path(root).resolve())
        self.remote = is_remote(root)
        self.name = without_secrets(self._root)
        self._watch = Watch(self._root, confined=True)
        self._lock = threading.Lock()
        self._seen = _Seen()
        self._followed: dict[str, float] = {}  # run id to when it was asked for
        self._listed: dict[str, tuple[float, Inputs]] = {}  # of a bucket, by run: when, and what was there

    def runs(self) -> tuple[list[Run], tuple[str, ...], str]:
        """Return the runs, the newest first; notes; and what is wrong with the place, empty for nothing."""
        with self._lock:
            seen = self._look()
            return list(seen.runs.values()), seen.notes, seen.problem

    def find(self, name: str) -> Run | None:
        """Return the run of an id, and look at it more closely from now on; None where there is none."""
        with self._lock:
            seen = self._look()
            run = seen.runs.get(name)
            if run is None or run.watched is None:
                return run
            new = run.watched.run_id not in self._followed
            self._followed[run.watched.run_id] = time.monotonic()
            if new:
                seen.at_s = -_ALL
                run = self._look().runs.get(name)
            return run

    def inputs(self, run: Run) -> Inputs:
        """Return what is merged of a run: all that is in its folder, as traces of torch lie beside those of the ranks.

        Raises:
            StorageError: The folder cannot be listed.
        """
        known = self._listed.get(run.id)
        if known is not None and time.monotonic() - known[0] < _LISTED_S:
            return known[1]
        found = self._inputs(run)
        if self.remote:
            self._listed = {**dict(list(self._listed.items())[-_MOST_LISTED:]), run.id: (time.monotonic(), found)}
        return found

    def _inputs(self, run: Run) -> Inputs:
        if run.shared or not run.folder:
            return self.inputs_of(run.files, ("other runs lie in the same folder: only what the ranks wrote is taken",))
        if self.remote:
            everything = open_place(run.folder).entries()
        else:
            # All that a merge takes from the folder, which is more than what is watched.
            traces = trace_files(run.folder, flight_dumps=True)
            if not all(map(self.holds, traces)):
                return self.inputs_of(run.files, ("links that lead to other folders are not followed",))
            everything = [entry for file in traces if (entry := _entry(file)) is not None]
        # Not each by its name: of a folder, a merge leaves out what is no trace, and what is there twice.
        return Inputs((run.folder,), key_of(everything), sum(entry.size_bytes for entry in everything))

    def inputs_of(self, files: Sequence[str], notes: tuple[str, ...] = ()) -> Inputs:
        """Return these files as what is merged; those that are not below the root are left out."""
        inside = sorted(file for file in files if self.holds(file))
        if self.remote:
            listed = {entry.path: entry for entry in open_place(self._root).entries()}
            entries = [listed[file] for file in inside if file in listed]
        else:
            entries = [entry for file in inside if (entry := _entry(file)) is not None]
        names = tuple(entry.path for entry in entries)
        return Inputs(names, key_of(entries), sum(entry.size_bytes for entry in entries), notes)

    def holds(self, path: str) -> bool:
        """Tell whether a file lies below the root, whatever links lead to it."""
        if self.remote or is_remote(path):
            return path.startswith(self._root.rstrip("/") + "/") and "/../" not in path
        try:
            return Path(path).is_absolute() and Path(path).resolve().is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError):  # what is no name, and links in a circle
            return False

    # ---- looking, with the lock -----------------------------------------------------------------------------------------

    def _look(self) -> _Seen:
        now_s = time.monotonic()
        if now_s - self._seen.at_s < _FRESH_S:
            return self._seen
        self._followed = {run: at for run, at in self._followed.items() if now_s - at < _FOLLOWED_S}
        try:
            look = self._watch.look(set(self._followed))
        except StorageError as error:
            self._seen = _Seen(problem=str(error), at_s=time.monotonic())
            return self._seen
        listening: dict[str, list[ListeningRun]] = {}
        for one in [] if self.remote else listening_runs(Path(self._root)):
            listening.setdefault(one.run_id, []).append(one)
        runs = [*self._watched(look.runs, listening)]
        runs += [
            waiting_run(one, self._name(os.fspath(one.folder), one.run_id))
            for left in listening.values()
            for one in left
        ]
        runs.sort(key=lambda run: (-run.start_s, run.name))
        notes = tuple(note.replace(self._root.rstrip("/") + "/", "") for note in look.notes)
        self._seen = _Seen({run.id: run for run in runs}, notes, "", time.monotonic())
        return self._seen

    def _watched(self, states: Sequence[RunState], listening: dict[str, list[ListeningRun]]) -> list[Run]:
        """Return the runs that were seen; takes those out of ``listening`` that are one of them."""
        folders = Counter(state.folder for state in states)
        runs_below = Counter(folder for state in states for folder in _folders_above(state.paths))
        found = []
        for state in states:
            waiting = listening.get(state.run_id, [])
            own = next((one for one in waiting if _near(one, state)), None)
            if own is not None:
                waiting.remove(own)
            shared = runs_below[state.folder.rstrip("/")] > 1  # itself, and others
            name = self._name(state.folder, state.run_id, unique=folders[state.folder] == 1)
            found.append(watched_run(state, name, shared=shared, listening=own))
        return found

    def _name(self, folder: str, run_id: str, *, unique: bool = True) -> str:
        inside = folder[len(self._root) :].strip("/") if folder.startswith(self._root) else ""
        return f"{inside} · {run_id}" if inside and not unique else inside or run_id.strip() or "(unnamed)"


def _entry(file: str) -> Entry | None:
    """Return a local file; None for one that is not there, whose name might stand for others."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return Entry(file, status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))


def _folders_above(paths: Iterable[str]) -> set[str]:
    """Return the folders that some files are below of, at any depth."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _near(one: ListeningRun, state: RunState) -> bool:
    """Tell whether a control folder is that of a run, and not of another one that has the same name."""
    return _below(os.fspath(one.folder), state.folder) or _below(state.folder, os.fspath(one.folder))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
