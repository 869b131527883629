"""CaptureListener: the thread that reads requests and the signal, and writes the status of the rank."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.capture.coordinator import CaptureCoordinator
from tracekit.capture.documents import CaptureState, RankStatus, Request, new_id
from tracekit.capture.folder import machine
from tracekit.errors import ConfigError, StorageError
from tracekit.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.capture.folder import ControlFolder
    from tracekit.capture.state_machine import CaptureMachine
    from tracekit.clock import Clock
    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.triggers import SignalTrigger

_MAX_POLLS_PER_S: Final = 1000  # of all ranks of a run together
_HEARTBEAT_NS: Final = 1_000_000_000
_SAVING_POLL_S: Final = 0.05
_CLOSING_POLLS: Final = 20
_JOIN_S: Final = 2.0


@dataclass(eq=False, kw_only=True)
class CaptureListener:
    """Polls the control folder on a daemon thread "tracekit-capture". If the file system hangs, only this thread waits."""

    captures: CaptureMachine
    process: ProcessInfo
    folder: ControlFolder | None  # None to listen to the signal only
    find_files: Callable[[bool], None]  # updates the files of the current capture; True once the handlers are closed
    trigger: SignalTrigger | None  # None to listen to the folder only
    signal_all_ranks: bool
    interval_s: float  # between polls
    clock: Clock

    def __post_init__(self) -> None:
        self.interval_s = max(self.interval_s, self.process.world_size / _MAX_POLLS_PER_S)
        self._notices = Notices(self.clock.monotonic_ns)
        self._coordinator: CaptureCoordinator | None = None  # of a signal for all ranks
        self._served: deque[str] = deque(maxlen=64)
        self._refused: tuple[str, str] | None = None
        self._written: RankStatus | None = None
        self._written_ns = 0
        self._steps: deque[tuple[int, int]] = deque(maxlen=8)  # the time and number of recent batches, as seen here
        self._failure: Exception | None = None
        self._failure_raised = False
        self._is_first_poll = True
        self._closing = False
        self._lock = threading.Lock()  # one poll at a time
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-capture", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Poll immediately. Thread-safe."""
        self._wake.set()

    def close(self, timeout_s: float = math.inf) -> None:
        """Write the last status and end the thread. Wait for it for ``timeout_s``, at most two seconds."""
        self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, min(_JOIN_S, timeout_s)))

    def raise_failure(self) -> None:
        """Raise the first unexpected error of the thread, once."""
        if self._failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise self._failure

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self.poll()
            capture = self.captures.current
            is_saving = capture is not None and capture.state is CaptureState.SAVING
            self._wake.wait(min(self.interval_s, _SAVING_POLL_S) if is_saving else self.interval_s)
            self._wake.clear()
        self.poll()

    def poll(self) -> None:
        """Read the request and the signal, and write the status. Raises nothing."""
        try:
            with self._lock:
                self._note_step()
                is_closing = self._closing
                if is_closing:
                    self._finish_files()
                else:
                    if self.trigger is not None and self.trigger.arrived():
                        self._serve_signal()
                    self._read_request()
                    self._coordinate()
                    self.find_files(False)
                self._write_status(is_closing=is_closing)
        except (OSError, StorageError) as error:
            reason = getattr(error, "strerror", None) or error
            self._notices.warn(
                "folder", "tracekit: the control folder cannot be used now (%s); captures may not be possible", reason
            )
        except Exception as error:  # noqa: BLE001 - the thread goes on, and training too
            self._failure = self._failure or error

    def _note_step(self) -> None:
        timestamp = self.captures.timestamp
        batch = 0 if timestamp is None else int(timestamp.batch)
        if not self._steps or self._steps[-1][1] != batch:
            self._steps.append((self.clock.monotonic_ns(), batch))

    def _read_request(self) -> None:
        is_first, self._is_first_poll = self._is_first_poll, False
        if self.folder is None:
            return
        try:
            request = self.folder.read_request()
        except ConfigError as error:
            self._notices.warn("request", "tracekit: a request in %s is refused: %s", self.folder.path, error)
            return
        if request is None or request.id in self._served or not request.selects(self.process.rank):
            self._give_up_without_start()
            return
        is_late = self._has_expired(request)
        if is_first and (request.expires is None or is_late or request.stop or request.has_start):
            self._served.append(request.id)  # a request from before the start of this rank was for another run
        elif request.stop:
            self._served.append(request.id)
            self.captures.stop()
        else:
            self._serve(request, is_late=is_late)

    def _serve(self, request: Request, *, is_late: bool) -> None:
        current = self.captures.current
        if is_late and (current is None or current.request.id != request.id):
            refusal: str | None = "the request is older than it may be; are the clocks of the hosts set right?"
        else:
            refusal = self.captures.accept(request)
        if refusal is not None:
            self._refused = (request.id, refusal)
        if refusal is not None or request.has_start:
            self._served.append(request.id)

    def _give_up_without_start(self) -> None:
        """Cancel a capture that gets no start: its coordinator is gone."""
        capture = self.captures.current
        if capture is not None and capture.state is CaptureState.ACKNOWLEDGED and self._has_expired(capture.request):
            capture.stop("nobody has said when to start")

    def _has_expired(self, request: Request) -> bool:
        return request.expires is not None and self.clock.wall_ns() > request.expires * 1e9

    def _serve_signal(self) -> None:
        is_running = self.captures.in_force is not None
        if self.signal_all_ranks and self.folder is not None:
            request = Request(id=new_id(), stop=is_running, together=not is_running)
            coordinator = CaptureCoordinator(self.folder, request, clock=self.clock)
            coordinator.begin()
            self._coordinator = coordinator
        elif is_running:
            self.captures.stop()
        else:
            self.captures.accept(Request(id=new_id()))

    def _coordinate(self) -> None:
        """Find the common start of all ranks, where this rank got the signal."""
        if self._coordinator is not None:
            self._coordinator.poll()
            if self._coordinator.finished or self._coordinator.request.has_start:
                self._coordinator = None

    def _finish_files(self) -> None:
        """Wait up to a second for the files of the capture that the end of the run has cut."""
        capture = self.captures.current
        for _ in range(_CLOSING_POLLS):
            self.find_files(True)
            if capture is None or capture.state is not CaptureState.SAVING:
                return
            self._wake.clear()
            self._wake.wait(_SAVING_POLL_S)
        if capture is not None:
            capture.complete_files()  # under the names that they have now

    def _write_status(self, *, is_closing: bool) -> None:
        """Write the status if it has changed, each second during a capture, and if somebody has removed it."""
        if self.folder is None:
            return
        written, now_ns = self._written, self.clock.monotonic_ns()
        capture = None if self.captures.current is None else self.captures.current.status()
        if written is not None:
            is_same = (written.capture, written.refused, written.listening) == (capture, self._refused, not is_closing)
            needs_heartbeat = (
                capture is not None and capture.state.in_force and now_ns - self._written_ns >= _HEARTBEAT_NS
            )
            if is_same and not needs_heartbeat and self.folder.has_status(written.rank):
                return
        process = self.process
        status = RankStatus(
            rank=process.rank,
            world_size=process.world_size,
            run_id=process.run_id,
            host=process.host,
            pid=process.pid,
            attempt=process.attempt,
            machine=machine(),
            updates=1 if written is None else written.updates + 1,
            listening=not is_closing,
            look_seconds=self.interval_s,
            batch=self._steps[-1][1],
            step_seconds=self._step_seconds(),
            capture=capture,
            refused=self._refused,
        )
        self.folder.write_status(status)
        self._written, self._written_ns = status, now_ns

    def _step_seconds(self) -> float | None:
        """Return the average or the last duration of a batch, whichever is shorter: a start must not lie in the past."""
        timestamp = self.captures.timestamp
        known = [] if timestamp is None else [timestamp.batch_wct.total_seconds()]
        (since_ns, first), (now_ns, last) = self._steps[0], self._steps[-1]
        if last > first:
            known.append((now_ns - since_ns) / 1e9 / (last - first))
        return min((seconds for seconds in known if seconds > 0), default=None)
