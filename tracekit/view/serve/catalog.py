"""The runs below a folder or URL, found again and again, and known by names that are not paths."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import StorageError
from tracekit.storage import is_remote, without_secrets
from tracekit.structs import Struct, field
from tracekit.traces.inputs import trace_files
from tracekit.traces.trace_store import Entry, open_place
from tracekit.view.live import Look, RunState, Watch
from tracekit.view.serve.captures import ListeningRun, listening_runs
from tracekit.view.serve.runs import Run, folder_run, waiting_run, watched_run
from tracekit.view.serve.store import key_of

if TYPE_CHECKING:
    from tracekit.traces.rank_head import OtherTrace

_FRESH_S: Final = 1.0
_FOLLOWED_S: Final = 60.0
_LISTED_S: Final = 5.0
_NEVER_S: Final = -float(1 << 62)


class Inputs(Struct, frozen=True):
    """The files of a run, or the folder that all of them are in; the key of their present state, their size, and notes."""

    names: tuple[str, ...]
    key: str
    bytes: int
    notes: tuple[str, ...] = ()


class _Snapshot(Struct):
    runs: dict[str, Run] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""
    at_s: float = _NEVER_S


class Catalog:
    """Looks at the runs below a folder or URL, when somebody asks and at most once a second.

    Any thread may use it; each method may wait for the storage.
    """

    def __init__(self, root: str) -> None:
        self._root = root if is_remote(root) else os.fspath(Path(root).resolve())
        self.remote = is_remote(root)
        self.name = without_secrets(self._root)
        self._watch = Watch(self._root, confined=True)
        self._lock = threading.Lock()
        self._snapshot = _Snapshot()
        self._followed: dict[str, float] = {}  # run id to the time when a page asked for it
        self._listed: dict[str, tuple[float, Inputs]] = {}  # of a bucket, by run, with the time

    def runs(self) -> tuple[list[Run], tuple[str, ...], str]:
        """Return the runs, the newest first; notes; and the reason why the root cannot be read, or an empty text."""
        with self._lock:
            seen = self._look()
            return list(seen.runs.values()), seen.notes, seen.problem

    def find(self, name: str) -> Run | None:
        """Return the run of an id, and read its steps and stages for some time; None for unknown ids."""
        with self._lock:
            seen = self._look()
            run = seen.runs.get(name)
            if run is None or run.watched is None:
                return run
            is_new = run.watched.run_id not in self._followed
            self._followed[run.watched.run_id] = time.monotonic()
            if is_new:
                seen.at_s = _NEVER_S
                run = self._look().runs.get(name)
            return run

    def inputs(self, run: Run) -> Inputs:
        """Return all traces in the folder of a run, where traces of torch lie next to those of the ranks. Raises StorageError."""
        known = self._listed.get(run.id)
        if known is not None and time.monotonic() - known[0] < _LISTED_S:
            return known[1]
        if run.shared or not run.folder:
            found = self.inputs_of(run.files, ("other runs lie in the same folder: only its own files are taken",))
        elif self.remote:
            found = _inputs((run.folder,), open_place(run.folder).entries())
        elif all(map(self.holds, traces := trace_files(run.folder, flight_dumps=True))):
            # Name the folder: its merge skips other files and duplicates.
            found = _inputs((run.folder,), _entries(traces))
        else:
            found = self.inputs_of(run.files, ("links that lead to other folders are not followed",))
        if self.remote:
            self._listed = {**dict(list(self._listed.items())[-64:]), run.id: (time.monotonic(), found)}
        return found

    def inputs_of(self, files: Sequence[str], notes: tuple[str, ...] = ()) -> Inputs:
        """Return these files; those outside of the root are left out."""
        inside = sorted(file for file in files if self.holds(file))
        if self.remote:
            listed = {entry.path: entry for entry in open_place(self._root).entries()}
            entries = [listed[file] for file in inside if file in listed]
        else:
            entries = _entries(inside)
        return _inputs(tuple(entry.path for entry in entries), entries, notes)

    def holds(self, path: str) -> bool:
        """Return True for files below the root, whatever links lead to them."""
        if self.remote or is_remote(path):
            return path.startswith(self._root.rstrip("/") + "/") and "/../" not in path
        try:
            return Path(path).is_absolute() and Path(path).resolve().is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError):  # unfit names, and links in a circle
            return False

    # ---- looking, with the lock -----------------------------------------------------------------------------------------

    def _look(self) -> _Snapshot:
        now_s = time.monotonic()
        if now_s - self._snapshot.at_s < _FRESH_S:
            return self._snapshot
        self._followed = {run: at for run, at in self._followed.items() if now_s - at < _FOLLOWED_S}
        try:
            look = self._watch.look(set(self._followed))
        except StorageError as error:
            self._snapshot = _Snapshot(problem=str(error), at_s=time.monotonic())
            return self._snapshot
        listening: dict[str, list[ListeningRun]] = {}
        for one in [] if self.remote else listening_runs(Path(self._root)):
            listening.setdefault(one.run_id, []).append(one)
        runs = [*self._watched(look, listening), *self._of_other_tools(look)]
        for left in listening.values():
            runs += [waiting_run(one, self._name(os.fspath(one.folder), one.run_id)) for one in left]
        runs.sort(key=lambda run: (-run.start_s, run.name))
        notes = tuple(note.replace(self._root.rstrip("/") + "/", "") for note in look.notes)
        self._snapshot = _Snapshot({run.id: run for run in runs}, notes, "", time.monotonic())
        return self._snapshot

    def _watched(self, look: Look, listening: dict[str, list[ListeningRun]]) -> list[Run]:
        """Return the recorded runs; take those out of ``listening`` that are one of them."""
        folders = Counter(state.folder for state in look.runs)
        runs_below = Counter(folder for state in look.runs for folder in _folders_above(state.paths))
        found = []
        for state in look.runs:
            waiting = listening.get(state.run_id, [])
            own = next((one for one in waiting if _is_near(one, state)), None)
            if own is not None:
                waiting.remove(own)
            shared = runs_below[state.folder.rstrip("/")] > 1  # itself, and others
            name = self._name(state.folder, state.run_id, unique=folders[state.folder] == 1)
            found.append(watched_run(state, name, shared=shared, listening=own))
        return found

    def _of_other_tools(self, look: Look) -> list[Run]:
        """Return the traces of other tools as runs, one a folder; those below the folder of a recorded run belong to it."""
        taken = {state.folder for state in look.runs}
        folders: dict[str, list[tuple[Entry, OtherTrace]]] = {}
        for entry, trace in look.others:
            folder = entry.path.rpartition("/")[0]
            if not taken.intersection((folder, *_folders_above([folder]))):
                folders.setdefault(folder, []).append((entry, trace))
        above = Counter(place for folder in (*folders, *taken) for place in _folders_above([folder]))
        return [
            folder_run(folder, self._name(folder, folder.rpartition("/")[2]), traces, shared=above[folder] > 0)
            for folder, traces in folders.items()
        ]

    def _name(self, folder: str, run_id: str, *, unique: bool = True) -> str:
        inside = folder[len(self._root) :].strip("/") if folder.startswith(self._root) else ""
        inside = inside.replace("/plugins/profile/", "/")  # the folders that JAX makes in that of a run
        return f"{inside} · {run_id}" if inside and not unique else inside or run_id.strip() or "(unnamed)"


def _inputs(names: tuple[str, ...], entries: Sequence[Entry], notes: tuple[str, ...] = ()) -> Inputs:
    return Inputs(names, key_of(entries), sum(entry.size_bytes for entry in entries), notes)


def _entries(files: Iterable[str]) -> list[Entry]:
    """Return local files, without those that are not there: their names might be patterns."""
    found = []
    for file in files:
        try:
            status = Path(file).stat()
        except OSError:
            continue
        found.append(Entry(file, status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino)))
    return found


def _folders_above(paths: Iterable[str]) -> set[str]:
    """Return the folders above some files, of any depth."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _is_near(one: ListeningRun, state: RunState) -> bool:
    """Return True if a control folder belongs to a run, and not to another one of the same name."""
    ours, theirs = f"{one.folder}/", f"{state.folder.rstrip('/')}/"
    return ours.startswith(theirs) or theirs.startswith(ours)
