"""CaptureListener: the thread that looks for requests and for the signal, and says what this rank does."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from tracekit.capture.documents import CaptureStatus, RankStatus, Request, new_id
from tracekit.capture.drive import Drive
from tracekit.capture.folder import ControlFolder, machine
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.clock import Clock
    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.triggers import SignalTrigger
    from tracekit.recording.capture_window import CaptureWindow
    from tracekit.timestamp import Timestamp

__all__ = ["CaptureListener"]

logger = logging.getLogger("tracekit")

_LOOKS_A_SECOND: Final = 1000
"""How often all ranks of a run together may ask the file system."""

_HEARTBEAT_NS: Final = 1_000_000_000
_SAVING_S: Final = 0.05
"""How often it is looked whether the files of a capture are complete."""

_CLOSING_LOOKS: Final = 20
_JOIN_S: Final = 2.0
_MOST_WARNINGS: Final = 5


class Captures(Protocol):
    """What the listener needs of `OnDemand`."""

    @property
    def window(self) -> CaptureWindow | None:
        """The capture that is in force, else the last one."""

    @property
    def timestamp(self) -> Timestamp | None:
        """The training time."""

    def accept(self, request: Request) -> str | None:
        """Begin what a request asks for; return why not."""

    def stop_capture(self) -> None:
        """End the capture that is in force."""

    def note_files(self, *, closing: bool = False) -> None:
        """See which files the capture is in, and whether they are complete."""


class CaptureListener:
    """Looks every now and then, on a daemon thread "tracekit-capture". Nothing else of tracekit touches the folder.

    Args:
        captures: Whom to ask and to tell.
        process: Who this rank is.
        folder: The control folder; None is only the signal.
        trigger: The signal; None is only the folder.
        signal_all_ranks: What the signal means.
        look_interval: Seconds between looks.
        trust_other_users: Whose requests are obeyed.
        clock: The clocks to read.

    Raises:
        StorageError: The folder cannot be made.
    """

    def __init__(
        self,
        captures: Captures,
        process: ProcessInfo,
        folder: Path | None,
        *,
        trigger: SignalTrigger | None = None,
        signal_all_ranks: bool = False,
        look_interval: float = 0.5,
        trust_other_users: bool = False,
        clock: Clock,
    ) -> None:
        self._captures = captures
        self._process = process
        self._trigger = trigger
        self._signal_all_ranks = signal_all_ranks
        self._interval_s = max(look_interval, process.world_size / _LOOKS_A_SECOND)
        self._clock = clock
        self._machine = machine()
        self._folder: ControlFolder | None = None
        if folder is not None:
            self._folder = ControlFolder(folder, trust_others=trust_other_users)
            self._folder.make()
        self._drive: Drive | None = None
        self._served: deque[str] = deque(maxlen=64)
        self._refused: tuple[str, str] | None = None
        self._told: RankStatus | None = None
        self._told_ns = 0
        self._updates = 0
        self._steps: deque[tuple[int, int]] = deque(maxlen=8)  # when another batch was seen to run, and which
        self._warnings = 0
        self._failure: Exception | None = None
        self._failure_raised = False
        self._closing = False
        self._lock = threading.Lock()  # one look at a time, whoever looks
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-capture", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Have it look at once. Thread-safe."""
        self._wake.set()

    def close(self, timeout_s: float = math.inf) -> None:
        """Say what became of the last capture, and end the thread; wait for it two seconds at most, or ``timeout_s``."""
        self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, min(_JOIN_S, timeout_s)))

    def raise_failure(self) -> None:
        """Raise the first thing that has gone wrong on the thread, once, where the profiler reports it."""
        if self._failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise self._failure

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        first = True
        while not self._closing:
            self.look(first=first)
            first = False
            window = self._captures.window
            saving = window is not None and window.end is not None and window.in_force
            self._wake.wait(min(self._interval_s, _SAVING_S) if saving else self._interval_s)
            self._wake.clear()
        self.look(closing=True)

    def look(self, *, first: bool = False, closing: bool = False) -> None:
        """Look once. Raises nothing.

        Args:
            first: It is the first look: a request that is there already was meant for others.
            closing: It is the last one.
        """
        try:
            with self._lock:
                self._look(first=first, closing=closing)
        except OSError as error:
            self._warn(
                f"the control folder cannot be used now ({error.strerror or error}); captures may not be possible"
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on, and training anyway
            self._failure = self._failure or error

    def _look(self, *, first: bool, closing: bool) -> None:
        self._notice_step()
        if closing:
            self._end_capture()
        else:
            if self._trigger is not None and self._trigger.arrived():
                self._on_signal()
            self._read_request(first=first)
            self._lead()
            self._captures.note_files()
        self._tell(closing=closing)

    def _notice_step(self) -> None:
        timestamp = self._captures.timestamp
        batch = 0 if timestamp is None else int(timestamp.batch)
        if not self._steps or self._steps[-1][1] != batch:
            self._steps.append((self._clock.monotonic_ns(), batch))

    def _read_request(self, *, first: bool) -> None:
        if self._folder is None:
            return
        try:
            request = self._folder.read_request()
        except ConfigError as error:
            self._warn(f"a request in {self._folder.path} is refused: {error}")
            return
        if request is None or request.id in self._served or not request.selects(self._process.rank):
            self._give_up_late()
            return
        is_late = request.expires is not None and self._clock.wall_ns() > request.expires * 1e9
        if first and (request.expires is None or is_late or request.stop or request.decided):
            self._served.append(request.id)
            return
        if request.stop:
            self._served.append(request.id)
            self._captures.stop_capture()
            return
        window = self._captures.window
        known = window is not None and window.request.id == request.id
        why: str | None
        if is_late and not known:
            why = "the request is older than it may be; are the clocks of the hosts set right?"
        else:
            why = self._captures.accept(request)
        if why is not None:
            self._refused = (request.id, why[:1000])
        if why is not None or request.decided:
            self._served.append(request.id)

    def _give_up_late(self) -> None:
        """Leave a capture that nobody has said the start of: whoever asked for it is gone."""
        window = self._captures.window
        if window is None or window.end is not None or window.request.decided or window.request.expires is None:
            return
        if self._clock.wall_ns() > window.request.expires * 1e9:
            window.stop("nobody has said when to start")

    def _on_signal(self) -> None:
        window = self._captures.window
        running = window is not None and window.in_force
        if not self._signal_all_ranks or self._folder is None:
            if running:
                self._captures.stop_capture()
            else:
                self._captures.accept(Request(id=new_id()))
            return
        self._drive = Drive(self._folder, Request(id=new_id(), stop=running, together=not running), clock=self._clock)
        self._drive.begin()

    def _lead(self) -> None:
        """Go on with the start of all ranks, where this one was told to by the signal."""
        if self._drive is not None:
            self._drive.look()
            if self._drive.finished or self._drive.request.decided:
                self._drive = None

    def _end_capture(self) -> None:
        """See to the files of a capture that the end of the run has cut, as long as there is time."""
        window = self._captures.window
        if window is None or not window.recorded:
            return
        for _ in range(_CLOSING_LOOKS):
            self._captures.note_files(closing=True)
            if window.saved:
                return
            self._wake.clear()
            self._wake.wait(_SAVING_S)
        window.saved = True  # under the names that they have now

    def _tell(self, *, closing: bool) -> None:
        if self._folder is None:
            return
        told, now_ns = self._told, self._clock.monotonic_ns()
        window = self._captures.window
        capture = None if window is None else window.status()
        news = (capture, self._refused, not closing)
        if told is not None and news == (told.capture, told.refused, told.listening):
            alive_is_known = capture is None or not capture.in_force or now_ns - self._told_ns < _HEARTBEAT_NS
            if alive_is_known and self._folder.has_status(told.rank):  # somebody may have cleared up
                return
        self._updates += 1
        status = self._status(capture, listening=not closing)
        self._folder.write_status(status)
        self._told, self._told_ns = status, now_ns

    def _status(self, capture: CaptureStatus | None, *, listening: bool) -> RankStatus:
        process = self._process
        return RankStatus(
            rank=process.rank,
            world_size=process.world_size,
            run_id=process.run_id,
            host=process.host,
            pid=process.pid,
            attempt=process.attempt,
            machine=self._machine,
            updates=self._updates,
            listening=listening,
            look_seconds=self._interval_s,
            batch=self._steps[-1][1],
            step_seconds=self._step_seconds(),
            capture=capture,
            refused=self._refused,
        )

    def _step_seconds(self) -> float | None:
        """Return the lesser of what a batch took on the average and what the last one took: a start must lie ahead."""
        timestamp = self._captures.timestamp
        known = [] if timestamp is None else [timestamp.batch_wct.total_seconds()]
        (since_ns, first), (now_ns, last) = self._steps[0], self._steps[-1]
        if last > first:
            known.append((now_ns - since_ns) / 1e9 / (last - first))
        return min((seconds for seconds in known if seconds > 0), default=None)

    def _warn(self, message: str) -> None:
        self._warnings += 1
        if self._warnings <= _MOST_WARNINGS:
            more = "" if self._warnings < _MOST_WARNINGS else " (further warnings of this kind are not logged)"
            logger.warning("tracekit: %s%s", message, more)
