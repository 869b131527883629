"""JAX: its own profiler, switched on and off around training steps, and its traces on tracekit's clock."""

from __future__ import annotations

from tracekit.integrations.jax.annotations import JaxAnnotations
from tracekit.integrations.jax.profiler import JaxProfiler, JaxProfilerConfig

__all__ = ["JaxAnnotations", "JaxProfiler", "JaxProfilerConfig"]
