"""Trace recording for ML training.

Markers, counters and torch.profiler traces of every rank, on one clock, in one Perfetto timeline::

    from tracekit import JSONTraceHandler, Profiler

    with Profiler(trace_handlers=[JSONTraceHandler("traces/{run_id}/rank{rank}.json")]) as profiler:
        for batch in profiler.iterate(loader, "dataloader"):
            with profiler.marker("forward"):
                ...
            profiler.step(samples=len(batch))

then ``tracekit merge -o merged.json.gz traces/RUN/``.

Names are loaded when they are first used, so that importing tracekit costs next to nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.capture.on_demand import OnDemand, on_demand
    from tracekit.check.recovery import RecoveryReport, recover_trace
    from tracekit.check.validation import ValidationReport, validate_trace
    from tracekit.clock import ClockOffset
    from tracekit.errors import (
        CommandError,
        ConfigError,
        HandlerError,
        MergeError,
        MissingExtraError,
        QueryError,
        StorageError,
        TimeError,
        TimerError,
        TraceFormatError,
        TracekitError,
    )
    from tracekit.events import Counter, EventBatch, Instant, SliceBegin, SliceEnd
    from tracekit.explain.diff import diff_traces
    from tracekit.explain.diff_results import TraceDiff
    from tracekit.explain.stragglers import find_stragglers
    from tracekit.explain.stragglers_results import StragglerReport
    from tracekit.explain.summary import summarize_traces
    from tracekit.explain.summary_results import TraceSummary
    from tracekit.handlers.base import Recording, Summary, TraceHandler
    from tracekit.handlers.chrome_json import JSONTraceHandler
    from tracekit.handlers.flight_recorder import FlightRecorder
    from tracekit.handlers.memory import MemoryTraceHandler
    from tracekit.handlers.mirrors.nvtx import NVTXMirror
    from tracekit.handlers.mirrors.opentelemetry import OpenTelemetryMirror
    from tracekit.handlers.mirrors.record_function import RecordFunctionMirror
    from tracekit.merge import MergeReport, merge_traces
    from tracekit.recording.children import ChildRecording
    from tracekit.recording.lifecycle import marker
    from tracekit.recording.marker import Marker
    from tracekit.recording.profiler import Profiler, active_profiler
    from tracekit.recording.schedule import ProfilerAction, cyclic_schedule
    from tracekit.recording.source import Source
    from tracekit.sources.clock_sync import ClockSync
    from tracekit.sources.gpu import GPUProfiler
    from tracekit.sources.system import SystemProfiler
    from tracekit.sources.torch_memory import TorchMemoryProfiler
    from tracekit.sources.torch_profiler import TorchProfiler
    from tracekit.table.relation import Relation, read_events
    from tracekit.timers.timers import Timers
    from tracekit.timestamp import Time, Timestamp, TimeUnit, ensure_time
    from tracekit.version import __version__

__all__ = [
    "ChildRecording",
    "ClockOffset",
    "ClockSync",
    "CommandError",
    "ConfigError",
    "Counter",
    "EventBatch",
    "FlightRecorder",
    "GPUProfiler",
    "HandlerError",
    "Instant",
    "JSONTraceHandler",
    "Marker",
    "MemoryTraceHandler",
    "MergeError",
    "MergeReport",
    "MissingExtraError",
    "NVTXMirror",
    "OnDemand",
    "OpenTelemetryMirror",
    "Profiler",
    "ProfilerAction",
    "QueryError",
    "RecordFunctionMirror",
    "Recording",
    "RecoveryReport",
    "Relation",
    "SliceBegin",
    "SliceEnd",
    "Source",
    "StorageError",
    "StragglerReport",
    "Summary",
    "SystemProfiler",
    "Time",
    "TimeError",
    "TimeUnit",
    "TimerError",
    "Timers",
    "Timestamp",
    "TorchMemoryProfiler",
    "TorchProfiler",
    "TraceDiff",
    "TraceFormatError",
    "TraceHandler",
    "TraceSummary",
    "TracekitError",
    "ValidationReport",
    "__version__",
    "active_profiler",
    "cyclic_schedule",
    "diff_traces",
    "ensure_time",
    "find_stragglers",
    "marker",
    "merge_traces",
    "on_demand",
    "read_events",
    "recover_trace",
    "summarize_traces",
    "validate_trace",
]

_HOME = {
    "tracekit.capture.on_demand": ("OnDemand", "on_demand"),
    "tracekit.clock": ("ClockOffset",),
    "tracekit.errors": (
        "CommandError",
        "ConfigError",
        "HandlerError",
        "MergeError",
        "MissingExtraError",
        "QueryError",
        "StorageError",
        "TimeError",
        "TimerError",
        "TraceFormatError",
        "TracekitError",
    ),
    "tracekit.events": ("Counter", "EventBatch", "Instant", "SliceBegin", "SliceEnd"),
    "tracekit.explain.diff": ("diff_traces",),
    "tracekit.explain.diff_results": ("TraceDiff",),
    "tracekit.explain.stragglers": ("find_stragglers",),
    "tracekit.explain.stragglers_results": ("StragglerReport",),
    "tracekit.explain.summary": ("summarize_traces",),
    "tracekit.explain.summary_results": ("TraceSummary",),
    "tracekit.handlers.base": ("Recording", "Summary", "TraceHandler"),
    "tracekit.handlers.chrome_json": ("JSONTraceHandler",),
    "tracekit.handlers.flight_recorder": ("FlightRecorder",),
    "tracekit.handlers.memory": ("MemoryTraceHandler",),
    "tracekit.handlers.mirrors.nvtx": ("NVTXMirror",),
    "tracekit.handlers.mirrors.opentelemetry": ("OpenTelemetryMirror",),
    "tracekit.handlers.mirrors.record_function": ("RecordFunctionMirror",),
    "tracekit.merge": ("MergeReport", "merge_traces"),
    # Hooks that IPython looks for here, no names for people.
    "tracekit.view.notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "tracekit.recording.children": ("ChildRecording",),
    "tracekit.recording.lifecycle": ("marker",),
    "tracekit.recording.marker": ("Marker",),
    "tracekit.recording.profiler": ("Profiler", "active_profiler"),
    "tracekit.recording.schedule": ("ProfilerAction", "cyclic_schedule"),
    "tracekit.recording.source": ("Source",),
    "tracekit.check.recovery": ("RecoveryReport", "recover_trace"),
    "tracekit.sources.clock_sync": ("ClockSync",),
    "tracekit.sources.gpu": ("GPUProfiler",),
    "tracekit.sources.system": ("SystemProfiler",),
    "tracekit.sources.torch_memory": ("TorchMemoryProfiler",),
    "tracekit.sources.torch_profiler": ("TorchProfiler",),
    "tracekit.table.relation": ("Relation", "read_events"),
    "tracekit.timers.timers": ("Timers",),
    "tracekit.timestamp": ("Time", "TimeUnit", "Timestamp", "ensure_time"),
    "tracekit.check.validation": ("ValidationReport", "validate_trace"),
    "tracekit.version": ("__version__",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _warn_of_the_other_distribution(folder: str) -> None:
    """Warn if "tracekit" of the package index, another tool, is installed into the same folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib takes longer to import than the rest
    except OSError:  # in a zip, for example
        return
    if any(name.startswith("tracekit-") and name.endswith((".dist-info", ".egg-info")) for name in names):
        import warnings

        from tracekit.version import other_distribution

        warnings.warn(other_distribution("tracekit"), RuntimeWarning, stacklevel=3)


_warn_of_the_other_distribution(f"{__path__[0]}/..")
