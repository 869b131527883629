"""JAX itself: the only module that imports it. JaxAnnotations shows markers in its traces."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.handlers.mirrors.mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.handlers.mirrors.mirror import Moment


def import_jax() -> Any:
    """Return jax; raise `ConfigError` where it is not installed."""
    try:
        return importlib.import_module("jax")
    except ImportError as error:
        raise ConfigError(
            f"JaxProfiler needs jax: {error}; see JAX's installation guide for your accelerator"
        ) from error


def coordination_client() -> Any:
    """Return the client through which the processes of ``jax.distributed`` share small values; None without one."""
    try:
        return importlib.import_module("jax._src.distributed").global_state.client
    except (ImportError, AttributeError):
        return None  # JAX has no public name for it


class JaxAnnotations(Mirror):
    """Shows every marker as a ``jax.profiler.TraceAnnotation``, which XProf and TensorBoard show.

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
        """End an annotation, on any thread."""
        opened.__exit__(None, None, None)

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Do nothing."""
