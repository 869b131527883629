"""TraceRecorder: begins, ends and writes JAX traces, one at a time."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tracekit.clock import Clock
    from tracekit.integrations.jax.trace import JaxTrace
    from tracekit.integrations.jax.windows import Held, Windows
    from tracekit.recording.profiler import Profiler

__all__ = ["TraceRecorder"]

logger = logging.getLogger("tracekit")

_CATEGORIES: Final = ("jax profiler",)
_TRACES: Final = (".trace.json.gz", ".trace.json")
HEARTBEAT_S: Final = 30.0


class TraceRecorder:
    """Begins and ends JAX traces. Used by the training thread; ``report`` takes failures on any thread.

    Attributes:
        profiler: The tracekit profiler that is notified of the traces, or None.
        traces: The JSON traces that were written so far.
    """

    def __init__(
        self,
        make_trace: Callable[[], JaxTrace],
        windows: Windows,
        report: Callable[[BaseException], None],
        clock: Clock,
        *,
        annotates: bool,
        background: bool,
    ) -> None:
        self.profiler: Profiler | None = None
        self.traces: list[str] = []
        self._make_trace = make_trace
        self._windows = windows
        self._report = report
        self._clock = clock
        self._annotates = annotates
        self._background = background
        self._notices = Notices(clock.monotonic_ns)
        self._trace: JaxTrace | None = None
        self._writing: _Writing | None = None

    @property
    def is_tracing(self) -> bool:
        """True while a trace runs."""
        return self._trace is not None

    def start(self, step: int) -> None:
        """Begin a trace after a step, unless the last one is still being written: then it stays due."""
        if self._writing is not None and self._writing.is_alive():
            return
        trace = self._make_trace()
        try:
            with self._slice("jax.profiler.start_trace"):
                trace.start(step + 1)
        except BaseException:
            self._windows.ended(self._clock.monotonic_ns())
            with suppress(Exception):
                trace.stop(keep=False)
            raise
        self._trace = trace
        self._windows.started()
        self.annotate(step + 1)
        logger.info("tracekit: JAX records from step %d on", step + 1)

    def annotate(self, step: int) -> None:
        """Begin the annotation of a step, if a trace runs and steps are annotated."""
        if self._trace is not None and self._annotates:
            self._trace.annotate(step)

    def stop(self, awaited: Callable[[], Any] | None, cut_by: str = "") -> None:
        """End and write the running trace, if there is one, once the arrays that ``awaited`` returns are computed.

        ``cut_by`` is the reason for an early end, if any.
        """
        trace, self._trace = self._trace, None
        if trace is None:
            return
        held = self._windows.ended(self._clock.monotonic_ns(), early=bool(cut_by))
        try:
            trace.annotate(None)
            if awaited is not None:
                trace.wait_for(awaited())
        except Exception as error:  # noqa: BLE001 - the computation may have failed, and the trace may show why
            self._report(error)
        self._writing = _Writing(lambda: self._write(trace, held, cut_by))
        if not self._background:
            with self._slice("jax.profiler.stop_trace"):
                self._writing.wait()
            self._windows.last_ns = self._clock.monotonic_ns()

    def wait(self) -> None:
        """Wait until the last trace is written."""
        if self._writing is not None:
            self._writing.wait()

    def _write(self, trace: JaxTrace, held: Held, cut_by: str) -> None:
        """End JAX's trace and move its files, on the writing thread."""
        begin_ns = self._clock.monotonic_ns()
        try:
            files = trace.stop(keep=held.steps > 0 or not cut_by)
        except Exception as error:  # noqa: BLE001 - whatever JAX or the storage throws, training goes on
            self._report(error)
            return
        seconds = (self._clock.monotonic_ns() - begin_ns) / 1e9
        traces = [file for file in files if file.endswith(_TRACES)]
        self.traces += traces
        for path in traces:
            if self.profiler is not None:
                self.profiler.record_chrome_json_trace_file(path)
        where = ", ".join(map(storage.without_secrets, traces)) or "no file"
        message = f"tracekit: JAX has recorded {held} (written in {seconds:.1f} s): {where}"
        if held.steps == held.wanted:
            logger.info("%s", message)
        else:
            again = "; another trace begins with the next step" if held.again else ""
            message += f"; these are {held.steps} of {held.wanted} steps, as {cut_by or 'the end'} came first{again}"
            self._notices.warn("cut", "%s", message)

    def _slice(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.profiler is None else self.profiler.marker(name, _CATEGORIES)


class _Writing:
    """Runs a function that raises nothing on a thread, which the interpreter waits for at its end."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="tracekit-jax-writing")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            work()

    def is_alive(self) -> bool:
        """Return True until it is done."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it is done, and log that every half minute."""
        seconds = 0.0
        while self._thread.is_alive():
            self._thread.join(HEARTBEAT_S)
            seconds += HEARTBEAT_S
            if self._thread.is_alive():
                logger.warning("tracekit: JAX has been writing its trace for %d s; training waits for it", seconds)
