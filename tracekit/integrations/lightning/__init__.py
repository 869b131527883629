"""Tracekit in Lightning: ``from tracekit.integrations.lightning import TimeProfiler, TracekitCallback, TracekitProfiler``.

Works with ``lightning`` and ``pytorch_lightning``, which are imported when one of these names is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracekit.integrations.lightning.callback import TracekitCallback, TracekitProfiler
    from tracekit.integrations.lightning.time_profiler import TimeProfiler

__all__ = ["TimeProfiler", "TracekitCallback", "TracekitProfiler"]

_MODULE_OF: Final = {"TimeProfiler": "time_profiler", "TracekitCallback": "callback", "TracekitProfiler": "callback"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
