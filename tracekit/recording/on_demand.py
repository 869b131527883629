"""OnDemand: a schedule that records when it is asked to, from outside the process or from inside."""

from __future__ import annotations

import logging
import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tracekit import storage
from tracekit.arguments import check_path, check_seconds, check_whole
from tracekit.capture.documents import Request, new_id
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError
from tracekit.handlers.base import TraceHandler
from tracekit.handlers.triggers import SignalTrigger
from tracekit.naming import FileName
from tracekit.recording.capture_listener import CaptureListener
from tracekit.recording.capture_window import CaptureWindow
from tracekit.recording.schedule import CyclicSchedule, ProfilerAction, StepSchedule, checked_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arguments import StrPath
    from tracekit.events import EventBatch
    from tracekit.handlers.base import Recording
    from tracekit.recording.schedule import Schedule
    from tracekit.timestamp import Timestamp

__all__ = ["OnDemand", "on_demand"]

logger = logging.getLogger("tracekit")

DEFAULT_FOLDER: Final = "traces/{run_id}/control"

_FLUSH_S: Final = 2.0


class OnDemand(TraceHandler):
    """The schedule that `on_demand` makes; see there.

    A profiler that gets it as its schedule calls it at the start of every batch, like any schedule, and also gives it what
    trace handlers get, by which it knows when a window is written.
    """

    def __init__(
        self,
        folder: StrPath | None,
        *,
        on_signal: int | None,
        signal_all_ranks: bool,
        base: Schedule | None,
        steps: int,
        warmup: int | None,
        max_seconds: float,
        look_interval: float,
        trust_other_users: bool,
        clock: Clock,
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
        self._trigger = None if on_signal is None else SignalTrigger(on_signal)
        self.hooks = () if self._trigger is None else (self._trigger,)
        self._signal_all_ranks = signal_all_ranks
        self._base = base
        self._steps = steps
        self._warmup = warmup
        self._max_seconds = max_seconds
        self._look_interval = look_interval
        self._trust_other_users = trust_other_users
        self._clock = clock
        self._pid = -1
        self._attached: list[Any] = []
        self._used = False
        self._stopping = False
        self._listener: CaptureListener | None = None
        self._lock = threading.Lock()  # between those who begin captures; never taken on the training loop's path
        self._window: CaptureWindow | None = None
        self._previous = ProfilerAction.SKIP
        self._timestamp: Timestamp | None = None
        self._flush_handlers: Callable[[float], bool] = lambda _: False
        self._begun: CaptureWindow | None = None  # the last one of which the handlers know
        self._complete: CaptureWindow | None = None  # the last one of which they know that it is over
        self._trace_files: list[str] = []  # since it began

    # ---- the schedule -------------------------------------------------------------------------------------------------

    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""
        self._timestamp = timestamp
        action = ProfilerAction.SKIP if self._base is None else self._base(timestamp)
        window = self._window
        if window is not None:
            clock = self._clock
            action = window.action(int(timestamp.batch), clock.wall_ns(), clock.monotonic_ns(), action, self._previous)
        self._previous = action
        return action

    @property
    def per(self) -> Literal["epoch", "run"] | None:
        """What a window that is open now goes on through; a capture through the run. None if the base schedule is no cycle."""
        window = self._window
        if window is not None and window.begin is not None and window.end is None:
            return "run"
        return self._base.per if isinstance(self._base, CyclicSchedule | StepSchedule) else None

    @property
    def epoch_length(self) -> int | None:
        """What the base schedule takes for the length of an epoch."""
        return self._base.epoch_length if isinstance(self._base, CyclicSchedule | StepSchedule) else None

    def with_epoch_length(self, batches: int | None) -> OnDemand:
        """Tell the base schedule the length of an epoch; returns this same schedule."""
        if isinstance(self._base, CyclicSchedule | StepSchedule):
            self._base = self._base.with_epoch_length(batches)
        return self

    def resumed_at(self, timestamp: Timestamp) -> OnDemand:
        """Have the base schedule count from where a run was resumed; returns this same schedule."""
        if isinstance(self._base, CyclicSchedule | StepSchedule):
            self._base = self._base.resumed_at(timestamp)
        return self

    def check(self, timestamp: Timestamp) -> None:
        """Raise ConfigError if the base schedule cannot be asked with a Timestamp; see `checked_schedule`."""
        if self._base is not None:
            self._base, _ = checked_schedule(self._base, timestamp)

    def attach(
        self, handlers: Sequence[TraceHandler], flush_handlers: Callable[[float], bool], *, warms_up: bool
    ) -> None:
        """Take note of the profiler that this is the schedule of; called once, by it.

        Args:
            handlers: Its handlers; those with ``files_of`` and ``live_path`` tell which files a capture is in.
            flush_handlers: Waits until they have taken what was recorded, so many seconds at most; tells whether they have.
            warms_up: Whether it has sources, such as torch.profiler, that need a batch to warm up.
        """
        if self._used:
            raise ConfigError("on_demand: this schedule is in use by another Profiler; make a new one for each")
        self._used = True
        self._attached = [handler for handler in handlers if hasattr(handler, "files_of")]
        self._flush_handlers = flush_handlers
        if self._warmup is None:
            self._warmup = int(warms_up)

    # ---- the button, from inside --------------------------------------------------------------------------------------

    def capture(self, *, steps: int | None = None, seconds: float | None = None, warmup: int | None = None) -> bool:
        """Record from the next batch on, on this rank. Returns at once. Thread-safe.

        Where every rank calls it in the same batch, all record the same ones.

        Args:
            steps: How many batches; 0 is until `stop_capture`, None the default, unless ``seconds`` is given.
            seconds: How long, to the end of the batch.
            warmup: Batches to warm up before.

        Returns:
            Whether it will; False while another capture is in force, and when the profiler does not run.

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
        refusal = self.accept(Request(id=new_id(), steps=steps, seconds=seconds, warmup=warmup))
        return refusal is None

    def stop_capture(self) -> None:
        """End the capture that is in force, if one is, with the batch that runs. Thread-safe; returns at once."""
        window = self._window
        if window is not None:
            window.stop("it was stopped before it began")

    @property
    def capturing(self) -> bool:
        """Whether a capture is in force on this rank, from its being asked for to its files being complete."""
        window = self._window
        return window is not None and window.in_force

    @property
    def files(self) -> list[str]:
        """The trace files of the last capture; complete when `capturing` is False again."""
        window = self._window
        return [] if window is None else list(window.files)

    # ---- for the listener ---------------------------------------------------------------------------------------------

    def accept(self, request: Request) -> str | None:
        """Begin what a request asks for.

        Returns:
            Why it is refused, or None.
        """
        with self._lock:
            window = self._window
            if window is not None and window.in_force:
                if window.request.id == request.id:
                    if not window.request.decided:
                        window.request = request
                    return None
                if window.request.decided:
                    return "another capture is in force on this rank"
                # One that only waits to be told its start: whoever was to tell is gone.
            steps, seconds = request.steps, request.seconds
            if steps is None and seconds is None:
                steps = self._steps
            new = CaptureWindow(
                request,
                steps=steps or None,
                seconds=min(seconds or self._max_seconds, self._max_seconds),
                warmup=(self._warmup or 0) if request.warmup is None else request.warmup,
            )
            self._window = new
        return None

    @property
    def window(self) -> CaptureWindow | None:
        """The capture that is in force, else the last one."""
        return self._window

    @property
    def timestamp(self) -> Timestamp | None:
        """The training time at the start of the batch that runs."""
        return self._timestamp

    # ---- the trace handler: on its thread -----------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the control folder, and begin to listen."""
        self._pid = os.getpid()
        self._timestamp = recording.timestamp
        folder = None
        if self._folder is not None:
            folder = Path(self._folder.format(recording.process, recording.timestamp)).absolute()
        listener = CaptureListener(
            self,
            recording.process,
            folder,
            trigger=self._trigger,
            signal_all_ranks=self._signal_all_ranks,
            look_interval=self._look_interval,
            trust_other_users=self._trust_other_users,
            clock=self._clock,
        )
        listener.start()
        self._listener = listener

    def stopping(self, error: BaseException | None) -> None:
        """End a capture that runs."""
        self._stopping = True
        if self._window is not None and self._timestamp is not None:
            self._window.cut(int(self._timestamp.batch), "the run ended" + (" with an exception" if error else ""))

    def process_events(self, batch: EventBatch) -> None:
        """Nothing: the other handlers take the events."""

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Note a trace of torch.profiler."""
        self._trace_files.append(filepath)

    def batch_start(self, timestamp: Timestamp) -> None:
        """Forget the traces that were finished before a capture began."""
        window = self._window
        if window is not None and window.begin is not None and window is not self._begun:
            self._begun = window
            self._trace_files.clear()

    def flush(self) -> None:
        """Pass on what went wrong on the listener's thread."""
        if self._listener is not None:
            self._listener.raise_failure()

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        """A window is complete; if it is the capture's, the listener sees to its files."""
        window = self._window
        if window is not None and window.end is not None and int(timestamp.batch) >= window.end:
            self._complete = window
            if self._listener is not None:
                self._listener.wake()

    def close(self) -> None:
        """End the listener, unless the profiler stops in good order: then `ended` does, when all handlers have closed."""
        if self._trigger is not None:
            self._trigger.remove()
        if not self._stopping:
            self.ended()

    def ended(self, timeout_s: float = math.inf) -> None:
        """End the listener, after a last word: the files are complete now. Wait for it for two seconds at most."""
        if self._listener is not None:
            self._listener.close(timeout_s)

    # ---- files: on the listener's thread ------------------------------------------------------------------------------

    def note_files(self, *, closing: bool = False) -> None:
        """Note which files a capture is in; it is saved when they are complete and have the names that they keep.

        Args:
            closing: The profiler stops, and the handlers with it.
        """
        window = self._window
        if window is None or window.begin is None or window.saved:
            return
        last = (
            int(self._timestamp.batch) if window.end is None and self._timestamp is not None else (window.end or 0) - 1
        )
        # What has been told here has been told to the other handlers as well, but they may be slower.
        complete = closing or (window is self._complete and self._flush_handlers(_FLUSH_S))
        named = [path for handler in self._attached for path in handler.files_of(window.begin, last)]
        traces = self._trace_files if window is self._begun else []
        window.files = tuple(dict.fromkeys(_name_now(path) for path in [*named, *traces]))
        if complete and window.recorded:
            live = {_name_now(handler.live_path) for handler in self._attached if handler.live_path is not None}
            packed = {_absolute(path) for path in named if path.endswith(".gz")}
            being_packed = any(f"{file}.gz" in packed for file in window.files if file not in live)
            window.saved = not being_packed and not (closing and live)


def on_demand(
    folder: StrPath | None = DEFAULT_FOLDER,
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
) -> OnDemand:
    """Return a schedule that records a few batches whenever it is asked to, as often as one likes.

    Who asks: ``tracekit capture FOLDER`` on any machine that sees the folder, for all ranks or some, with a common start; a
    signal; `Profiler.capture` from inside. Each capture is a window of its own, saved like those of `cyclic_schedule`, with
    torch.profiler and counters where the profiler has them.

    Example::

        capture = on_demand("traces/{run_id}/control", on_signal=signal.SIGUSR2)
        with Profiler(JSONTraceHandler("traces/{run_id}/rank{rank}-{batch}.json"), capture, sources=TorchProfiler()):
            ...

    The folder is looked at by a thread of its own every ``look_interval`` seconds (less often where that would be more than
    1000 looks a second for all ranks together); if the file system hangs, only that thread waits. The training loop reads one
    attribute a batch. The request is a file: see `tracekit.capture` for writing one by hand.

    Fork: a forked child neither listens nor answers.

    Args:
        folder: The control folder, with the fields of `JSONTraceHandler`, on a file system that all ranks share. It is made
            with mode 0700; requests that another user has written, or could have, are refused. None is not a folder.
        on_signal: A signal, such as ``signal.SIGUSR2``, that starts a capture of default length on this rank, or stops the one
            that runs. The handler that was set before is still called; needs the profiler to be started on the main thread.
        signal_all_ranks: Have the signal start or stop all ranks together, through the folder.
        base: When to record otherwise; None is never. A window of it that is open when a capture begins is saved first.
        steps: How many batches a capture has that does not say.
        warmup: How many batches before it are for the sources to warm up; by default 1 if the profiler has sources, else 0.
            Markers record in them.
        max_seconds: How long a capture may last, whatever was asked for.
        look_interval: Seconds between looks at the folder and for the signal.
        trust_other_users: Obey every request that can be read, whoever wrote it.
        clock: The clocks to read; for tests.

    Raises:
        ConfigError: An argument is wrong; when the profiler starts, also: the signal cannot be had.
        StorageError: When the profiler starts: the folder cannot be made.
    """
    return OnDemand(
        folder,
        on_signal=on_signal,
        signal_all_ranks=signal_all_ranks,
        base=base,
        steps=steps,
        warmup=warmup,
        max_seconds=max_seconds,
        look_interval=look_interval,
        trust_other_users=trust_other_users,
        clock=clock,
    )


def _absolute(path: str) -> str:
    """Return a name that also means the file elsewhere than in this process's folder."""
    if storage.is_remote(path):
        return storage.without_secrets(path)
    return os.fspath(Path(path).absolute())


def _name_now(path: str) -> str:
    """Return the name that a file has now: as long as it is written to, a packed trace is a plain one."""
    name = _absolute(path)
    if storage.is_remote(path) or not name.endswith(".gz") or Path(name).exists():
        return name
    plain = name.removesuffix(".gz")
    return plain if Path(plain).exists() else name
