"""JaxWindow: run jax.profiler under the schedule of the recording."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.jax.recorder import TraceRecorder
from tracekit.integrations.jax.windows import Held
from tracekit.recording.schedule import ProfilerAction
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from tracekit.recording.source import Recorder

_OPEN = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


class JaxWindow(Source):
    """Records one JAX trace for each window, which the merge puts on the timeline of the rank.

    Args:
        folder: Folder or URL of the traces, with the fields of a file name.
        with_stack: Record the calls of Python functions.
    """

    def __init__(self, folder: str, *, with_stack: bool) -> None:
        self._folder = folder
        self._with_stack = with_stack
        self._begin_batch = 0
        self._recorder: Recorder | None = None
        self._traces: TraceRecorder | None = None
        self._given_up = False
        self._pid = -1

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Begin the first window if it holds the first batch."""
        self._recorder, self._pid = recorder, os.getpid()
        self._follow(recorder, action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Begin or end a window."""
        # A forked child has a copy, but the session of JAX belongs to its parent.
        if self._recorder is None or os.getpid() != self._pid:
            return
        if finished is ProfilerAction.ACTIVE_AND_SAVE or action not in _OPEN:
            self._given_up = False
            self._end(self._recorder, wait=True)
        self._follow(self._recorder, action)

    def close(self) -> None:
        """Save the window that is open."""
        if self._recorder is not None and os.getpid() == self._pid:
            self._end(self._recorder, wait=False)  # the training may have failed

    def _follow(self, recorder: Recorder, action: ProfilerAction) -> None:
        if action not in _OPEN or self._given_up:
            return
        if self._traces is None:
            self._traces = self._new_traces(recorder)
        if self._traces.is_tracing:
            return
        self._begin_batch = int(recorder.timestamp.batch)
        try:
            self._traces.start(self._begin_batch)
        except Exception as error:  # noqa: BLE001 - JAX may raise any exception, such as for a trace of the script
            self._given_up = True
            recorder.report_failure("jax.profiler", error)

    def _end(self, recorder: Recorder, *, wait: bool) -> None:
        if self._traces is not None and self._traces.is_tracing:
            steps = int(recorder.timestamp.batch) - self._begin_batch
            # The last steps may still be computed on the devices.
            self._traces.stop(Held(self._begin_batch + 1, steps, steps), _live_arrays if wait else None)

    def _new_traces(self, recorder: Recorder) -> TraceRecorder:
        return TraceRecorder(
            jax=sys.modules["jax"],
            log_dir=recorder.format_path(self._folder),
            report=lambda error: recorder.report_failure("jax.profiler", error),
            clock=SYSTEM_CLOCK,
            process=recorder.process,
            index=recorder.process.rank,
            options=_trace_options(with_stack=self._with_stack),
            annotates=False,  # the steps of the script are annotated
            background=False,
            profiler=recorder,
        )


def _live_arrays() -> Any:
    with contextlib.suppress(Exception):
        return sys.modules["jax"].live_arrays()
    return None


def _trace_options(*, with_stack: bool) -> Any:
    kind = getattr(sys.modules["jax.profiler"], "ProfileOptions", None)
    if kind is None:  # JAX before 0.7 records the calls always
        return None
    options = kind()
    options.python_tracer_level = int(with_stack)
    return options
