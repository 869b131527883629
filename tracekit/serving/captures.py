"""Captures that were asked for on a page: each is driven by a thread of its own, until every rank is done."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tracekit.capture.documents import Request, new_id
from tracekit.capture.drive import Drive
from tracekit.capture.folder import ControlFolder
from tracekit.capture.press import fit_for, progress_words, result_lines, result_of
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Capture", "Captures"]

RUNNING: Final = "running"
ENDED: Final = "ended"

_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 30.0
_END_S: Final = 5.0
_MOST_AT_ONCE: Final = 8
_MOST_KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture as it is at a moment: what a page reads of it first and last is of the same moment.

    Attributes:
        id: What the ranks know it by.
        began_s: When it was asked for, seconds since the epoch.
        state: "running" or "ended".
        doing: How far the ranks are.
        lines: What became of them.
        files: What they have written.
        error: Why it could not be followed to its end; empty for nothing.
    """

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
        """Return the captures of a run as they are now, the newest first."""
        with self._lock:
            return list(reversed(self._of_run.get(run_id, ())))

    def start(self, run_id: str, control: Path, *, steps: int, ranks: tuple[int, ...] | None) -> Capture:
        """Ask a run to record; it goes on in the background.

        Args:
            run_id: Which run it is.
            control: Its control folder.
            steps: How many batches.
            ranks: Which ranks; None for all.

        Raises:
            ConfigError: It asks for what no rank would do.
            TracekitError: It would be in vain: nobody listens, or a capture is in force.
        """
        written = Request(id=new_id(), ranks=ranks, steps=steps, together=True)
        request = Request.from_bytes(written.to_bytes())  # refused here as a rank would refuse it
        folder = ControlFolder(control)
        with self._lock:
            running = [one for captures in self._of_run.values() for one in captures if one.state == RUNNING]
            if any(one.state == RUNNING for one in self._of_run.get(run_id, ())):
                raise TracekitError("a capture of this run is under way already")
            if len(running) >= _MOST_AT_ONCE or self._closing.is_set():
                raise TracekitError("too many captures are under way; try again in a while")
            try:
                request = fit_for(folder, request)
                drive = Drive(folder, request, timeout_s=_PATIENCE_S)
                drive.begin()
            except OSError as error:
                raise TracekitError(f"the run cannot be asked: {error.strerror or error}") from None
            capture = Capture(request.id, SYSTEM_CLOCK.wall_ns() / 1e9)
            thread = threading.Thread(
                target=self._watch, args=(run_id, capture, drive), name="tracekit serve capture", daemon=True
            )
            thread.start()  # it says how far it is once the lock is free, and so after it is in the list
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            captures = self._of_run.setdefault(run_id, [])
            captures.append(capture)
            del captures[:-_MOST_KEPT]
            return capture

    def close(self) -> None:
        """Watch no more; the ranks go on with what they were asked for. A folder that does not answer is waited for 5 s."""
        self._closing.set()
        with self._lock:
            threads = list(self._threads)
        deadline_s = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _watch(self, run_id: str, capture: Capture, drive: Drive) -> None:
        try:
            ended = self._follow(run_id, capture, drive)
        except Exception as error:  # noqa: BLE001 - it is shown to whoever waits for it
            ended = replace(capture, error=f"unexpected {type(error).__name__}: {error}; please report this")
        self._become(run_id, replace(ended, state=ENDED))

    def _become(self, run_id: str, capture: Capture) -> None:
        """Put a capture as it is now in the place of what it was."""
        with self._lock:
            captures = self._of_run[run_id]
            captures[:] = [capture if one.id == capture.id else one for one in captures]

    def _follow(self, run_id: str, capture: Capture, drive: Drive) -> Capture:
        """Follow a capture until every rank is done, and return what became of it."""
        problem = ""
        try:
            while not drive.finished:
                began_s = time.monotonic()
                drive.look()
                self._become(run_id, replace(capture, doing=progress_words(drive)))
                # A folder that is slow to read is looked at less often.
                if not drive.finished and self._closing.wait(_LOOK_S + 2 * (time.monotonic() - began_s)):
                    problem = "it was not followed to its end; the ranks have gone on"
                    break
            else:
                silent = tuple(rank for rank, view in drive.ranks.items() if view.lost is not None)
                if silent:
                    drive.stop(silent)  # so that they do not begin when nobody waits for them any more
        except OSError as error:
            problem = f"the run cannot be looked at any more: {error.strerror or error}"
        results = [result_of(drive, drive.ranks[rank]) for rank in sorted(drive.ranks)]
        return replace(
            capture,
            lines=tuple(result_lines(results)) or ("no rank has answered",),
            files=tuple(dict.fromkeys(file for result in results for file in result["files"])),
            error=problem,
        )
