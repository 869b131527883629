"""Hooks of JAX: the annotations of the script are slices, and each step annotation is a step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tracekit.auto.recorder import auto_recorder
from tracekit.formats.xprof import ANCHOR_EVENT

if TYPE_CHECKING:
    from types import ModuleType


def instrument(profiler_module: ModuleType) -> None:
    """Install the hooks. Called once, at the end of the import of ``jax.profiler``."""
    recorder = auto_recorder()
    annotation, step_annotation = profiler_module.TraceAnnotation, profiler_module.StepTraceAnnotation
    make, enter, leave = annotation.__init__, annotation.__enter__, annotation.__exit__

    @functools.wraps(make)
    def made(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
        make(self, name, *args, **kwargs)
        self._tracekit_name = name

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        is_step = isinstance(self, step_annotation)
        recorder.is_jax = recorder.is_jax or is_step
        profiler = recorder.running(start=is_step)
        self._tracekit_slice = None
        if profiler is not None and self._tracekit_name != ANCHOR_EVENT:
            self._tracekit_slice = profiler.marker(self._tracekit_name)
            self._tracekit_slice.__enter__()
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if self._tracekit_slice is not None:
            self._tracekit_slice.__exit__(None, None, None)
            if isinstance(self, step_annotation):
                recorder.step()
        return result

    annotation.__init__ = made
    annotation.__enter__ = entered
    annotation.__exit__ = left
