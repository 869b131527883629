"""The connection between the recording classes and the compiled core.

`MarkerBase`, `BufferBase`, `BatchesBase` and `ProfilerBase` hold the attributes that every event or step needs. With
the core they are C structs. `in_state` and `compiled_lookup` replace the frequent methods by C functions. The Python
methods are the reference. They are used without the core, and with another clock.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit import core
from tracekit.recording.one_step import in_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.recording.marker_state import MarkerState

    C = TypeVar("C", bound=type[Any])

if TYPE_CHECKING or core.record is None:

    class MarkerBase:
        """The attributes of a marker that each event reads."""

        __slots__ = ("_buffer", "_clones", "_contended", "_label", "_skipped", "_start", "_track")

    class BufferBase:
        """The attributes of a buffer that each event reads."""

        __slots__ = ("due_ns", "lost_events", "records", "refused_values", "track_of_thread")

    class ProfilerBase:
        """The attribute of a profiler that a marker lookup by name reads."""

        __slots__ = ("_by_name",)

    class BatchesBase:
        """The attributes of `Batches` that each step needs."""

        __slots__ = (
            "buffer",
            "expected",
            "has_begun",
            "is_plain",
            "is_posting",
            "is_recorded",
            "label",
            "log",
            "posted",
            "start_ns",
            "timestamp",
            "track",
        )

        def end_plain(self, _samples: object, _tokens: object) -> bool:
            """Return False: the core ends a batch here, with the clock of the core, if ``is_plain`` allows it."""
            return False

else:
    Sequence.register(core.record.Records)
    MarkerBase, BufferBase = core.record.MarkerBase, core.record.BufferBase
    BatchesBase, ProfilerBase = core.record.BatchesBase, core.record.ProfilerBase


def new_records() -> list[Any]:
    """Return an empty list of records. The list of the core stores each record in 32 bytes."""
    return [] if core.record is None else core.record.Records()


def forget_threads() -> None:
    """Clear the core's cache of the last track of each thread. Called when a thread has lost its track."""
    if core.record is not None:
        core.record.forget_threads()


def is_core_clock(clock: Callable[[], int]) -> bool:
    """Return True if a clock is the one that the core reads."""
    return (
        clock is time.perf_counter_ns
        and time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    )


def in_state(state: MarkerState, *, in_c: bool = True) -> Callable[[C], C]:
    """Return a class decorator that makes a class of markers that of a state, with the core's methods if there are any."""

    def put(markers: C) -> C:
        markers.state = state
        # The core uses the system's thread ident. gevent and others replace `threading.get_ident` by a different ident.
        if in_c and core.record is not None and threading.get_ident is _thread.get_ident:
            core.record.give_methods(state, markers)
        return in_steps(markers)

    return put


def compiled_lookup(profilers: C) -> C:
    """Install the core's ``marker`` on a class of profilers, if available. It finds known markers in C."""
    if core.record is not None:
        core.record.give_lookup(profilers)
    return profilers
