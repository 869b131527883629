"""The names that a script for Composer's profiler imports, recording with tracekit: change the import to migrate.

* Under ``composer.Trainer``, ``Trainer(profiler=Profiler(...))`` with the `Profiler` of this module, or, for a profiler of
  tracekit itself, ``Trainer(callbacks=[TracekitCallback(profiler)])``.
* In any other loop, `Profiler` is used in a ``with`` block and stepped by ``profiler.step(...)``; Composer need
  not be installed.

The names are Composer's, with its arguments in its order; `SystemProfiler` and `TorchProfiler` are tracekit's own.
`docs/coming_from/composer.md` lists the replacement of each name, and the names to leave behind.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracekit.integrations.composer.handler import Event, TraceHandler
from tracekit.integrations.composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
from tracekit.recording.marker import Marker
from tracekit.recording.schedule import ProfilerAction
from tracekit.sources.system import SystemProfiler
from tracekit.sources.torch_profiler import TorchProfiler
from tracekit.timestamp import Time, Timestamp, TimeUnit, ensure_time

if TYPE_CHECKING:
    from tracekit.integrations.composer.callback import TracekitCallback as TracekitCallback

__all__ = [
    "Event",
    "JSONTraceHandler",
    "Marker",
    "Profiler",
    "ProfilerAction",
    "SystemProfiler",
    "Time",
    "TimeUnit",
    "Timestamp",
    "TorchProfiler",
    "TraceHandler",
    "cyclic_schedule",
    "ensure_time",
]


# TracekitCallback is not in __all__: it needs Composer, and "import *" is to work without.
def __getattr__(name: str) -> Any:
    if name != "TracekitCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("tracekit.integrations.composer.callback").TracekitCallback
