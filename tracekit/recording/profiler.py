"""Profiler: owns the training time, the schedule, the markers, the sources and the writer."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from tracekit import privacy
from tracekit.arguments import MAX_SECONDS, resolve_path
from tracekit.clock import SYSTEM_CLOCK, Clock, Timeline
from tracekit.distributed import ProcessInfo, detect_process
from tracekit.errors import ConfigError, TimeError
from tracekit.handlers.base import Recording, Summary
from tracekit.naming import FileName
from tracekit.recording.attached_markers import AttachedMarkers
from tracekit.recording.batches import Batches
from tracekit.recording.buffer import RecordBuffer
from tracekit.recording.children import SHUTDOWN_TIMEOUT_S, ChildPlan, ChildRecording, SharedAction
from tracekit.recording.compiled import ProfilerBase, compiled_lookup, is_core_clock
from tracekit.recording.compiling import pass_over_profilers
from tracekit.recording.end_report import report_end
from tracekit.recording.failures import Failures
from tracekit.recording.inline import observer_of
from tracekit.recording.lifecycle import (
    DEFAULT_ACTIONS,
    MarkerTable,
    activate,
    adopt_by_active,
    deactivate,
    inherit,
    running_profiler,
)
from tracekit.recording.loaders import WorkerRecording, recording_loader
from tracekit.recording.options import ProfilerOptions
from tracekit.recording.schedule import CurrentSchedule, ProfilerAction
from tracekit.recording.source import SourceGroup
from tracekit.recording.termination import Termination
from tracekit.recording.writer import Writer
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import timedelta
    from types import TracebackType

    from tracekit.clock import ClockOffset
    from tracekit.handlers.base import MakesTraceHandler, TraceHandler
    from tracekit.recording.marker import Marker
    from tracekit.recording.schedule import Schedule
    from tracekit.recording.source import Source

logger = logging.getLogger("tracekit")
T = TypeVar("T")

_LOOK_S: Final = 1.0  # time that `stop` waits for the writer to report if the last batch has begun
_NO_CATEGORIES: Final = ()  # CPython has one empty tuple only; other empty sequences take the slower path
_OF_CHILDREN: Final = ("counts", "flush_interval", "max_buffered_events", "max_buffered_bytes", "on_full")
_ACTIVE: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


@compiled_lookup
class Profiler(ProfilerBase):
    """Records what a training loop does, and gives it to trace handlers.

    Example::

        with Profiler(trace_handlers=[JSONTraceHandler("traces/{run_id}/rank{rank}.json")]) as profiler:
            for batch in profiler.iterate(loader, "dataloader"):
                with profiler.marker("forward"):
                    ...
                profiler.step(samples=len(batch))

    Wrong arguments raise `ConfigError` here or in `start`. After that, nothing raises into the training loop: failures are
    logged once and counted (``TRACEKIT_STRICT=1`` raises them). Nothing on the path of the loop waits for storage, except
    with ``on_full="block"``. If the writer is late by a whole ``flush_interval``, the next event waits for it, for 50 ms
    at most, and not for a handler that has blocked for long.

    Threads: any thread may use markers; `start`, `step`, `next_epoch`, `next_iteration` and `stop` belong to the training
    thread. Fork: a forked child records only with `child_recording` or with another profiler. `iterate` does this for the
    workers of a data loader. A Profiler cannot be pickled; a Marker can.

    Args:
        trace_handlers: One trace handler or several. An object with a method ``__trace_handler__`` makes one. Running
            profilers cannot share a handler.
        schedule: Decides when to record: `cyclic_schedule`, `on_demand`, ``torch.profiler.schedule(...)``, or any function
            of the `Timestamp` at the start of a batch that returns a `ProfilerAction`. None records always.
        sources: Record without markers: `TorchProfiler`, `SystemProfiler`, `GPUProfiler`, `TorchMemoryProfiler`,
            `ClockSync`, or your own `Source` subclasses.
        timestamp: The training time to start from, when a run is resumed from a checkpoint.
        counts: Scope of the samples and tokens that `step` takes: ``"rank"`` for this rank alone, ``"global"`` for all
            ranks together. It is written into the trace, and changes no number.
        record_batches: Record every batch as a slice, on a separate track.
        flush_interval: Maximum time in seconds until an event is passed to the handlers; a killed process can lose this
            much. The writer takes events several times per interval. If it is late, recording threads wait for it.
        max_buffered_events: Maximum number of events that wait in memory. The buffer and each handler get an equal share,
            so that a handler that does not keep up does not use the share of another one.
        max_buffered_bytes: Maximum memory of these events in bytes. The size of an event is an estimate: 32 bytes (100
            without the compiled core), and for a counter that is not a single float 160 bytes and 64 for each series.
        on_full: Policy for events beyond these limits. ``"drop_newest"`` and ``"drop_oldest"`` drop and count them,
            ``"block"`` makes the recording threads wait. If the writer does not keep up, both drop the newest. A slice
            with a delivered start is never dropped.
        shutdown_timeout: Maximum time in seconds that `stop` waits for the handlers.
        sigterm_grace: Maximum time in seconds to hold back SIGTERM until the recording is written. Then the previous
            handler is called. Without a previous handler, the files are completed, and the signal ends the process. An
            open window of torch.profiler is not saved. Start the profiler on the main thread. None does not handle
            SIGTERM, which can then lose one flush interval.
        run_id: Name of the run, the same on every rank. This argument and the next five replace the values from the
            environment; see `tracekit.distributed.detect_process`.
        rank: Number of this process in the run.
        local_rank: Number of this process on its host.
        world_size: Number of ranks.
        node: Number of the host.
        attempt: Number of earlier starts of this rank by the launcher.
        process: The complete identity of this process, instead of the six arguments above. `ChildRecording` passes it.
        private: Leave host names, user names and paths out of all files. The host and its boot become hashes, which still
            show which ranks share a clock. Exceptions lose their text, and torch.profiler its stacks. Your own names
            (markers, files, ``run_id``) and log lines do not change. None reads ``TRACEKIT_PRIVATE``.
        clock: The clocks to read; for tests.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        trace_handlers: TraceHandler | MakesTraceHandler | Sequence[TraceHandler | MakesTraceHandler] = (),
        schedule: Schedule | Callable[[int], Any] | None = None,
        *,
        sources: Source | Sequence[Source] = (),
        timestamp: Timestamp | None = None,
        counts: str = "rank",
        record_batches: bool = True,
        flush_interval: float = 0.2,
        max_buffered_events: int = 1_000_000,
        max_buffered_bytes: int = 64 << 20,
        on_full: str = "drop_newest",
        shutdown_timeout: float = 10.0,
        sigterm_grace: float | None = None,
        run_id: str | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        node: int | None = None,
        attempt: int | None = None,
        process: ProcessInfo | None = None,
        private: bool | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = options = ProfilerOptions(
            trace_handlers=cast("tuple[TraceHandler, ...]", trace_handlers),  # the options accept one or several
            schedule=schedule,
            sources=cast("tuple[Source, ...]", sources),
            timestamp=timestamp,
            counts=counts,
            record_batches=record_batches,
            flush_interval=flush_interval,
            max_buffered_events=max_buffered_events,
            max_buffered_bytes=max_buffered_bytes,
            on_full=on_full,
            shutdown_timeout=shutdown_timeout,
            sigterm_grace=sigterm_grace,
            run_id=run_id,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            node=node,
            attempt=attempt,
            process=process,
            private=private,
            clock=clock,
        )
        self._handlers = list(options.trace_handlers)
        self._failures = Failures()
        self._sources = SourceGroup(options.sources, self._failures.report)
        self._schedule = CurrentSchedule(schedule)
        on_demand = self._schedule.on_demand
        if on_demand is not None:
            # It is a handler, too, and learns of windows and of torch's traces.
            on_demand.attach(self._handlers, self._flush_handlers, warms_up=bool(self._sources.members))
            self._handlers.append(on_demand)
        if timestamp is not None:
            self._schedule.resume_at(timestamp)
        self._termination: Termination | None = None
        self._clock = clock
        self._buffer = RecordBuffer()
        self._batches = Batches(self._buffer, timestamp or Timestamp())
        self._markers = MarkerTable()
        self._attached = AttachedMarkers(self._buffer, clock.monotonic_ns)
        self._by_name: dict[str, Marker] = {}
        self._action = ProfilerAction.SKIP
        self._window_open = False
        self._state = "new"
        self._process: ProcessInfo | None = None
        self._shared_action: SharedAction | None = None
        self._writer: Writer | None = None
        self._timeline: Timeline | None = None
        self._has_stepped = self._may_be_plain = False
        self._loops = 0  # number of running loops of `iterate`

    # ---- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop(exc)

    def start(self) -> None:
        """Open the handlers and the sources, and start recording.

        Raises:
            ConfigError: The profiler was started before, a handler or source has an invalid configuration, or the
                schedule fails for the first batch.
            TracekitError: A handler cannot be opened, for example without a writable folder.
        """
        if self._state != "new":
            raise ConfigError(f"this Profiler was {self._state} before; make a new one for every recording")
        options = self._options
        if options.sigterm_grace is not None:
            self._termination = Termination(self.flush, self._end_at_signal, options.sigterm_grace)
        self._process = options.process or detect_process(**options.identity)
        if privacy.is_wanted(options.private) and not self._process.private:
            self._process = privacy.anonymous(self._process, options.run_id)
        first_action = self._schedule.check(self.timestamp)
        self._sources.check(self)
        self._timeline = timeline = Timeline(self._clock)
        writer = Writer(
            self._buffer,
            self._handlers,
            timeline,
            self._batches,
            self._attached.open_slices,
            self._failures,
            options.flush_interval,
            limit_events=options.max_buffered_events,
            limit_bytes=options.max_buffered_bytes,
            on_full=options.on_full,
        )
        writer.open(Recording(self._process, timeline.anchor, self.timestamp, options.counts))
        self._batches.restart(self.timestamp, timeline.anchor.monotonic_ns, self._clock.monotonic_ns())
        self._state = "started"
        inline = [handler for handler in self._handlers if handler.inline]
        self._attached.observer = observer_of(inline, self._batches.timestamps, timeline, self._failures)
        self._writer = writer
        writer.start()
        activate(self)
        if self._termination is not None:
            self._termination.install()
        with suppress(OSError):  # without it, children always record
            self._shared_action = SharedAction(self._action)
        self._attached.pass_to(self._action)
        self._begin_batch(first_action or self._decide())
        self._sources.open(self, self._action)
        self._batches.expect_start(self._batches.start_ns, new_epoch=True)
        # No source and no schedule hears of a step, and no failure is raised there.
        self._may_be_plain = (
            self._schedule.whole is None
            and not self._sources.stepped
            and not self._failures.is_strict
            and is_core_clock(self._clock.monotonic_ns)
        )

    def stop(self) -> None:
        """Save an open window, deliver all events, close the handlers, and stop recording. A second call does nothing.

        Waits at most ``shutdown_timeout`` seconds for the handlers.
        """
        self._stop(None)

    def _stop(self, ended_by: BaseException | None) -> None:
        if self._state != "started" or self._writer is None:
            return
        self._state = "stopped"
        self._batches.is_plain = False
        if self._shared_action is not None:
            self._shared_action.close()
        with ExitStack() as steps:  # Ctrl-C may end one of them, such as the export of a window; the others follow
            steps.callback(self._leave)
            steps.callback(self._close_writer, self._writer, ended_by)
            if ended_by is None and self._has_empty_window():
                self._batches.expect_no_start()  # no slice of a source begins the batch that did not come
                # The schedule opened a window for a batch that did not come. Discard the window.
                self._sources.step(ProfilerAction.SKIP, ProfilerAction.SKIP)
            self._sources.close()
        self._failures.raise_pending(ended_by)

    def _close_writer(self, writer: Writer, ended_by: BaseException | None) -> None:
        self._attached.pass_to(None)
        deadline_s = time.monotonic() + self._options.shutdown_timeout
        writer.stopping(ended_by)
        try:
            in_time = writer.close(deadline_s - time.monotonic())
        finally:
            if self._schedule.on_demand is not None:
                self._schedule.on_demand.ended(deadline_s - time.monotonic())
        if not in_time:
            logger.warning(
                "tracekit: the trace handlers did not finish within %g s and are left behind; what they had not "
                "written is lost (shutdown_timeout= gives them longer)",
                self._options.shutdown_timeout,
            )
        else:
            report_end(self.process, self._handlers, self.stats)

    def _leave(self) -> None:
        deactivate(self)
        self._attached.detach()
        if self._termination is not None:
            self._termination.remove()

    def _end_at_signal(self, timeout_s: float) -> None:
        """Deliver all events and complete the files, on another thread than the training thread.

        Does not close the sources: torch.profiler may need more time to write a window than remains.
        """
        if self._state == "started":
            self._state = "stopped"
            self._batches.is_plain = False
            self._attached.pass_to(None)
        if self._writer is not None:
            self._writer.close(timeout_s)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until the handlers have written all events that were recorded until now.

        Args:
            timeout: Maximum wait in seconds.

        Returns:
            True if it was done in time. False if not, or if the profiler is not running.
        """
        if self._writer is None or self._state != "started":
            return False
        done = self._writer.flush(min(timeout, MAX_SECONDS))
        self._failures.raise_pending()
        return done

    def capture(self, *, steps: int | None = None, seconds: float | None = None, warmup: int | None = None) -> bool:
        """Record the next batches on this rank, with an `on_demand` schedule. Never waits; see `tracekit.OnDemand`."""
        if self._schedule.on_demand is None:
            raise ConfigError("capture() needs a schedule that can be asked: Profiler(..., schedule=on_demand(...))")
        return self._schedule.on_demand.capture(steps=steps, seconds=seconds, warmup=warmup)

    def _flush_handlers(self, timeout_s: float) -> bool:
        return self._writer is not None and self._state == "started" and self._writer.flush(timeout_s)

    @property
    def stats(self) -> Summary:
        """The counts of delivered events, lost events and failures so far."""
        return self._writer.summary() if self._writer is not None else Summary(0, 0, 0, {}, {})

    # ---- the training loop --------------------------------------------------------------------------------------------

    @property
    def timestamp(self) -> Timestamp:
        """The current training time."""
        return self._batches.timestamp

    @property
    def counts(self) -> str:
        """Scope of the counts passed to `step`: ``"rank"`` for this rank, ``"global"`` for all ranks together."""
        return self._options.counts

    @property
    def trace_handlers(self) -> tuple[TraceHandler, ...]:
        """The trace handlers."""
        return tuple(self._handlers)

    @property
    def schedule(self) -> Schedule | None:
        """The current schedule. It may have been updated with the length of an epoch or the resumption of the run."""
        schedule: Schedule | None = self._schedule.whole
        return schedule

    @property
    def action(self) -> ProfilerAction:
        """The action of the running batch."""
        return self._action

    @property
    def started(self) -> bool:
        """True while the profiler is running: it was started, and not stopped since."""
        return self._state == "started"

    @property
    def process(self) -> ProcessInfo:
        """The identity of this process: rank, host, run id ... Available after the start of the profiler."""
        if self._process is None:
            raise ConfigError("the process is known when the profiler has been started")
        return self._process

    @property
    def timeline(self) -> Timeline:
        """The time scale of the recording. Available after the start of the profiler."""
        if self._timeline is None:
            raise ConfigError("the time scale is known when the profiler has been started")
        return self._timeline

    def resume_at(self, timestamp: Timestamp) -> None:
        """Continue counting from the training time of a checkpoint that is loaded after the profiler was made.

        Does the same as ``Profiler(timestamp=...)``, for frameworks that load a checkpoint inside their training loop.
        A schedule of tracekit also counts from there. The running batch begins now, because the time before was not
        training. An open recording window stays open.
        """
        if not isinstance(timestamp, Timestamp):
            raise ConfigError(f"resume_at: timestamp must be a Timestamp, not {timestamp!r}")
        self._schedule.resume_at(timestamp)
        if self._state != "started":
            self._batches.timestamp = timestamp
            return
        self._batches.start_ns = now_ns = self._clock.monotonic_ns()
        self._batches.move_to(timestamp, now_ns)
        self._renew_start(now_ns)
        self._change_to(self._decide())

    def step(self, samples: int = 0, tokens: int = 0, duration: timedelta | None = None) -> None:
        """End the batch and begin the next one. Call it once at the end of each batch.

        A count must be an integer of 0 or more. An invalid argument is reported. Both counts of the batch are then 0,
        and its duration is the measured time.

        Args:
            samples: Number of samples in the batch, on this rank or, with ``Profiler(counts="global")``, on all ranks.
            tokens: Number of tokens in the batch.
            duration: Duration of the batch as measured by the loop (Composer excludes evaluation). None means the time
                since the last `step`. Only the `Timestamp` uses it; slices do not change.
        """
        batches = self._batches
        if duration is None and batches.end_plain(samples, tokens):
            return
        started = self._state == "started"
        now_ns = self._clock.monotonic_ns()
        took_us = (now_ns - batches.start_ns) // 1000 if started else 0
        try:
            if duration is None:
                timestamp = batches.timestamp.after_batch(samples, tokens, took_us)
            else:
                timestamp = batches.timestamp.to_next_batch(samples, tokens, duration)
        except TimeError as error:  # an invalid count must not end a run
            self.report_failure("step", error)
            timestamp = batches.timestamp.after_batch(0, 0, took_us)
        if not started:
            batches.timestamp = timestamp
            return
        finished = self._action
        batches.end(timestamp, now_ns)
        self._has_stepped = True
        action = self._decide()
        self._window_open = self._window_open or finished in _ACTIVE
        if self._window_open and (finished is ProfilerAction.ACTIVE_AND_SAVE or action not in _ACTIVE):
            self._end_window(action, now_ns)
        elif self._sources.stepped or action is not finished:
            self._pass_to(finished, action)
        # A slice that a source records when its window ends, on this thread, does not begin the batch.
        batches.expect_start(self._clock.monotonic_ns() if self._sources.members else now_ns)
        batches.is_plain = self._may_be_plain and self._window_open
        if now_ns > self._buffer.due_ns:
            self._buffer.look_after(now_ns)
        if self._failures.pending is not None:
            self._failures.raise_pending()

    def begin_batch(self) -> None:
        """Mark the batch as begun, for loops that know it before the first event. A second call does nothing.

        Otherwise a batch begins when `iterate` has a value, at the first slice or instant of the training thread, or at
        the latest at `step`. The handlers' hooks ``epoch_start`` and ``batch_start`` are called then. They are not
        called for a batch that never begins.
        """
        if self._state == "started":
            self._batches.begin()

    def _renew_start(self, since_ns: int) -> None:
        """Expect the start of the same batch from a later time on, if it has not begun."""
        calls = self._batches.expect_no_start()
        if calls:
            self._batches.expect_start(since_ns, new_epoch=len(calls) > 1)

    def _has_empty_window(self) -> bool:
        """Return True if a window is open but none of its batches has begun. A run without any `step` is one batch."""
        if self._writer is None or not self._sources.members or not self._has_stepped:
            return False
        return self._action in _ACTIVE and not self._window_open and not self._writer.has_begun(_LOOK_S)

    def restart_batch(self) -> None:
        """Begin the running batch again now, because the time before was not training (a setup, an evaluation).

        Its slice and its duration in the `Timestamp` then exclude that time.
        """
        self._batches.start_ns = now_ns = self._clock.monotonic_ns()
        self._renew_start(now_ns)

    def next_epoch(self) -> None:
        """Begin the next epoch. Call it after the last `step` of each epoch."""
        now_ns = self._next("to_next_epoch")
        if now_ns is None:
            return
        not_begun = self._batches.expect_no_start()
        if len(not_begun) < 2:  # two calls: the epoch had no batch, so `epoch_start` was not called either
            self._post("epoch_end", self.timestamp, at_ns=now_ns)
        ends_window = self._window_open and self._schedule.ends_with_epoch
        action = self._decide()
        if ends_window:
            self._end_window(action, now_ns)
        else:
            # The last step asked the schedule for a batch that did not come. The first batch of this epoch replaces it.
            self._change_to(action)
        self._batches.expect_start(self._clock.monotonic_ns() if self._sources.members else now_ns, new_epoch=True)

    def next_iteration(self) -> None:
        """Begin the next iteration, in runs that group epochs into iterations (such as PPO)."""
        now_ns = self._next("to_next_iteration")
        if now_ns is not None:
            self._renew_start(now_ns)

    def iterate(self, iterable: Iterable[T], name: str = "dataloader", categories: Sequence[str] = ()) -> Iterator[T]:
        """Yield from an iterable, and record a slice for each wait for a value. The first includes making the iterator.

        If the iterable has a length, a schedule that counts per epoch uses it as the length of the epoch, and saves its
        window with the last batch. A loop inside of another one, such as an evaluation, does not count.

        Also records a torch DataLoader: a slice "fetch" for each batch, and in it a slice "collate". Each worker
        records into a separate trace; see `worker_init_fn`. Without workers, these slices are inside the wait slices.
        The loader is left unchanged. Loaders of accelerate work too.
        """
        marker = self.marker(name, categories)
        iterator: Iterator[T] | None = None
        with self._loop(iterable), ExitStack() as starting:
            while True:
                held = self._batches.expect_no_start(
                    own=True
                )  # a request for a value that does not come must not begin a batch
                with marker:
                    if iterator is None:
                        # Keep it until the first value: a loader with a generator as ``__iter__`` starts its workers
                        # then.
                        starting.enter_context(recording_loader(iterable, self))
                        iterator = iter(iterable)
                    try:
                        value = next(iterator)
                    except StopIteration:
                        return
                    else:
                        begun, held = held, ()
                    finally:
                        starting.close()
                        if held:
                            self._batches.expect_start(self._clock.monotonic_ns(), new_epoch=len(held) > 1)
                now_ns = self._clock.monotonic_ns()
                if begun:
                    self._batches.post_start(begun, now_ns)
                yield value

    @contextmanager
    def _loop(self, iterable: object) -> Iterator[None]:
        """Learn the length of an epoch from a loop, unless it is inside of another one, like an evaluation."""
        length = 0
        if not self._loops:
            with suppress(Exception):  # no length, or a `__len__` that raises; a plain loop would not call it
                length = len(iterable)  # type: ignore[arg-type]
        if self._schedule.learn_epoch_length(length, self.timestamp) and self._state == "started":
            self._change_to(self._decide())
        self._loops += 1
        try:
            yield
        finally:
            self._loops -= 1

    def _next(self, transition: str) -> int | None:
        now_ns = self._clock.monotonic_ns()
        timestamp = getattr(self.timestamp, transition)()
        if self._state != "started":
            self._batches.timestamp = timestamp
            return None
        self._batches.move_to(timestamp, now_ns)
        return now_ns

    def _decide(self) -> ProfilerAction:
        """Return the schedule's action for the next batch."""
        try:
            return self._schedule.action(self.timestamp)
        except Exception as error:  # noqa: BLE001 - a user's function; its failure must not stop training
            self.report_failure("schedule", error)
            return ProfilerAction.SKIP

    def _end_window(self, action: ProfilerAction, now_ns: int) -> None:
        self._window_open = self._batches.is_plain = False
        self._pass_to(ProfilerAction.ACTIVE_AND_SAVE, action)
        if self._writer is not None and self._timeline is not None:
            self._writer.post("window_end", self.timestamp, self._timeline.wall_ns(now_ns), cut_ns=now_ns)

    def _pass_to(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        if action is not self._action:
            self._begin_batch(action)
        self._sources.step(finished, action)

    def _change_to(self, action: ProfilerAction) -> None:
        if action is not self._action:
            self._pass_to(self._action, action)

    def _begin_batch(self, action: ProfilerAction) -> None:
        if action is not self._action:
            self._action = action
            self._batches.is_recorded = self._options.record_batches and action is not ProfilerAction.SKIP
            if self._shared_action is not None:
                self._shared_action.set(action)
            self._attached.pass_to(action)

    def ask_schedule(self) -> None:
        """Call the schedule again between two steps, and apply its action."""
        if self._state == "started":
            self._begin_batch(self._decide())

    # ---- markers ------------------------------------------------------------------------------------------------------

    def marker(
        self,
        name: str,
        categories: Sequence[str] = (),
        actions: Iterable[ProfilerAction] = DEFAULT_ACTIONS,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
    ) -> Marker:
        """Return the marker of that name; the same arguments give the same marker.

        Args:
            name: Name of its slices. Names beyond 50,000 share the marker "(other names)"; there is a warning at 10,000.
            categories: Categories for filtering; one text or several.
            actions: The schedule's actions during which it records, one or several; by default all but SKIP.
            record_instant_on_start: Also record an instant at the start of each slice.
            record_instant_on_finish: Also record one at its finish.
        """
        # The order of the tests is the fastest one, because this runs for each ``with profiler.marker(name):``.
        if (
            actions is DEFAULT_ACTIONS
            and categories is _NO_CATEGORIES
            and not record_instant_on_start
            and not record_instant_on_finish
        ):
            try:
                return self._by_name[name]
            except Exception:  # noqa: BLE001 - a new name, or not a string, and its hash may raise
                marker = self._markers.get(name, adopt=self.adopt)
                self._by_name[marker.name] = marker
                return marker
        return self._markers.get(
            name, categories, actions, record_instant_on_start, record_instant_on_finish, adopt=self.adopt
        )

    def adopt(self, marker: Marker) -> None:
        """Attach a marker to this profiler."""
        if self._state == "forked":
            adopt_by_active(marker)
            return
        self._attached.add(marker)

    def release(self, markers: Iterable[Marker], *, flush: bool = True) -> None:
        """Detach markers, so that another profiler can adopt them. Deliver their events first if ``flush`` is true."""
        if flush and self._writer is not None and self._state == "started":
            self._writer.flush(self._options.shutdown_timeout)
        self._attached.let_go(markers)

    # ---- child processes ----------------------------------------------------------------------------------------------

    def child_recording(self, name: str) -> ChildRecording:
        """Return a context manager that records a child process; see `ChildRecording`.

        Args:
            name: Name of the child in the merged trace: "decoder" is shown as "rank 0 · decoder".
        """
        return ChildRecording(self, name)

    def worker_init_fn(self, user_fn: Callable[[int], object] | None = None) -> WorkerRecording:
        """Return a ``worker_init_fn`` that makes the workers of a torch DataLoader record.

        Not needed with `iterate`. Each worker is shown as a process under this rank, "worker 0", "worker 1" ..., with a
        slice "fetch" for each batch, a slice "collate" in it, and the events of the dataset's markers::

            loader = DataLoader(dataset, num_workers=4, worker_init_fn=profiler.worker_init_fn())

        Args:
            user_fn: The loader's previous ``worker_init_fn``. Called when recording has begun.
        """
        return WorkerRecording(self, user_fn)

    def child_plan(self) -> ChildPlan | None:
        """Return the recording settings of child processes, or None if the profiler is not running."""
        if self._state not in ("started", "forked") or self._process is None:
            return None
        options = self._options
        factories = []
        for handler in self._handlers:
            try:
                factories.append(handler.for_children())
            except Exception as error:  # noqa: BLE001 - a handler's failure must not reach training
                self._failures.report(f"{type(handler).__name__}.for_children", error)
        return ChildPlan(
            make_profiler=Profiler,
            process=self._process,
            handlers=tuple(factory for factory in factories if factory is not None),
            options={
                **{name: getattr(options, name) for name in _OF_CHILDREN},
                "timestamp": self.timestamp,
                "shutdown_timeout": min(options.shutdown_timeout, SHUTDOWN_TIMEOUT_S),
            },
            action=None if self._shared_action is None else self._shared_action.view(),
        )

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "a Profiler cannot be sent to another process: send its markers, profiler.child_recording(name), or (as the "
            "worker_init_fn of a data loader) profiler.worker_init_fn(); code there can use tracekit.marker(...)"
        )

    # ---- for sources and handlers -------------------------------------------------------------------------------------

    def format_path(self, template: str) -> str:
        """Fill in a file-name template for this process and the current training time."""
        return FileName(template).format(self.process, self.timestamp)

    def record_chrome_json_trace_file(self, filepath: str) -> None:
        """Pass the path of a complete Chrome JSON trace of this process to every trace handler."""
        self._post("process_chrome_json_trace_file", resolve_path(os.fspath(filepath)))

    def record_clock_offset(self, offset: ClockOffset) -> None:
        """Pass a clock offset of this process to every trace handler. For sources such as `ClockSync`."""
        self._post("clock_offset", offset)

    def report_failure(self, who: str, error: BaseException) -> None:
        """Count a failure of a source, and log it once."""
        self._failures.report(who, error)

    def _post(self, method: str, *args: Any, at_ns: int | None = None) -> None:
        if self._writer is not None:
            self._writer.post(method, *args, at_ns=at_ns)

    def abandon_in_child(self) -> None:
        """Forget the parent's recording in a forked child."""
        if self._state == "started":
            self._state = "forked"
            self._batches.abandon_in_child()
            self._attached.abandon_in_child()
            inherit(self._markers)
            if self._writer is not None:
                self._writer.abandon()
            if self._termination is not None:
                self._termination.leave_in_child()


def active_profiler() -> Profiler | None:
    """Return the innermost running profiler, or None."""
    return cast("Profiler | None", running_profiler())


pass_over_profilers(Profiler)
