"""FlightRecorder: keeps the last seconds of events in memory, and dumps them on a trigger."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.arguments import check_seconds, check_whole
from tracekit.errors import ConfigError, StorageError
from tracekit.formats.rank_trace import COMPANION_EVENT, DUMP_EVENT
from tracekit.handlers.base import Recording, TraceHandler
from tracekit.handlers.event_ring import EventRing
from tracekit.handlers.rank_trace import RankTrace, clock_metadata, offset_metadata, trace_name
from tracekit.handlers.rotation import Retention
from tracekit.handlers.triggers import ExceptionTrigger, SignalTrigger, SlowSteps
from tracekit.naming import shown
from tracekit.storage import PRIVATE_MODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.arguments import StrPath
    from tracekit.clock import Anchor, ClockOffset, ClockStep
    from tracekit.events import EventBatch
    from tracekit.timestamp import Timestamp

logger = logging.getLogger("tracekit")

DEFAULT_NAME = "traces/{run_id}/rank{rank}-attempt{attempt}-dump{dump:03d}.json"
_LEAST_BYTES: Final = 4 << 20
_COOL_DOWN_NS: Final = 60_000_000_000
_LAST_WORDS_S: Final = 1.0


class FlightRecorder(TraceHandler):
    """Keeps the last seconds of events in memory, and dumps them as a rank trace on request or on a trigger.

    A dump is a complete rank trace, for `tracekit merge`, `tracekit validate` and ui.perfetto.dev, with a ``tracekit_dump``
    event that names the cause. Slices that were running where the kept interval begins have their true start. Slices that run
    at its end are open, so that a dump shows the place of a hang. The profiler's writer thread writes dumps at the second
    flush after the cause, so that all earlier events are included, or when the profiler stops. Nothing waits for them. They
    never overwrite a file; if a name is taken, the next number is used.

    An event takes 32 bytes in memory (a counter about 300); nothing is encoded or written before a dump.

    A dump for a slow step or for an exception in a thread is followed by at least a minute, or ``seconds`` if that is longer,
    without another such dump.

    Limits of signals: a signal is noticed even while the main thread waits in C code that has released the interpreter lock,
    such as collectives and kernel launches of torch. While C code *holds* the lock, no Python runs. The dump then comes when
    the lock is released, or never; ``faulthandler`` and py-spy show the stack of such a hang. Send the signal to the main
    process of the rank: spawned workers do not handle it, and the system ends them.

    Args:
        filename: Path or URL with the fields of `JSONTraceHandler` and ``{dump}``, which counts the dumps from 0. It needs
            ``{dump}`` or ``{batch}``.
        seconds: Time span of a dump, accurate to one flush interval.
        max_bytes: Approximate memory limit for the events; beyond it the oldest are dropped.
        on_signal: Dump on this signal, such as ``signal.SIGUSR1``. The handler that was set before is still called. Needs
            the profiler to be started on the main thread.
        on_exception: Dump when an exception leaves the profiler's ``with`` block. This takes no hook.
        excepthooks: Also dump on uncaught exceptions, in any thread, by chaining ``sys.excepthook`` and
            ``threading.excepthook``; both are restored when the profiler stops.
        slow_step: Dump after a batch that took this many times longer than the median of the 64 before it; from the 17th on.
        on_close: Dump when the profiler stops.
        num_traces_to_keep: Keep only this many dumps of this recording and remove the oldest; None keeps all.
        mode: Mode of the dumps, as for `JSONTraceHandler`.

    Raises:
        ConfigError: An argument is wrong; from `open`, also: the signal handler cannot be set.
        StorageError: From `open`: the folder cannot be made.
    """

    def __init__(
        self,
        filename: StrPath = DEFAULT_NAME,
        *,
        seconds: float = 30.0,
        max_bytes: int = 64 << 20,
        on_signal: int | None = None,
        on_exception: bool = True,
        excepthooks: bool = False,
        slow_step: float | None = None,
        on_close: bool = False,
        num_traces_to_keep: int | None = None,
        mode: int = PRIVATE_MODE,
    ) -> None:
        name = trace_name(filename, "dump")
        if not name.numbered and "batch" not in name.fields:
            raise ConfigError(f"file name {shown(name.template)} is the same for every dump; put {{dump}} into it")
        check_seconds("seconds", seconds)
        check_whole("max_bytes", max_bytes)
        if max_bytes < _LEAST_BYTES:
            raise ConfigError(f"max_bytes must be at least {_LEAST_BYTES} (4 MiB), not {max_bytes}")
        self._signal = None if on_signal is None else SignalTrigger(on_signal)
        self._exceptions = ExceptionTrigger(self._uncaught) if excepthooks else None
        self.hooks = [hook for hook in (self._signal, self._exceptions) if hook is not None]
        self._slow_steps = None if slow_step is None else SlowSteps(slow_step)
        self._trace = RankTrace(name, retention=Retention(num_traces_to_keep), mode=mode)
        self._on_exception = on_exception
        self._on_close = on_close
        self._ring = EventRing(round(seconds * 1e9), max_bytes)
        self._cool_down_ns = max(_COOL_DOWN_NS, round(seconds * 1e9))
        self._recording: Recording | None = None
        self._timestamp: Timestamp | None = None
        # Reason, number of the flush before the request, event to set afterwards
        self._requests: deque[tuple[str, int, threading.Event | None]] = deque()
        self._flushes = 0
        self._quiet_until_ns = 0
        self._metadata: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=64)

    @property
    def paths(self) -> list[str]:
        """The dumps that were written and not removed, the newest last."""
        return self._trace.paths

    def dump(self, reason: str = "asked for") -> None:
        """Request a dump of the kept events.

        Thread-safe, and never waits: the file exists after two flush intervals, or when the profiler has stopped.

        Args:
            reason: The reason, for the trace.
        """
        self._request(str(reason))

    # ---- life ---------------------------------------------------------------------------------------------------------

    def open(self, recording: Recording) -> None:
        """Make the folder, so that a wrong one shows before training starts."""
        self._trace.open(recording)
        self._recording = recording
        self._timestamp = recording.timestamp

    def stopping(self, error: BaseException | None) -> None:
        """Record the exception that ends the recording."""
        if error is not None and self._on_exception and not isinstance(error, (SystemExit, GeneratorExit)):
            self._request(f"exception: {self._shown(error)}")

    def ending(self, timeout_s: float) -> None:
        """Record how long `close` waits for packing and uploading."""
        self._trace.ending(timeout_s)

    def flush(self) -> None:
        """Write the dumps that are due."""
        self._flushes += 1
        self._notice_signal()
        due = []
        # A request that was made after the last delivery waits for the next one, so that the dump includes its cause.
        while self._requests and self._requests[0][1] + 2 <= self._flushes:
            due.append(self._requests.popleft())
        self._serve(due)

    def close(self) -> None:
        """Write the remaining dumps, and remove the hooks if a signal ended the recording."""
        for hook in self.hooks:
            hook.remove()
        self._notice_signal()
        if self._on_close and self._recording is not None:
            self._request("the recording ends")
        due = list(self._requests)
        self._requests.clear()
        self._serve(due)
        self._trace.close()

    # ---- kept events --------------------------------------------------------------------------------------------------

    def process_events(self, batch: EventBatch) -> None:
        """Keep a batch."""
        self._ring.add(batch)

    def process_chrome_json_trace_file(self, filepath: str) -> None:
        """Keep the name, for the merge."""
        self._metadata.append((COMPANION_EVENT, {"file": storage.printable_name(filepath)}))

    def clock_anchor(self, anchor: Anchor, step: ClockStep | None) -> None:
        """Keep the readings of the clocks, for the merge."""
        self._metadata.extend(clock_metadata(anchor, step))

    def clock_offset(self, offset: ClockOffset) -> None:
        """Keep the offset of this process's clock to another rank's, for the merge."""
        self._metadata.append(offset_metadata(offset))

    def batch_start(self, timestamp: Timestamp) -> None:
        """Keep the training time."""
        self._timestamp = timestamp

    def batch_end(self, timestamp: Timestamp) -> None:
        """Request a dump if the batch was slow."""
        if self._slow_steps is None:
            return
        took_s = timestamp.batch_wct.total_seconds()
        usual_s = self._slow_steps.usual_s(took_s)
        if usual_s is not None:
            # Its events are delivered after this and before the next flush.
            self._request_quietly(
                f"slow step: batch {int(timestamp.batch) - 1} took {took_s:.3f} s, usual are {usual_s:.3f} s",
                flush=self._flushes - 1,
            )

    # ---- dumps --------------------------------------------------------------------------------------------------------

    def _request(self, reason: str, *, flush: int | None = None, done: threading.Event | None = None) -> None:
        self._requests.append((reason, self._flushes if flush is None else flush, done))

    def _request_quietly(self, reason: str, *, flush: int | None = None) -> None:
        """Request a dump unless there was one of this kind a short time ago."""
        newest_ns = self._ring.newest_ns
        if newest_ns >= self._quiet_until_ns:
            self._quiet_until_ns = newest_ns + self._cool_down_ns
            self._request(reason, flush=flush)

    def _notice_signal(self) -> None:
        if self._signal is not None and self._signal.arrived():
            self._request(f"signal {self._signal.name}", flush=self._flushes - 1)

    def _uncaught(self, error: BaseException, of_main_thread: bool) -> None:
        if self._recording is None or self._recording.process.pid != os.getpid():
            return  # a forked child has the hook but no writer
        if not of_main_thread:
            self._request_quietly(f"exception in thread {threading.current_thread().name}: {self._shown(error)}")
            return
        done = threading.Event()
        self._request(f"exception: {self._shown(error)}", done=done)
        # The process is about to end, and the next hook may end it immediately.
        done.wait(_LAST_WORDS_S)

    def _serve(self, due: list[tuple[str, int, threading.Event | None]]) -> None:
        if not due:
            return
        try:
            self._write(list(dict.fromkeys(reason for reason, _, _ in due)))
        except (ConfigError, StorageError, OSError) as error:
            logger.warning("tracekit: the flight recorder's dump cannot be written: %s", error)
        finally:
            for _, _, done in due:
                if done is not None:
                    done.set()

    def _write(self, reasons: list[str]) -> None:
        assert self._timestamp is not None
        ring = self._ring
        cause = {"reasons": reasons, "events": ring.events, "dropped": ring.dropped}
        metadata = [(DUMP_EVENT, cause), *self._metadata]
        segment = self._trace.write_whole(self._timestamp, metadata, ring.batches())
        path = segment.file.path
        if segment.lost_events:
            logger.warning("tracekit: %s lacks %d events that could not be written", path, segment.lost_events)
        else:
            logger.info("tracekit: %s: %d events (%s)", path, segment.events, "; ".join(reasons))

    def _shown(self, error: BaseException) -> str:
        text = ""
        if self._recording is None or not self._recording.process.private:  # messages can contain file names
            with contextlib.suppress(Exception):  # a user's __str__ may do anything
                text = str(error)
        return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
