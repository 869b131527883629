"""JaxAnnotations: tracekit's markers in JAX's own traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.handlers.mirrors.mirror import Mirror
from tracekit.integrations.jax.trace import import_jax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.handlers.mirrors.mirror import Moment

__all__ = ["JaxAnnotations"]


class JaxAnnotations(Mirror):
    """Shows every marker as a ``jax.profiler.TraceAnnotation``, so that XProf and TensorBoard have them as well.

    A trace handler: ``Profiler(trace_handlers=[JSONTraceHandler(...), JaxAnnotations()])``. Like every inline handler it has a
    slice take some microseconds instead of half of one, and more while JAX's tracer of Python functions runs. Instants are not
    shown: JAX has none. Thread-safe.

    Raises:
        ConfigError: JAX is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._annotation = import_jax().profiler.TraceAnnotation

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> Any:
        """Begin an annotation."""
        annotation = self._annotation(name)
        annotation.__enter__()
        return annotation

    def end(self, opened: Any, moment: Moment, exception: str | None) -> None:
        """End an annotation."""
        self.leave(opened)

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Do nothing."""

    def leave(self, opened: Any) -> None:
        """End an annotation, on whatever thread."""
        opened.__exit__(None, None, None)
