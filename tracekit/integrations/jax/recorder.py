"""TraceRecorder: begins and ends JAX traces, one at a time, and has them written."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.integrations.jax.trace import traces_among
from tracekit.integrations.jax.writing import Writing
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


class TraceRecorder:
    """Begins and ends JAX traces. Used by the training thread.

    Args:
        make_trace: Makes a trace, which is not started.
        windows: Is told when a trace begins and ends.
        report: Takes failures; called on any thread.
        clock: For how long things take.
        annotates: Whether every step of a trace is annotated.
        background: Whether the training goes on while a trace is written.

    Attributes:
        profiler: The tracekit profiler that hears of the traces, or None.
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
        self._writing: Writing | None = None

    @property
    def is_tracing(self) -> bool:
        """Whether a trace runs."""
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
        """Have the annotation of a step begin, where a trace runs and steps are annotated."""
        if self._trace is not None and self._annotates:
            self._trace.annotate(step)

    def stop(self, awaited: Callable[[], Any] | None, cut_by: str = "") -> None:
        """End the trace that runs, if one does, and have it written.

        Args:
            awaited: Returns the arrays whose computation is to be in it; None waits for none.
            cut_by: What ends it early; empty where nothing does.
        """
        trace, self._trace = self._trace, None
        if trace is None:
            return
        held = self._windows.ended(self._clock.monotonic_ns(), early=bool(cut_by))
        try:
            trace.annotate(None)
            if awaited is not None:
                trace.wait_for(awaited())
        except Exception as error:  # noqa: BLE001 - what JAX computes may have failed, and the trace may tell why
            self._report(error)
        self._writing = Writing(lambda: self._write(trace, held, cut_by))
        if not self._background:
            with self._slice("jax.profiler.stop_trace"):
                self._writing.wait()
            self._windows.count_from(self._clock.monotonic_ns())

    def wait(self) -> None:
        """Return when the last trace is written."""
        if self._writing is not None:
            self._writing.wait()

    def _write(self, trace: JaxTrace, held: Held, cut_by: str) -> None:
        """End JAX's trace and move its files, on a thread of its own."""
        begin_ns = self._clock.monotonic_ns()
        try:
            files = trace.stop(keep=held.steps > 0 or not cut_by)
        except Exception as error:  # noqa: BLE001 - whatever JAX or the storage throws, training goes on
            self._report(error)
            return
        seconds = (self._clock.monotonic_ns() - begin_ns) / 1e9
        traces = traces_among(files)
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
