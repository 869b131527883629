"""Runs that wait for a request to record, and the captures that pages have asked for, each followed by a thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Final

from tracekit.capture.control_folder import RANKS, ControlFolder, RankStatus, Request, listens
from tracekit.capture.coordinator import CaptureCoordinator, fit_request, progress_words, result_lines, results_of
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import StorageError, TracekitError
from tracekit.structs import Struct, replace

RUNNING: Final = "running"
ENDED: Final = "ended"

_PATIENCE_S: Final = 30.0
_END_S: Final = 5.0
_MAX_AT_ONCE: Final = 8
_MAX_FOLDERS: Final = 20_000


class ListeningRun(Struct, frozen=True):
    """A run with a control folder, the status of each rank and whether it listens, and the time of the last status."""

    run_id: str
    control: Path
    ranks: tuple[tuple[RankStatus, bool], ...]
    changed_s: float

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.control.parent

    @property
    def listens(self) -> bool:
        """True if any rank listens."""
        return any(listens for _, listens in self.ranks)


def listening_runs(root: Path) -> list[ListeningRun]:
    """Return the runs with a control folder at or below a folder; links are not followed."""
    found = []
    for place, folders, _ in islice(os.walk(root), _MAX_FOLDERS):
        depth = len(Path(place).relative_to(root).parts)
        folders[:] = [name for name in folders if not name.startswith(".")] if depth < 12 else []
        if RANKS in folders:
            with contextlib.suppress(OSError):
                run = _listening_run(Path(place, RANKS))
                if run is not None:
                    folders.remove(RANKS)
                    found.append(run)
    return found


def _listening_run(ranks: Path) -> ListeningRun | None:
    statuses = [status for _, status in sorted(ControlFolder(ranks.parent).statuses().items())]
    if not statuses:
        return None
    # A rank that starts again replaces its status; those of an earlier run with more ranks stay.
    run_id = next((status.run_id for status in statuses if listens(status)), statuses[0].run_id)
    own = tuple((status, listens(status)) for status in statuses if status.run_id == run_id)
    return ListeningRun(run_id, ranks.parent, own, ranks.stat().st_mtime)


class Capture(Struct):
    """The state of a capture; the times are seconds since the epoch."""

    id: str
    began_s: float
    state: str = RUNNING
    doing: str = "asking the ranks"
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    error: str = ""


class Captures:
    """Asks running jobs to record, and watches them do it. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._of_run: dict[str, list[Capture]] = {}
        self._threads: list[threading.Thread] = []

    def of(self, run_id: str) -> list[Capture]:
        """Return copies of the captures of a run as they are now, the newest first."""
        with self._lock:
            return list(map(replace, reversed(self._of_run.get(run_id, ()))))

    def start(self, run_id: str, control: Path, *, steps: int, ranks: tuple[int, ...] | None) -> None:
        """Ask ranks (None: all) of a run to record some batches, and follow them in the background.

        Raises ConfigError if no rank would take the request, TracekitError if nobody listens or a capture is under way.
        """
        written = Request(ranks=ranks, steps=steps, together=True)
        request = Request.from_bytes(written.to_bytes())  # refused here as a rank would refuse it
        folder = ControlFolder(control)
        with self._lock:
            running = [one for captures in self._of_run.values() for one in captures if one.state == RUNNING]
            if any(one.state == RUNNING for one in self._of_run.get(run_id, ())):
                raise TracekitError("a capture of this run is under way already")
            if len(running) >= _MAX_AT_ONCE or self._closing.is_set():
                raise TracekitError("too many captures are under way; try again in a while")
            try:
                request = fit_request(folder, request)
                coordinator = CaptureCoordinator(folder, request, timeout_s=_PATIENCE_S)
                coordinator.begin()
            except OSError as error:
                raise TracekitError(f"the run cannot be asked: {error.strerror or error}") from None
            capture = Capture(request.id, SYSTEM_CLOCK.wall_ns() / 1e9)
            thread = threading.Thread(
                target=self._watch, args=(capture, coordinator), name="tracekit serve capture", daemon=True
            )
            thread.start()
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            captures = self._of_run.setdefault(run_id, [])
            captures.append(capture)
            del captures[:-20]

    def close(self) -> None:
        """Follow captures no more, and wait for their threads at most 5 s; the ranks go on."""
        self._closing.set()
        with self._lock:
            threads = list(self._threads)
        deadline_s = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _watch(self, capture: Capture, coordinator: CaptureCoordinator) -> None:
        try:
            error = self._follow(capture, coordinator)
            results = results_of(coordinator)
            files = tuple(dict.fromkeys(file for result in results for file in result["files"]))
            lines = tuple(result_lines(results)) or ("no rank has answered",)
        except Exception as unexpected:  # noqa: BLE001 - the page shows it
            lines, files = (), ()
            error = f"unexpected {type(unexpected).__name__}: {unexpected}; please report this"
        with self._lock:
            capture.lines, capture.files, capture.error, capture.state = lines, files, error, ENDED

    def _follow(self, capture: Capture, coordinator: CaptureCoordinator) -> str:
        """Follow a capture until every rank is done; return why that was not possible, or an empty text."""
        try:
            while not coordinator.finished:
                coordinator.poll()
                with self._lock:
                    capture.doing = progress_words(coordinator)
                if not coordinator.finished and self._closing.wait(coordinator.pause_s):
                    return "it was not followed to its end; the ranks have gone on"
        except OSError as error:
            return f"the run cannot be looked at any more: {error.strerror or error}"
        except StorageError as error:
            return f"the run cannot be asked any more: {error}"
        return ""
