"""TraceHandler: the interface between the recorder and the consumers of its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from tracekit.events import Counter, Instant, SliceBegin, SliceEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.distributed import ProcessInfo
    from tracekit.events import Event, EventBatch
    from tracekit.timestamp import Timestamp

COUNTS: Final = ("rank", "global")
"""Scopes of the samples and tokens in the training time: this rank alone, or all ranks together."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Metadata of a recording, passed to handlers when it starts.

    Attributes:
        process: Identity of this process.
        anchor: The clock reading from which every time of this recording is derived.
        timestamp: The training time at the start.
        counts: Scope of the samples and tokens in the training time; one of `COUNTS`.
    """

    process: ProcessInfo
    anchor: Anchor
    timestamp: Timestamp
    counts: str = "rank"


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of recorded events, losses and failures.

    An event is a slice, an instant or a counter. Each recorded event was either passed to the handler or is counted in
    ``dropped``. `TraceHandler.summary` receives the counts of that handler. `Profiler.stats` has the counts of the handler
    that has missed the most events.

    Attributes:
        slices: Number of slices that the writer has taken from the buffer.
        instants: Number of instants taken from the buffer.
        counters: Number of counter events taken from the buffer.
        dropped: Number of lost events by reason; each non-numeric value of a counter counts as one.
        failures: Number of failures by failing part: a handler, a source or the schedule.
        recorded: Number of recorded events, including those that never left the buffer.
    """

    slices: int
    instants: int
    counters: int
    dropped: Mapping[str, int]
    failures: Mapping[str, int]
    recorded: int = 0


class ProcessHook(Protocol):
    """A process-wide hook, such as a signal handler, that must be set on the thread that starts the profiler."""

    def install(self) -> None:
        """Set the hook. Raise to stop the profiler from starting."""

    def remove(self) -> None:
        """Restore the previous hook; called on the thread that stops the profiler. Return quickly: `stop` waits."""


