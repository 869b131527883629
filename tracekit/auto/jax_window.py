"""JaxWindow: run jax.profiler in the steps of ``--steps``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from tracekit.integrations.jax.profiler import JaxProfiler, JaxProfilerConfig
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from tracekit.recording.profiler import Profiler
    from tracekit.recording.schedule import ProfilerAction
    from tracekit.recording.source import Recorder


class JaxWindow(Source):
    """Records one JAX trace of some steps, which the merge puts on the timeline of the rank.

    Args:
        folder: Folder or URL of the traces, with the fields of a file name.
        first: The first batch of the window.
        end: The batch after its last one.
        with_stack: Record the calls of Python functions.
    """

    def __init__(self, folder: str, first: int, end: int, *, with_stack: bool) -> None:
        self._folder = folder
        self._first = first
        self._end = end
        self._with_stack = with_stack
        self._jax_profiler: JaxProfiler | None = None
        self._recorder: Recorder | None = None

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Begin the window if it holds the first batch."""
        config = JaxProfilerConfig(
            profile_first_step=self._first,
            profile_n_steps=self._end - self._first,
            profile_every_n_minutes=-1,
            profile_log_dir=recorder.format_path(self._folder),
            main_process_only=False,
        )
        self._recorder = recorder
        self._jax_profiler = JaxProfiler(
            config,
            profiler=cast("Profiler", recorder),
            step_profiler=False,
            annotate_steps=False,  # the steps of the script are annotated
            profiler_options=_trace_options(with_stack=self._with_stack),
        )
        self._follow()

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Begin or end the window."""
        self._follow()

    def close(self) -> None:
        """Save the window that is open."""
        if self._jax_profiler is not None:
            self._jax_profiler.finalize()

    def _follow(self) -> None:
        assert self._recorder is not None, "opened before"
        assert self._jax_profiler is not None, "opened before"
        batch = int(self._recorder.timestamp.batch)
        if batch > self._end:
            return
        # The last steps may still be computed on the devices.
        arrays = sys.modules["jax"].live_arrays() if batch == self._end else None
        self._jax_profiler.on_training_step(arrays, step_idx=batch)


def _trace_options(*, with_stack: bool) -> Any:
    kind = getattr(sys.modules["jax.profiler"], "ProfileOptions", None)
    if kind is None:  # JAX before 0.7 records the calls always
        return None
    options = kind()
    options.python_tracer_level = int(with_stack)
    return options
