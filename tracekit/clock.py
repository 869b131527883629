"""Wall and monotonic time: the only module that reads a clock.

Events are stamped with the monotonic clock, which nobody can set, and placed on the wall clock's scale by an *anchor*: one
reading of both clocks at the same moment. Linux slews both clocks alike, so their difference changes only when somebody
sets the wall clock or the machine is suspended; `Timeline` keeps the first anchor for a whole recording, so that
durations and nesting stay true over such a step, and reports the step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SYSTEM_CLOCK", "Anchor", "Clock", "ClockStep", "Timeline"]

STEP_TOLERANCE_NS: Final = 100_000
"""A difference below this is taken for the error of the readings, not for a step of the clock."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Two sources of time in ns; tests put their own in place of the system's.

    Attributes:
        wall_ns: Nanoseconds since the epoch, which may be set back and forth.
        monotonic_ns: Nanoseconds since some fixed moment, never set. ``time.perf_counter_ns`` is CLOCK_MONOTONIC on Linux,
            the same for all processes of one boot.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns

    def anchor(self, samples: int = 5) -> Anchor:
        """Read both clocks at one moment: of several tries, the one with the least time in between."""
        best: Anchor | None = None
        for _ in range(samples):
            before = self.monotonic_ns()
            wall = self.wall_ns()
            after = self.monotonic_ns()
            error = (after - before + 1) // 2
            if best is None or error < best.error_ns:
                best = Anchor(wall_ns=wall, monotonic_ns=before + (after - before) // 2, error_ns=error)
        assert best is not None
        return best


SYSTEM_CLOCK: Final = Clock()


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on both clocks.

    Attributes:
        wall_ns: The wall clock, ns since the epoch.
        monotonic_ns: The monotonic clock at the same moment.
        error_ns: How far apart the two readings can be at most.
    """

    wall_ns: int
    monotonic_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """What to add to a monotonic time to get a wall time."""
        return self.wall_ns - self.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock was set, or the machine slept.

    Attributes:
        monotonic_ns: When it was noticed.
        step_ns: By how much the wall clock jumped; negative is back.
    """

    monotonic_ns: int
    step_ns: int


class Timeline:
    """The time scale of one recording: the wall clock as of its start, carried on by the monotonic clock.

    Thread-safe: `wall_ns` only reads; `check` is called by one thread, the writer's.
    """

    __slots__ = ("_offset_now_ns", "anchor", "clock", "offset_ns")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.anchor = clock.anchor()
        self.offset_ns = self.anchor.offset_ns
        self._offset_now_ns = self.offset_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Place a monotonic time on this recording's time scale, in ns since the epoch."""
        return monotonic_ns + self.offset_ns

    def check(self) -> tuple[Anchor, ClockStep | None]:
        """Read the clocks again; tell whether the wall clock has been set since the last check."""
        anchor = self.clock.anchor()
        step_ns = anchor.offset_ns - self._offset_now_ns
        if abs(step_ns) <= STEP_TOLERANCE_NS + anchor.error_ns:
            return anchor, None
        self._offset_now_ns = anchor.offset_ns
        return anchor, ClockStep(monotonic_ns=anchor.monotonic_ns, step_ns=step_ns)
