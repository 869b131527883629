"""JaxWindow: run jax.profiler in the steps of ``--steps``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, cast

from tracekit.integrations.jax.profiler import JaxProfiler, JaxProfilerConfig
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.recording.profiler import Profiler
    from tracekit.recording.schedule import ProfilerAction
    from tracekit.recording.source import Recorder


class JaxWindow(Source):
    """Records one JAX trace of some steps, which the merge puts on the timeline of the rank.

    Args:
        folder: Folder or URL of the traces, with the fields of a file name.
        first: The first batch of the window.
        end: The batch after its last one.
        is_jax: Returns True as soon as the steps are known to be those of JAX. A data loader of torch starts the recording
            before.
        with_stack: Record the calls of Python functions.
    """

    def __init__(self, folder: str, first: int, end: int, is_jax: Callable[[], bool], *, with_stack: bool) -> None:
        self._folder = folder
        self._first = first
        self._end = end
        self._is_jax = is_jax
        self._with_stack = with_stack
        self._jax_profiler: JaxProfiler | None = None
        self._recorder: Recorder | None = None

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Begin the window if it holds the first batch."""
        self._recorder = recorder
        self._follow(recorder)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Begin or end the window."""
        if self._recorder is not None:
            self._follow(self._recorder)

    def close(self) -> None:
        """Save the window that is open."""
        if self._jax_profiler is not None:
            self._jax_profiler.finalize()

    def _follow(self, recorder: Recorder) -> None:
        if not self._is_jax():
            return
        if self._jax_profiler is None:
            self._jax_profiler = self._new_profiler(recorder)
        profiler, batch = self._jax_profiler, int(recorder.timestamp.batch)
        if batch < self._end:
            profiler.on_training_step(step_idx=batch)
        elif profiler.is_tracing:
            # The last steps may still be computed on the devices.
            profiler.on_training_step(_live_arrays(), step_idx=self._end)
            profiler.close()  # also a trace that has begun late, in a resumed run

    def _new_profiler(self, recorder: Recorder) -> JaxProfiler:
        config = JaxProfilerConfig(
            profile_first_step=self._first,
            profile_n_steps=self._end - self._first,
            profile_every_n_minutes=-1,
            profile_log_dir=recorder.format_path(self._folder),
            main_process_only=False,
        )
        return JaxProfiler(
            config,
            profiler=cast("Profiler", recorder),
            step_profiler=False,
            annotate_steps=False,  # the steps of the script are annotated
            profiler_options=_trace_options(with_stack=self._with_stack),
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
