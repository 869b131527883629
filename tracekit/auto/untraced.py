"""Slices around functions of torch that Dynamo never traces. Dynamo passes over this file as it does over theirs.

So a graph breaks at such a function for the same reason as without tracekit, and calls cost no switch of Dynamo.
"""

from __future__ import annotations

import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tracekit.imports import when_imported
from tracekit.recording.lifecycle import marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.auto.recorder import AutoRecorder
    from tracekit.recording.profiler import Profiler


def untraced(
    function: Callable[..., Any], name: str, recorder: AutoRecorder, find_profiler: Callable[[], Profiler | None]
) -> Callable[..., Any]:
    """Return a function with a slice for each call of the loop, and for others where there is a profiler for them."""
    slices = marker(name)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if recorder.loop != get_ident() and find_profiler() is None:
            return function(*args, **kwargs)
        with slices:
            return function(*args, **kwargs)

    return recorded


when_imported("torch._dynamo.trace_rules", lambda rules: rules.add(__name__))
