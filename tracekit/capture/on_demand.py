"""OnDemand: a schedule that records on request, from outside the process or from inside."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_path, check_seconds, check_whole
from tracekit.capture.documents import CaptureState, Request
from tracekit.capture.folder import ControlFolder
from tracekit.capture.listener import CaptureListener
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError
from tracekit.handlers.triggers import SignalTrigger
from tracekit.naming import FileName
from tracekit.recording.schedule import CaptureSchedule, ProfilerAction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import StrPath
    from tracekit.capture.state_machine import RankCapture
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording, TraceHandler
    from tracekit.recording.schedule import Schedule
    from tracekit.timestamp import Timestamp

_FLUSH_S: Final = 2.0


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
        self._folder = None if name is None else FileName(name)
        trigger = None if on_signal is None else SignalTrigger(on_signal)
        self.hooks = () if trigger is None else (trigger,)
        self.base = base
        self._warmup = warmup
        self._trust_other_users = trust_other_users
        self._clock = clock
        self._listener = CaptureListener(
            steps=steps,
            max_seconds=max_seconds,
            find_files=self._find_files,
            trigger=trigger,
            signal_all_ranks=signal_all_ranks,
            interval_s=look_interval,
            clock=clock,
        )
        self._previous = ProfilerAction.SKIP
        self._flush_handlers: Callable[[float], bool] | None = None  # None until a profiler has this schedule
        self._handlers: list[Any] = []  # those that report the files of batches
        self._pid = -1
        self._is_stopping = False
        self._begun: RankCapture | None = None  # the last capture after the delivery of its first batch
        self._ended: RankCapture | None = None  # the last capture after the delivery of its end
        self._traces: list[str] = []  # traces of torch.profiler since ``_begun``

    # ---- the schedule -------------------------------------------------------------------------------------------------

    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""
        action = ProfilerAction.SKIP if self.base is None else self.base(timestamp)
        self._listener.timestamp = timestamp
        capture = self._listener.current
        if capture is not None:
            wall_ns, monotonic_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
            action = capture.action(int(timestamp.batch), wall_ns, monotonic_ns, action, self._previous)
        self._previous = action
        return action

    @property
    def has_open_window(self) -> bool:
        """True while the window of a capture is open."""
        capture = self._listener.in_force
        return capture is not None and capture.begin is not None and capture.status.last_batch is None

    def attach(
        self, handlers: Sequence[TraceHandler], flush_handlers: Callable[[float], bool], *, warms_up: bool
    ) -> None:
        """Attach this schedule to its profiler; see `CaptureSchedule.attach`."""
        if self._flush_handlers is not None:
            raise ConfigError("on_demand: this schedule is in use by another Profiler; make a new one for each")
        self._flush_handlers = flush_handlers
        self._handlers = [handler for handler in handlers if hasattr(handler, "files_of")]
        self._listener.warmup = int(warms_up) if self._warmup is None else self._warmup

    # ---- requests from inside -----------------------------------------------------------------------------------------

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
        if steps is not None:
            check_whole("on_demand: steps", steps, 0)
        if seconds is not None:
            check_seconds("on_demand: seconds", seconds)
        if warmup is not None:
            check_whole("on_demand: warmup", warmup, 0)
        if self._pid != os.getpid():
            return False
        return self._listener.accept(Request(steps=steps, seconds=seconds, warmup=warmup)) is None

    def stop_capture(self) -> None:
        """End the current capture, if there is one, with the current batch. Thread-safe; returns immediately."""
        self._listener.stop()

    @property
    def capturing(self) -> bool:
        """True from the request of a capture on this rank until its files are complete."""
        return self._listener.in_force is not None

    @property
    def files(self) -> list[str]:
        """The trace files of the last capture; complete when `capturing` is False again."""
        return [] if self._listener.current is None else list(self._listener.current.status.files)

    # ---- the trace handler: on its thread -----------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the control folder, and start to listen."""
        self._pid = os.getpid()
        self._listener.timestamp = recording.timestamp
        folder = None
        if self._folder is not None:
            path = Path(self._folder.format(recording.process, recording.timestamp)).absolute()
            folder = ControlFolder(path, trust_others=self._trust_other_users)
            folder.make()
        self._listener.start(recording.process, folder)

    def process_events(self, batch: EventBatch) -> None:
        """Ignore the events, which the other handlers write."""

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Note a trace of torch.profiler."""
        self._traces.append(filepath)

    def batch_start(self, timestamp: Timestamp) -> None:
        """Forget the traces from before a capture when it begins."""
        capture = self._listener.current
        if capture is not None and capture.begin is not None and capture is not self._begun:
            self._begun = capture
            self._traces.clear()

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        """Let the listener look for the files when the window of a capture is complete."""
        capture = self._listener.current
        last = None if capture is None else capture.status.last_batch
        if last is not None and int(timestamp.batch) > last:
            self._ended = capture
            self._listener.wake()

    def flush(self) -> None:
        """Report an unexpected error of the listener."""
        self._listener.raise_failure()

    def stopping(self, error: BaseException | None) -> None:
        """End the current capture."""
        self._is_stopping = True
        capture, timestamp = self._listener.current, self._listener.timestamp
        if capture is not None and timestamp is not None:
            capture.end_run(int(timestamp.batch), "the run ended" + (" with an exception" if error else ""))

    def close(self) -> None:
        """Stop to listen. After `stopping`, `ended` does that, when all handlers have closed."""
        for trigger in self.hooks:
            trigger.remove()
        if not self._is_stopping:
            self.ended()

    def ended(self, timeout_s: float = math.inf) -> None:
        """Write the last status, now that the files are complete, and end the listener. Wait for two seconds at most."""
        self._listener.close(timeout_s)

    # ---- files: on the listener's thread ------------------------------------------------------------------------------

    def _find_files(self, is_closing: bool) -> None:
        """Update the files of the current capture, and finish it when they are complete and have their final names."""
        capture, timestamp = self._listener.current, self._listener.timestamp
        if capture is None or capture.state not in (CaptureState.RECORDING, CaptureState.SAVING) or timestamp is None:
            return
        last = capture.status.last_batch
        # The other handlers may be slower than this one, which knows that the window has ended.
        flush = self._flush_handlers
        is_complete = is_closing or (capture is self._ended and flush is not None and flush(_FLUSH_S))
        batches = capture.begin, int(timestamp.batch) if last is None else last
        named = [path for handler in self._handlers for path in handler.files_of(*batches)]
        traces = self._traces if capture is self._begun else []
        files = tuple(dict.fromkeys(_name_now(path) for path in [*named, *traces]))
        capture.set_files(files)
        if is_complete:
            live = {_name_now(handler.live_path) for handler in self._handlers if handler.live_path is not None}
            packed = {_absolute(path) for path in named if path.endswith(".gz")}
            is_packing = any(f"{file}.gz" in packed for file in files if file not in live)
            if not is_packing and not (is_closing and live):
                capture.complete_files()


on_demand = OnDemand


def _absolute(path: str) -> str:
    if storage.is_remote(path):
        return storage.without_secrets(path)
    return os.fspath(Path(path).absolute())


def _name_now(path: str) -> str:
    """Return the current name of a file: a packed trace has no suffix .gz until it is complete."""
    name = _absolute(path)
    if storage.is_remote(path) or not name.endswith(".gz") or Path(name).exists():
        return name
    plain = name.removesuffix(".gz")
    return plain if Path(plain).exists() else name
