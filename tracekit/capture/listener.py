"""CaptureListener: serves the requests to a rank, and writes its status."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.capture.coordinator import CaptureCoordinator
from tracekit.capture.documents import CaptureState, RankStatus, Request
from tracekit.capture.folder import machine
from tracekit.capture.state_machine import RankCapture
from tracekit.errors import ConfigError, StorageError
from tracekit.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.capture.folder import ControlFolder
    from tracekit.clock import Clock
    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.triggers import SignalTrigger
    from tracekit.timestamp import Timestamp

_MAX_POLLS_PER_S: Final = 1000  # of all ranks of a run together
_HEARTBEAT_NS: Final = 1_000_000_000
_SAVING_POLL_S: Final = 0.05
_CLOSING_POLLS: Final = 20
_JOIN_S: Final = 2.0


@dataclass(eq=False, kw_only=True)
class CaptureListener:
    """Has one capture after the other on its rank. Polls the control folder and the signal on a thread "tracekit-capture".

    If the file system hangs, only this thread waits. `accept`, `stop` and `wake` are for any thread.
    """

    steps: int  # of a capture that names no length
    max_seconds: float
    find_files: Callable[[bool], None]  # updates the files of the current capture; True once the handlers are closed
    trigger: SignalTrigger | None  # None to listen to the folder only
    signal_all_ranks: bool
    interval_s: float  # between polls
    clock: Clock
    warmup: int = 0  # number of warm-up batches if a request names none
    current: RankCapture | None = None  # the current capture, else the last one
    timestamp: Timestamp | None = None  # the training time at the start of the current batch

    def __post_init__(self) -> None:
        self._folder: ControlFolder | None = None
        self._notices = Notices(self.clock.monotonic_ns)
        self._coordinator: CaptureCoordinator | None = None  # of a signal for all ranks
        self._served: deque[str] = deque(maxlen=64)
        self._refused: tuple[str, str] | None = None
        self._written_ns = 0
        self._steps: deque[tuple[int, int]] = deque(maxlen=8)  # the time and number of recent batches, as seen here
        self._failure: Exception | None = None
        self._failure_raised = False
        self._is_first_poll = True
        self._closing = False
        self._accept_lock = threading.RLock()  # never taken by the training loop
        self._poll_lock = threading.Lock()  # one poll at a time
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-capture", daemon=True)

    def start(self, process: ProcessInfo, folder: ControlFolder | None) -> None:
        """Start the thread. Without a folder, it polls the signal only."""
        self.interval_s = max(self.interval_s, process.world_size / _MAX_POLLS_PER_S)
        self._folder = folder
        self._status = RankStatus(
            rank=process.rank,
            world_size=process.world_size,
            run_id=process.run_id,
            host=process.host,
            pid=process.pid,
            attempt=process.attempt,
            machine=machine(),
            look_seconds=self.interval_s,
        )
        self._thread.start()

    def wake(self) -> None:
        """Poll immediately."""
        self._wake.set()

    def close(self, timeout_s: float = math.inf) -> None:
        """Write the last status and end the thread. Wait for it for ``timeout_s``, at most two seconds."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(max(0.0, min(_JOIN_S, timeout_s)))

    def raise_failure(self) -> None:
        """Raise the first unexpected error of the thread, once."""
        if self._failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise self._failure

    # ---- captures -----------------------------------------------------------------------------------------------------

    @property
    def in_force(self) -> RankCapture | None:
        """The current capture, until its files are complete."""
        return self.current if self.current is not None and self.current.state.in_force else None

    def accept(self, request: Request) -> str | None:
        """Begin a capture, or give the current one its start. Return the reason if the request is refused."""
        with self._accept_lock:
            current = self.in_force
            if current is not None and current.request.id == request.id:
                current.set_start(request)
                return None
            # A capture without a start may be replaced: its coordinator is gone.
            if current is not None and current.state is not CaptureState.ACKNOWLEDGED:
                return "another capture is in force on this rank"
            has_length = request.steps is not None or request.seconds is not None
            self.current = RankCapture(
                request,
                steps=(request.steps if has_length else self.steps) or None,
                seconds=min(request.seconds or self.max_seconds, self.max_seconds),
                warmup=self.warmup if request.warmup is None else request.warmup,
            )
        return None

    def stop(self) -> None:
        """Stop the current capture."""
        if self.current is not None:
            self.current.stop("it was stopped before it began")

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self.poll()
            is_saving = self.current is not None and self.current.state is CaptureState.SAVING
            self._wake.wait(min(self.interval_s, _SAVING_POLL_S) if is_saving else self.interval_s)
            self._wake.clear()
        self.poll()

    def poll(self) -> None:
        """Read the request and the signal, and write the status. Raises nothing."""
        try:
            with self._poll_lock:
                self._note_step()
                is_closing = self._closing
                if is_closing:
                    self._finish_files()
                else:
                    if self.trigger is not None and self.trigger.arrived():
                        self._serve_signal()
                    if self._folder is not None:
                        self._read_request(self._folder)
                    self._coordinate()
                    self.find_files(False)
                if self._folder is not None:
                    self._write_status(self._folder, is_closing=is_closing)
        except (OSError, StorageError) as error:
            reason = getattr(error, "strerror", None) or error
            self._notices.warn(
                "folder", "tracekit: the control folder cannot be used now (%s); captures may not be possible", reason
            )
        except Exception as error:  # noqa: BLE001 - the thread goes on, and training too
            self._failure = self._failure or error

    def _note_step(self) -> None:
        batch = 0 if self.timestamp is None else int(self.timestamp.batch)
        if not self._steps or self._steps[-1][1] != batch:
            self._steps.append((self.clock.monotonic_ns(), batch))

    def _read_request(self, folder: ControlFolder) -> None:
        is_first, self._is_first_poll = self._is_first_poll, False
        try:
            request = folder.read_request()
        except ConfigError as error:
            self._notices.warn("request", "tracekit: a request in %s is refused: %s", folder.path, error)
            return
        current = self.current
        if request is None or request.id in self._served or not request.selects(self._status.rank):
            if (
                current is not None
                and current.state is CaptureState.ACKNOWLEDGED
                and self._has_expired(current.request)
            ):
                current.stop("nobody has said when to start")  # its coordinator is gone
            return
        is_late = self._has_expired(request)
        if is_first and (request.expires is None or is_late or request.stop or request.has_start):
            self._served.append(request.id)  # a request from before the start of this rank was for another run
            return
        refusal = None
        if request.stop:
            self.stop()
        elif is_late and (current is None or current.request.id != request.id):
            refusal = "the request is older than it may be; are the clocks of the hosts set right?"
        else:
            refusal = self.accept(request)
        if refusal is not None:
            self._refused = (request.id, refusal)
        if refusal is not None or request.stop or request.has_start:
            self._served.append(request.id)

    def _has_expired(self, request: Request) -> bool:
        return request.expires is not None and self.clock.wall_ns() > request.expires * 1e9

    def _serve_signal(self) -> None:
        is_running = self.in_force is not None
        if self.signal_all_ranks and self._folder is not None:
            request = Request(stop=is_running, together=not is_running)
            coordinator = CaptureCoordinator(self._folder, request, clock=self.clock)
            coordinator.begin()
            self._coordinator = coordinator
        elif is_running:
            self.stop()
        else:
            self.accept(Request())

    def _coordinate(self) -> None:
        """Find the common start of all ranks, where this rank got the signal."""
        if self._coordinator is not None:
            self._coordinator.poll()
            if self._coordinator.finished or self._coordinator.request.has_start:
                self._coordinator = None

    def _finish_files(self) -> None:
        """Wait up to a second for the files of the capture that the end of the run has cut."""
        for _ in range(_CLOSING_POLLS):
            self.find_files(True)
            if self.current is None or self.current.state is not CaptureState.SAVING:
                return
            self._wake.clear()
            self._wake.wait(_SAVING_POLL_S)
        if self.current is not None:
            self.current.complete_files()  # under the names that they have now

    def _write_status(self, folder: ControlFolder, *, is_closing: bool) -> None:
        """Write the status if it has changed, each second during a capture, and if somebody has removed it."""
        now_ns = self.clock.monotonic_ns()
        capture = None if self.current is None else self.current.status
        status = dataclasses.replace(self._status, listening=not is_closing, capture=capture, refused=self._refused)
        is_beating = capture is not None and capture.state.in_force
        is_due = status != self._status or (is_beating and now_ns - self._written_ns >= _HEARTBEAT_NS)
        if status.updates and not is_due and folder.has_status(status.rank):
            return
        batch, step_seconds = self._steps[-1][1], self._step_seconds()
        status = dataclasses.replace(status, updates=status.updates + 1, batch=batch, step_seconds=step_seconds)
        folder.write_status(status)
        self._status, self._written_ns = status, now_ns

    def _step_seconds(self) -> float | None:
        """Return the average or the last duration of a batch, whichever is shorter: a start must not lie in the past."""
        known = [] if self.timestamp is None else [self.timestamp.batch_wct.total_seconds()]
        (since_ns, first), (now_ns, last) = self._steps[0], self._steps[-1]
        if last > first:
            known.append((now_ns - since_ns) / 1e9 / (last - first))
        return min((seconds for seconds in known if seconds > 0), default=None)