class TraceHandler:
    """Takes the events of a profiler. Subclass it and override the methods you need; by default, each does nothing.

    Delivery: the profiler has one thread for each handler, and calls all methods on it, one at a time, from `open` to
    `close`. Only `for_children` is called on the caller's thread. So a handler can use objects that belong to one thread, such
    as a sqlite3 connection. `Profiler.start` waits for `open`, which may raise (a wrong path, a missing package) to stop the
    profiler from starting. Put hooks that must be set on the starting thread, such as signal handlers, into `hooks`. Events
    come within the flush interval (200 ms). A handler that blocks delays neither training nor another handler. At most
    ``max_buffered_events`` of its events wait. At the end, `stopping`, `ending`, the last events, `summary`, `losses` and
    `close` share one deadline, the profiler's ``shutdown_timeout``.

    Order: no event or hook is delivered after one with a later time, over all threads. For that, events and hooks are held for
    200 ms; only `Profiler.flush`, `Profiler.stop` and a full buffer deliver all immediately. If a thread is suspended for
    longer between reading the clock and recording, its event comes late and is counted in ``Summary.failures``.
    The slice of a batch starts when the batch is known to have begun (see `batch_start`), or at the end of the last batch where
    nothing later has been delivered yet. The slice of a batch that is running at the end of the recording is finished there.
    Handlers that override `process_events` get the slices of whole batches only.
    On each recording thread, starts come before finishes, properly nested. Every finish follows its start.

    With ``inline = True`` the ``process_*_event`` methods are called on the recording thread instead, inside the marker, at
    the moment of the event: for mirroring into NVTX or ``record_function``. Keep such a handler short and thread-safe.

    An exception in a method is counted and logged once, and never reaches the training loop. After ten failures in a row, only
    `close` is still called. Handlers are not used in forked children, which get their own by `for_children`.

    `tracekit.testing.TraceHandlerContract` is a test suite for custom handlers.
    """

    inline: ClassVar[bool] = False
    """True to take events on the recording thread."""

    hooks: Sequence[ProcessHook] = ()
    """Hooks to install on the thread that starts the profiler, after `open`, and to remove on the thread that stops it."""

    # ---- life ---------------------------------------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Get ready; the first call. Raise to stop the profiler from starting."""

    def stopping(self, error: BaseException | None) -> None:
        """Called when the profiler stops, before the last events are delivered.

        Args:
            error: The exception that leaves the profiler's ``with`` block, if one does.
        """

    def ending(self, timeout_s: float) -> None:
        """Called at shutdown, before the last events are delivered.

        Args:
            timeout_s: The time that remains until `close` must have returned. Work that is unfinished by then is abandoned.
        """

    def flush(self) -> None:
        """Flush delivered events to storage that survives this process."""

    def close(self) -> None:
        """Finish; the last call, also after failures."""

    def for_children(self) -> Callable[[str], TraceHandler] | None:
        """Return a factory for the handler of a child process (a worker of a data loader).

        Returns:
            A picklable factory, called in the child with the child's name ("worker 0"). None if a child has nothing to
            write, which is the default.
        """
        return None

    def losses(self) -> Mapping[str, int]:
        """Return how many events this handler was given and could not keep, by reason, for the profiler's `Summary`.

        Called after each `flush`, before `summary` and after `close`.
        """
        return {}

    # ---- events, one by one -------------------------------------------------------------------------------------------

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Process the start or the finish of a slice.

        Args:
            name: The marker's name.
            categories: Its categories.
            is_start: True at the start, False at the finish.
            timestamp: The training time at that moment.
            wall_clock_time_ns: Wall clock time of the start or finish, in ns since the epoch.
        """

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Process an instant: an event at one moment."""

    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: Mapping[str, float],
    ) -> None:
        """Process the values of one or more series of a counter; they are finite numbers."""

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Process a finished Chrome JSON trace of this process, for example one of torch.profiler. Do not change the file."""

    # ---- events, a batch at a time ------------------------------------------------------------------------------------

    def process_events(self, batch: EventBatch) -> None:
        """Process the events of one flush.

        Calls the methods above, one event at a time. Override it for speed, or to see tracks and arguments, which those methods
        do not receive. A handler that overrides it gets each batch as soon as it is taken from the buffer, within the flush
        interval. It gets a hook after the batch that completes the events up to the time of the hook; that batch may also hold
        later events.
        """
        for event in batch:
            process_event(self, event)

    # ---- the training loop and the clocks -----------------------------------------------------------------------------

    def batch_start(self, timestamp: Timestamp) -> None:
        """A batch begins.

        Called at the first sign of the batch: `Profiler.iterate` has a value for it, `Profiler.begin_batch` or `Profiler.step`
        is called, or the training thread records a slice or an instant. Counters and other threads do not begin a batch. So
        this is never called for a batch after the last one, unless the training thread records an event there (an
        evaluation): call `Profiler.next_epoch` or `Profiler.stop` before that, or use `Profiler.iterate`.
        """

    def batch_end(self, timestamp: Timestamp) -> None:
        """A batch has ended; the timestamp already names the next one."""

    def epoch_start(self, timestamp: Timestamp) -> None:
        """An epoch begins, with its first batch: called right before `batch_start`, and after `epoch_end` of the last one."""

    def epoch_end(self, timestamp: Timestamp) -> None:
        """An epoch has ended, if a batch of it has begun; the timestamp already names the next one."""

    def window_end(self, timestamp: Timestamp, wall_clock_time_ns: int) -> None:
        """A recording window of the schedule is complete; all its events have been delivered."""

    def clock_anchor(self, anchor: Anchor, step: ClockStep | None) -> None:
        """The clocks were read again; ``step`` is the detected change of the wall clock, if it was set."""

    def clock_offset(self, offset: ClockOffset) -> None:
        """This process's clock was compared with that of another rank; see `tracekit.ClockSync`."""

    def summary(self, summary: Summary) -> None:
        """Receive the counts of recorded and lost events; called once before `close`."""


def process_event(handler: TraceHandler, event: Event) -> None:
    """Call the method of a handler that takes an event."""
    label = event.label
    if isinstance(event, SliceBegin | SliceEnd):
        is_start = isinstance(event, SliceBegin)
        handler.process_duration_event(
            label.name, label.categories, is_start, event.timestamp, event.wall_clock_time_ns
        )
    elif isinstance(event, Instant):
        handler.process_instant_event(label.name, label.categories, event.timestamp, event.wall_clock_time_ns)
    else:
        assert isinstance(event, Counter)
        handler.process_counter_event(
            label.name, label.categories, event.timestamp, event.wall_clock_time_ns, event.values
        )


class MakesTraceHandler(Protocol):
    """An object that makes a trace handler; `Profiler` uses the handler in its place."""

    def __trace_handler__(self) -> TraceHandler:
        """Return the trace handler."""
