"""JaxAnnotations: tracekit's markers in JAX's own traces."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.handlers.base import TraceHandler
from tracekit.integrations.jax.trace import import_jax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.timestamp import Timestamp

__all__ = ["JaxAnnotations"]


class JaxAnnotations(TraceHandler):
    """Shows every marker as a ``jax.profiler.TraceAnnotation``, so that XProf and TensorBoard have them as well.

    A trace handler: ``Profiler(trace_handlers=[JSONTraceHandler(...), JaxAnnotations()])``. Like every inline handler it has a
    slice take some microseconds instead of half of one, and more while JAX's tracer of Python functions runs. Thread-safe.

    Raises:
        ConfigError: JAX is not installed.
    """

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self._annotation = import_jax().profiler.TraceAnnotation
        self._threads = threading.local()

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Begin or end an annotation on this thread."""
        del categories, timestamp, wall_clock_time_ns
        try:
            open_: list[Any] = self._threads.open
        except AttributeError:
            open_ = self._threads.open = []
        if is_start:
            annotation = self._annotation(name)
            annotation.__enter__()
            open_.append(annotation)
        elif open_:
            open_.pop().__exit__(None, None, None)
