"""Where the compiled core takes the place of Python in recording.

What a marker, a buffer and a profiler keep for every event stands in `MarkerBase`, `BufferBase` and `ProfilerBase`, which C
reaches as it does any struct of its own; `compiled` and `compiled_lookup` put methods written in C in the place of those
that are not rare. The methods of Python say what they do, and are used where there is no core, or another clock.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit import core

if TYPE_CHECKING:
    from collections.abc import Callable

    C = TypeVar("C", bound=type[Any])

__all__ = [
    "BufferBase",
    "MarkerBase",
    "ProfilerBase",
    "compiled",
    "compiled_lookup",
    "forget_threads",
    "is_core_clock",
    "new_records",
]

if TYPE_CHECKING or core.record is None:

    class MarkerBase:
        """What of a marker is looked at for each event."""

        __slots__ = ("_buffer", "_clones", "_contended", "_label", "_skipped", "_start", "_track")

    class BufferBase:
        """What of a buffer is looked at for each event."""

        __slots__ = ("due_ns", "lost_events", "records", "refused_values", "track_of_thread")

    class ProfilerBase:
        """What of a profiler is looked at for a marker by its name."""

        __slots__ = ("_by_name",)

else:
    Sequence.register(core.record.Records)
    MarkerBase, BufferBase = core.record.MarkerBase, core.record.BufferBase
    ProfilerBase = core.record.ProfilerBase


def new_records() -> list[Any]:
    """Return what keeps records: a list, or what looks like one and keeps each in 32 bytes."""
    return [] if core.record is None else core.record.Records()


def forget_threads() -> None:
    """Say that a thread has no track any more: the core keeps for each thread which one it had last."""
    if core.record is not None:
        core.record.forget_threads()


def is_core_clock(clock: Callable[[], int]) -> bool:
    """Tell whether a clock is the one that the core reads by itself."""
    return (
        clock is time.perf_counter_ns
        and time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    )


def compiled(state: str, *, wanted: bool = True) -> Callable[[C], C]:
    """Put the core's methods for a state of a marker in the place of those of a class, if there is a core.

    Args:
        state: "idle", "recording" or "shared".
        wanted: Whether the class shall have them.
    """

    def put(markers: C) -> C:
        # C asks the system for the thread's number; gevent, among others, has Python give another one.
        if wanted and core.record is not None and threading.get_ident is _thread.get_ident:
            core.record.give_methods(state, markers)
        return markers

    return put


def compiled_lookup(profilers: C) -> C:
    """Put the core's ``marker`` in front of that of a class of profilers, if there is a core: it finds the markers it knows."""
    if core.record is not None:
        core.record.give_lookup(profilers)
    return profilers
