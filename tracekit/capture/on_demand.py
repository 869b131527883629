"""OnDemand: a schedule that records on request, from outside the process or from inside."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_path, check_seconds, check_whole
from tracekit.capture.control_folder import CaptureState, ControlFolder, RankStatus, Request, machine
from tracekit.capture.coordinator import CaptureCoordinator
from tracekit.capture.state_machine import RankCapture
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError, StorageError
from tracekit.handlers.triggers import SignalTrigger
from tracekit.naming import FileName
from tracekit.notices import Notices
from tracekit.recording.schedule import CaptureSchedule, ProfilerAction, action_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import StrPath
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, TraceHandler
    from tracekit.recording.schedule import Schedule
    from tracekit.timestamp import Timestamp

_MAX_POLLS_PER_S: Final = 1000  # of all ranks of a run together
_HEARTBEAT_NS: Final = 1_000_000_000
_SAVING_POLL_S: Final = 0.05
_CLOSING_POLLS: Final = 20
_FLUSH_S: Final = 2.0
_JOIN_S: Final = 2.0


class OnDemand(CaptureSchedule):
    """A schedule that records a few batches on request, as often as needed; also known as `on_demand`.

    Requests come from ``tracekit capture FOLDER`` on any machine that sees the folder, for all ranks or some, with a common
    start; from a signal; or from `Profiler.capture`. Each capture is a recording window, saved like those of
    `cyclic_schedule`, with torch.profiler and counters where the profiler has them.

    Example::

        capture = on_demand("traces/{run_id}/control", on_signal=signal.SIGUSR2)
        with Profiler(JSONTraceHandler("traces/{run_id}/rank{rank}-{batch}.json"), capture, sources=TorchProfiler()):
            ...

    A thread polls the folder every ``look_interval`` seconds (less often where all ranks together would poll more than 1000
    times a second); if the file system hangs, only that thread waits. The training loop reads one attribute for each batch.
    The request is a file: see `tracekit.capture` to write one by hand. Fork: a forked child neither listens nor answers.

    Args:
        folder: The control folder, with the fields of `JSONTraceHandler`, on a file system that all ranks share. It is made
            with mode 0700; requests that another user has written, or could have, are refused. None for no folder.
        on_signal: A signal, such as ``signal.SIGUSR2``, that starts a capture of default length on this rank, or stops the
            current one. The previous handler is still called. The profiler must then be started on the main thread.
        signal_all_ranks: Let the signal start or stop all ranks together, through the folder.
        base: A schedule for the time between captures; None to record nothing. A window of it that is open when a capture
            begins is saved first.
        steps: Number of batches of a capture that names no length.
        warmup: Number of batches before a capture for the sources to warm up; markers record there. By default 1 if the
            profiler has sources, else 0.
        max_seconds: Time limit of every capture, in seconds.
        look_interval: Seconds between polls of the folder and the signal.
        trust_other_users: Accept every request that can be read, of any user.
        clock: The clocks to read; for tests.

    Raises:
        ConfigError: An argument is wrong; or, when the profiler starts, the signal cannot be used.
        StorageError: When the profiler starts: the folder cannot be made.
    """

    def __init__(
        self,
        folder: StrPath | None = "traces/{run_id}/control",
        *,
        on_signal: int | None = None,
        signal_all_ranks: bool = False,
        base: Schedule | None = None,
        steps: int = 5,
        warmup: int | None = None,
        max_seconds: float = 600.0,
        look_interval: float = 0.5,
        trust_other_users: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if base is not None and (not callable(base) or isinstance(base, OnDemand)):
            raise ConfigError(
                f"on_demand: base must be a schedule, such as cyclic_schedule(...), or None, not {base!r}"
            )
        name = None if folder is None else check_path("folder", folder)
        if name is not None and storage.is_remote(name):
            raise ConfigError(
                f"on_demand: the control folder must be on a file system that all ranks see, not {name!r}; traces may be "
                "on any storage"
            )
        if signal_all_ranks and (on_signal is None or name is None):
            raise ConfigError("on_demand: signal_all_ranks=True needs on_signal= and a folder")
        check_whole("on_demand: steps", steps)
        if warmup is not None:
            check_whole("on_demand: warmup", warmup, 0)
        check_seconds("on_demand: max_seconds", max_seconds)
        check_seconds("on_demand: look_interval", look_interval)
        self.base = base
        self._trigger = None if on_signal is None else SignalTrigger(on_signal)
        self.hooks = () if self._trigger is None else (self._trigger,)
        self._folder_name = None if name is None else FileName(name)
        self._folder: ControlFolder | None = None
        self._signals_all_ranks = signal_all_ranks
        self._steps = steps
        self._warmup = warmup
        self._max_seconds = max_seconds
        self._interval_s = look_interval
        self._trust_other_users = trust_other_users
        self._clock = clock
        self._notices = Notices(clock.monotonic_ns)
        self._flush_handlers: Any = None  # until a profiler has this schedule
        self._handlers: list[Any] = []  # those that report the files of batches
        self._timestamp: Timestamp | None = None  # the training time at the start of the current batch
        self._previous = ProfilerAction.SKIP
        self._capture: RankCapture | None = None  # the current capture, else the last one
        self._begun: RankCapture | None = None  # the last capture after the delivery of its first batch
        self._ended: RankCapture | None = None  # the last capture after the delivery of its end
        self._traces: list[str] = []  # traces of torch.profiler since ``_begun``
        self._is_stopping = False
        self._coordinator: CaptureCoordinator | None = None  # of a signal for all ranks
        self._served: deque[str] = deque(maxlen=64)
        self._refused: tuple[str, str] | None = None
        self._written_ns = 0
        self._batches: deque[tuple[int, int]] = deque(maxlen=8)  # the time and number of recent ones, as seen here
        self._failure: Exception | None = None
        self._failure_raised = False
        self._closing = False
        self._accept_lock = threading.RLock()  # never taken by the training loop
        self._poll_lock = threading.Lock()  # one poll at a time
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-capture", daemon=True)

    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""
        self._timestamp = timestamp
        action = ProfilerAction.SKIP if self.base is None else action_of(self.base(timestamp))
        capture = self._capture
        if capture is not None:
            wall_ns, monotonic_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
            action = capture.action(int(timestamp.batch), wall_ns, monotonic_ns, action, self._previous)
        self._previous = action
        return action

    @property
    def has_open_window(self) -> bool:
        """True while the window of a capture is open."""
        capture = self._in_force
        return capture is not None and capture.begin is not None and capture.status.last_batch is None

    def attach(
        self, handlers: Sequence[TraceHandler], flush_handlers: Callable[[float], bool], *, warms_up: bool
    ) -> None:
        """Attach this schedule to its profiler; see `CaptureSchedule.attach`."""
        if self._flush_handlers is not None:
            raise ConfigError("on_demand: this schedule is in use by another Profiler; make a new one for each")
        self._flush_handlers = flush_handlers
        self._handlers = [handler for handler in handlers if hasattr(handler, "files_of")]
        self._warmup = int(warms_up) if self._warmup is None else self._warmup

    def capture(self, *, steps: int | None = None, seconds: float | None = None, warmup: int | None = None) -> bool:
        """Record from the next batch on, on this rank. Returns immediately. Thread-safe.

        If every rank calls it in the same batch, all record the same batches.

        Args:
            steps: Number of batches; 0 for until `stop_capture`. None for the default, unless ``seconds`` is given.
            seconds: Time limit in seconds; the current batch is still recorded.
            warmup: Number of warm-up batches before.

        Returns:
            True if the capture is accepted; False during another capture, and while the profiler does not run.

        Raises:
            ConfigError: An argument is wrong.
        """
        for name, number in (("steps", steps), ("warmup", warmup)):
            if number is not None:
                check_whole(f"on_demand: {name}", number, 0)
        if seconds is not None:
            check_seconds("on_demand: seconds", seconds)
        # A forked child has no such thread.
        return self._thread.is_alive() and self._accept(Request(steps=steps, seconds=seconds, warmup=warmup)) is None

    def stop_capture(self) -> None:
        """End the current capture, if there is one, with the current batch. Thread-safe; returns immediately."""
        if self._capture is not None:
            self._capture.stop("it was stopped before it began")

    @property
    def capturing(self) -> bool:
        """True from the request of a capture on this rank until its files are complete."""
        return self._in_force is not None

    @property
    def files(self) -> list[str]:
        """The trace files of the last capture; complete when `capturing` is False again."""
        return [] if self._capture is None else list(self._capture.status.files)

    @property
    def _in_force(self) -> RankCapture | None:
        """The current capture, until its files are complete."""
        return self._capture if self._capture is not None and self._capture.status.state.in_force else None

    def _accept(self, request: Request) -> str | None:
        """Begin a capture, or give the current one its start. Return the reason if the request is refused."""
        with self._accept_lock:
            if self._is_stopping:
                return "the run ends"
            current = self._in_force
            if current is not None and current.request.id == request.id:
                current.set_start(request)
                return None
            # A capture without a start may be replaced: its coordinator is gone.
            if current is not None and current.status.state is not CaptureState.ACKNOWLEDGED:
                return "another capture is in force on this rank"
            has_length = request.steps is not None or request.seconds is not None
            self._capture = RankCapture(
                request,
                steps=(request.steps if has_length else self._steps) or None,
                seconds=min(request.seconds or self._max_seconds, self._max_seconds),
                warmup=(self._warmup or 0) if request.warmup is None else request.warmup,
            )
        return None

    # ---- the trace handler: on its thread -----------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the control folder, and start to listen."""
        self._timestamp = recording.timestamp
        process = recording.process
        if self._folder_name is not None:
            path = Path(self._folder_name.format(process, recording.timestamp)).absolute()
            self._folder = ControlFolder(path, trust_others=self._trust_other_users)
            self._folder.make()
        self._interval_s = max(self._interval_s, process.world_size / _MAX_POLLS_PER_S)
        identity = {name: getattr(process, name) for name in ("rank", "world_size", "run_id", "host", "pid", "attempt")}
        self._status = RankStatus(**identity, machine=machine(), look_seconds=self._interval_s)
        self._thread.start()

    def process_events(self, batch: EventBatch) -> None:
        """Ignore the events, which the other handlers write."""

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Record a trace of torch.profiler."""
        self._traces.append(filepath)

    def batch_start(self, timestamp: Timestamp) -> None:
        """Forget the traces from before a capture when it begins."""
        capture = self._capture
        if capture is not None and capture.begin is not None and capture is not self._begun:
            self._begun = capture
            self._traces.clear()

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        """Let the listener look for the files when the window of a capture is complete."""
        capture = self._capture
        last = None if capture is None else capture.status.last_batch
        if last is not None and int(timestamp.batch) > last:
            self._ended = capture
            self._wake.set()

    def flush(self) -> None:
        """Raise the first unexpected error of the thread, once."""
        if self._failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise self._failure

    def stopping(self, error: BaseException | None) -> None:
        """End the current capture."""
        with self._accept_lock:
            self._is_stopping = True
        capture, timestamp = self._capture, self._timestamp
        if capture is not None and timestamp is not None:
            capture.end_run(int(timestamp.batch), "the run ended" + (" with an exception" if error else ""))

    def close(self) -> None:
        """Stop to listen. After `stopping`, `ended` does that, when all handlers have closed."""
        for trigger in self.hooks:
            trigger.remove()
        if not self._is_stopping:
            self.ended()

    def ended(self, timeout_s: float = math.inf) -> None:
        """Write the last status, now that the files are complete, and end the thread. Wait for two seconds at most."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(max(0.0, min(_JOIN_S, timeout_s)))

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._poll()
            is_saving = self._capture is not None and self._capture.status.state is CaptureState.SAVING
            self._wake.wait(min(self._interval_s, _SAVING_POLL_S) if is_saving else self._interval_s)
            self._wake.clear()
        self._poll()

    def _poll(self) -> None:
        """Read the request and the signal, and write the status. Raises nothing."""
        try:
            with self._poll_lock:
                is_closing = self._closing
                if is_closing:
                    self._finish_files()
                else:
                    self._serve_signal()
                    if self._folder is not None:
                        self._serve_request(self._folder)
                    self._find_files(is_closing=False)
                if self._folder is not None:
                    self._write_status(self._folder, is_closing=is_closing)
        except (OSError, StorageError) as error:
            reason = getattr(error, "strerror", None) or error
            self._notices.warn(
                "folder", "tracekit: the control folder cannot be used now (%s); captures may not be possible", reason
            )
        except Exception as error:  # noqa: BLE001 - the thread goes on, and training too
            self._failure = self._failure or error

    def _serve_request(self, folder: ControlFolder) -> None:
        try:
            request = folder.read_request()
        except ConfigError as error:
            self._notices.warn("request", "tracekit: a request in %s is refused: %s", folder.path, error)
            return
        current = self._capture
        if request is None or request.id in self._served or not request.selects(self._status.rank):
            if current is not None and not current.request.has_start and self._is_late(current.request):
                current.stop("nobody has said when to start")  # its coordinator is gone
            return
        refusal, is_late, is_first = None, self._is_late(request), not self._status.updates
        if is_first and (request.expires is None or is_late or request.stop or request.has_start):
            is_served = True  # a request from before the start of this rank was for another run
        elif request.stop:
            is_served = True
            self.stop_capture()
        elif is_late and (current is None or current.request.id != request.id):
            refusal = "the request is older than it may be; are the clocks of the hosts set right?"
        else:
            refusal, is_served = self._accept(request), request.has_start
        if refusal is not None:
            self._refused, is_served = (request.id, refusal), True
        if is_served:
            self._served.append(request.id)

    def _is_late(self, request: Request) -> bool:
        return request.expires is not None and self._clock.wall_ns() > request.expires * 1e9

    def _serve_signal(self) -> None:
        if self._trigger is not None and self._trigger.arrived():
            is_running = self._in_force is not None
            if self._signals_all_ranks and self._folder is not None:
                request = Request(stop=is_running, together=not is_running)
                coordinator = CaptureCoordinator(self._folder, request, clock=self._clock)
                coordinator.begin()
                self._coordinator = coordinator
            elif is_running:
                self.stop_capture()
            else:
                self._accept(Request())
        if self._coordinator is not None:  # find the common start of all ranks
            self._coordinator.poll()
            if self._coordinator.finished or self._coordinator.request.has_start:
                self._coordinator = None

    def _finish_files(self) -> None:
        """Wait up to a second for the files of the capture that the end of the run has cut."""
        for _ in range(_CLOSING_POLLS):
            self._find_files(is_closing=True)
            if self._capture is None or self._capture.status.state is not CaptureState.SAVING:
                return
            self._wake.clear()
            self._wake.wait(_SAVING_POLL_S)
        if self._capture is not None:  # under the names that they have now
            self._capture.set_files(self._capture.status.files, complete=True)

    def _write_status(self, folder: ControlFolder, *, is_closing: bool) -> None:
        """Write the status if it has changed, each second during a capture, and if somebody has removed it."""
        now_ns = self._clock.monotonic_ns()
        batch = 0 if self._timestamp is None else int(self._timestamp.batch)
        if not self._batches or self._batches[-1][1] != batch:
            self._batches.append((now_ns, batch))
        capture = None if self._capture is None else self._capture.status
        status = dataclasses.replace(self._status, listening=not is_closing, capture=capture, refused=self._refused)
        is_beating = capture is not None and capture.state.in_force
        is_due = status != self._status or (is_beating and now_ns - self._written_ns >= _HEARTBEAT_NS)
        if status.updates and not is_due and folder.path_of(status).exists():
            return
        # The average or the last duration of a batch, whichever is shorter: a start must not lie in the past.
        seconds = [] if self._timestamp is None else [self._timestamp.batch_wct.total_seconds()]
        (since_ns, first), (until_ns, last) = self._batches[0], self._batches[-1]
        if last > first:
            seconds.append((until_ns - since_ns) / 1e9 / (last - first))
        step_seconds = min((one_s for one_s in seconds if one_s > 0), default=None)
        status = dataclasses.replace(status, updates=status.updates + 1, batch=batch, step_seconds=step_seconds)
        folder.write(status)
        self._status, self._written_ns = status, now_ns

    def _find_files(self, *, is_closing: bool) -> None:
        """Update the files of the current capture, and finish it when they are complete and have their final names."""
        capture, timestamp = self._in_force, self._timestamp
        if capture is None or capture.status.first_batch is None or timestamp is None:
            return
        last = int(timestamp.batch) if capture.status.last_batch is None else capture.status.last_batch
        # The other handlers may be slower than this one, which knows that the window has ended.
        is_complete = is_closing or (capture is self._ended and self._flush_handlers(_FLUSH_S))
        named = [path for handler in self._handlers for path in handler.files_of(capture.begin, last)]
        names = [_names(path) for path in [*named, *(self._traces if capture is self._begun else ())]]
        if is_complete:
            live = {_names(handler.live_path)[1] for handler in self._handlers if handler.live_path is not None}
            is_packing = any(now not in (final, *live) for final, now in names)
            is_complete = not is_packing and not (is_closing and live)
        capture.set_files(tuple(dict.fromkeys(now for _, now in names)), complete=is_complete)


on_demand = OnDemand


def _names(path: str) -> tuple[str, str]:
    """Return the final name of a file, and the current one: a packed trace has no suffix .gz until it is complete."""
    if storage.is_remote(path):
        return storage.without_secrets(path), storage.without_secrets(path)
    final = os.fspath(Path(path).absolute())
    plain = final.removesuffix(".gz")
    return final, plain if Path(plain).exists() and not Path(final).exists() else final
