"""TraceHandler: the interface between the recorder and whatever takes its events."""

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

__all__ = ["COUNTS", "MakesTraceHandler", "ProcessHook", "Recording", "Summary", "TraceHandler"]

COUNTS: Final = ("rank", "global")
"""Whose samples and tokens the training time counts: those of the rank alone, or of all ranks together."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a handler is told when recording starts.

    Attributes:
        process: Who this process is.
        anchor: The reading of the clocks that every time of this recording is derived from.
        timestamp: The training time at the start.
        counts: Whose samples and tokens the training time counts; one of `COUNTS`.
    """

    process: ProcessInfo
    anchor: Anchor
    timestamp: Timestamp
    counts: str = "rank"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a profiler has recorded, and what went wrong.

    An event is a slice, an instant or a counter. Each one that was recorded was either given to the handler or is counted in
    ``dropped``. `TraceHandler.summary` gets the counts of that handler, `Profiler.stats` those of the handler that has missed
    most.

    Attributes:
        slices: How many slices the writer has taken from the buffer.
        instants: How many instants.
        counters: How many counter events.
        dropped: How much was lost, by reason; values of counters that are not numbers are counted one by one.
        failures: How often a handler, a source or the schedule failed, by who failed.
        recorded: How many events there were, those included that never left the buffer.
    """

    slices: int
    instants: int
    counters: int
    dropped: Mapping[str, int]
    failures: Mapping[str, int]
    recorded: int = 0


class ProcessHook(Protocol):
    """Something of the process, such as a signal handler, that must be set on the thread that starts the profiler."""

    def install(self) -> None:
        """Set it. Raise to stop the profiler from starting."""

    def remove(self) -> None:
        """Set back what was there before; called on the thread that stops the profiler. Return quickly: `stop` waits."""


class TraceHandler:
    """Takes the events of a profiler. Subclass it and override what you need; everything does nothing by default.

    Delivery: the profiler has one thread for each handler, and calls all methods on it, one at a time, from `open` to
    `close`; only `for_children` is called on the thread that asks. So a handler can use what belongs to one thread, such as a
    sqlite3 connection. `Profiler.start` waits for `open`, which may raise (a wrong path, a missing package) to stop it from
    starting. What must be set on the thread that starts the profiler, such as signal handlers, belongs into `hooks`. Events
    come within the flush interval (200 ms). A handler that blocks holds up neither training nor another handler; of what it
    does not take in time, at most ``max_buffered_events`` wait. At the end, `stopping`, `ending`, the last events, `summary`,
    `losses` and `close` share one deadline, the profiler's ``shutdown_timeout``.

    Order: no event or hook is delivered after one with a later time, over all threads. For that, events and hooks are held for
    200 ms; only `Profiler.flush` and `Profiler.stop` deliver all immediately. An event whose thread was suspended for longer
    between reading the clock and recording comes late, and is counted in ``Summary.failures``.
    The slice of a batch starts when the batch is known to have begun (see `batch_start`), or at the end of the last batch where
    nothing later has been delivered yet. The slice of a batch that is running at the end of the recording is finished there.
    Handlers that override `process_events` get the slices of whole batches only.
    Per recording thread, starts come before finishes, properly nested; every finish has had its start.

    With ``inline = True`` the ``process_*_event`` methods are called on the recording thread instead, inside the marker, at
    the moment of the event: for mirroring into NVTX or ``record_function``. Keep such a handler short and thread-safe.

    A method that raises is counted and logged once, and never reaches the training loop; after ten failures in a row the
    handler is called no more but for `close`. Handlers are not used in forked children, which get their own by `for_children`.

    `tracekit.testing.TraceHandlerContract` is a test suite for handlers of your own.
    """

    inline: ClassVar[bool] = False
    """Whether events are taken on the recording thread."""

    hooks: Sequence[ProcessHook] = ()
    """What is installed on the thread that starts the profiler, after `open`, and removed on the one that stops it."""

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
            timeout_s: The time that remains until `close` must have returned. What is not done by then is left behind.
        """

    def flush(self) -> None:
        """Bring what was delivered to where it survives this process."""

    def close(self) -> None:
        """Finish; the last call, also after failures."""

    def for_children(self) -> Callable[[str], TraceHandler] | None:
        """Say how a child process (a worker of a data loader) makes a handler of its own, that writes beside this one.

        Returns:
            What makes it, called in the child with the child's name ("worker 0"); must be picklable. None where there is
            nothing for a child to write, which is the default.
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
        """Take the start or the finish of a slice.

        Args:
            name: The marker's name.
            categories: Its categories.
            is_start: True at the start, False at the finish.
            timestamp: The training time at that moment.
            wall_clock_time_ns: That moment, ns since the epoch.
        """

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Take something that happened at one moment."""

    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: Mapping[str, float],
    ) -> None:
        """Take the values of one or more series; they are finite numbers."""

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Take a finished Chrome JSON trace of this process, for example one of torch.profiler. Do not change the file."""

    # ---- events, a batch at a time ------------------------------------------------------------------------------------

    def process_events(self, batch: EventBatch) -> None:
        """Take the events of one flush.

        Calls the methods above one event at a time; override it to be faster, or for what they do not tell: tracks and
        arguments. A handler that overrides it gets each batch as soon as it is taken from the buffer, within the flush
        interval, and hooks after the batch that holds all events up to their time; the batch may hold later ones as well.
        """
        for event in batch:
            process_event(self, event)

    # ---- the training loop and the clocks -----------------------------------------------------------------------------

    def batch_start(self, timestamp: Timestamp) -> None:
        """A batch begins.

        Called when the batch is known to come: `Profiler.iterate` has a value for it, `Profiler.begin_batch` or `Profiler.step`
        is called, or the training thread records a slice or an instant, whichever is first. Counters and other threads begin no
        batch. So this is never called for a batch after the last one, unless the training thread records something there (an
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
        """The clocks were read again; ``step`` tells when the wall clock was found to have been set."""

    def clock_offset(self, offset: ClockOffset) -> None:
        """This process's clock was compared with that of another rank; see `tracekit.ClockSync`."""

    def summary(self, summary: Summary) -> None:
        """What was recorded and what was lost; called once before `close`."""


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
    """What is not a trace handler, and makes one that a `Profiler` takes in its place."""

    def __trace_handler__(self) -> TraceHandler:
        """Return the trace handler."""
