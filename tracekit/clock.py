"""Wall and monotonic time: the only module that reads a clock.

Events are stamped with the monotonic clock, which nobody can set, and placed on the wall clock's scale by an *anchor*: one
reading of both clocks at the same moment. Linux slews both clocks alike, so their difference changes only when somebody
sets the wall clock or the machine is suspended; `Timeline` keeps the first anchor for a whole recording, so that
durations and nesting stay true over such a step, and reports the step. What another host's clock says at the same moment
is a `ClockOffset`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SYSTEM_CLOCK", "Anchor", "Clock", "ClockOffset", "ClockStep", "Timeline"]

STEP_TOLERANCE_NS: Final = 100_000
"""A difference below this is taken for the error of the readings, not for a step of the clock."""

SLEW_PPM: Final = 1_000
"""A wall clock that gains or loses no faster than this is slewed, not set: NTP slews by 500 ppm at most, a leap second is
smeared with less. The anchors follow it, and no step is reported."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Two sources of time in ns; tests put their own in place of the system's.

    Attributes:
        wall_ns: Nanoseconds since the epoch, which may be set back and forth.
        monotonic_ns: Nanoseconds since some fixed moment, never set. ``time.perf_counter_ns`` is CLOCK_MONOTONIC on Linux,
            the same for all processes of one boot.
        boottime_ns: The monotonic clock with the time added that the machine was suspended, or None where there is none. It
            tells a suspend from a wall clock that was set.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    boottime_ns: Callable[[], int] | None = None

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

    def asleep_ns(self) -> int:
        """Return how long the machine has been suspended since it was booted; 0 where the system does not tell."""
        if self.boottime_ns is None:
            return 0
        # What comes between two readings makes the difference too small, never too large.
        return max(self.boottime_ns() - self.monotonic_ns() for _ in range(3))


def _boottime_ns() -> Callable[[], int] | None:
    number = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    return None if number is None else partial(time.clock_gettime_ns, number)


SYSTEM_CLOCK: Final = Clock(boottime_ns=_boottime_ns())


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
        suspended_ns: How much of it was sleep; the rest was set. 0 where the system does not tell.
    """

    monotonic_ns: int
    step_ns: int
    suspended_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """What to add to this process's times to get those of a reference process, as measured at one moment.

    True offset = the one given, plus or minus ``error_ns``, at ``monotonic_ns``. Later, the drift moves it.

    Attributes:
        monotonic_ns: When it was measured, on this process's monotonic clock.
        offset_ns: What to add to a time of this recording's time scale (`Timeline.wall_ns`) to get the reference's.
        monotonic_offset_ns: What to add to this process's monotonic clock to get the reference's.
        error_ns: How far the two offsets can be off at most: half the round trip of the exchange that was kept.
        round_trips: Of how many exchanges it is the one with the shortest round trip.
        reference_rank: Rank of the reference.
        reference_boot_id: Its boot, None where unknown. Processes of one boot share their monotonic clock.
        drift_ppb: By how many ns a second the offset grows, from this measurement and an earlier one; None in the first.
        drift_error_ppb: How far that can be off at most, where the drift was constant in between.
    """

    monotonic_ns: int
    offset_ns: int
    monotonic_offset_ns: int
    error_ns: int
    round_trips: int
    reference_rank: int
    reference_boot_id: str | None = None
    drift_ppb: int | None = None
    drift_error_ppb: int | None = None


class Timeline:
    """The time scale of one recording: the wall clock as of its start, carried on by the monotonic clock.

    Thread-safe: `wall_ns` only reads; `moved` and `check` are called by one thread, the writer's.
    """

    __slots__ = ("_asleep_ns", "_followed_ns", "_read_ns", "anchor", "clock", "offset_ns")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.anchor = clock.anchor()
        self.offset_ns = self.anchor.offset_ns
        self._followed_ns = self.offset_ns  # the offset now, as far as it was followed or reported
        self._read_ns = self.anchor.monotonic_ns
        self._asleep_ns = clock.asleep_ns()

    def wall_ns(self, monotonic_ns: int) -> int:
        """Place a monotonic time on this recording's time scale, in ns since the epoch."""
        return monotonic_ns + self.offset_ns

    def moved(self) -> bool:
        """Tell whether the clocks look as if `check` would find a step. Takes a few µs."""
        anchor = self.clock.anchor(samples=1)
        return self._unexplained(anchor) or self._slept(anchor.error_ns) > 0

    def check(self) -> tuple[Anchor, ClockStep | None]:
        """Read the clocks again; tell whether the wall clock has been set, or the machine slept, since the last check."""
        anchor = self.clock.anchor()
        slept_ns = self._slept(anchor.error_ns)
        self._asleep_ns += slept_ns
        step_ns = anchor.offset_ns - self._followed_ns
        if not self._unexplained(anchor) and not slept_ns:
            return anchor, None
        self._followed_ns = anchor.offset_ns
        return anchor, ClockStep(monotonic_ns=anchor.monotonic_ns, step_ns=step_ns, suspended_ns=slept_ns)

    def _unexplained(self, anchor: Anchor) -> bool:
        """Follow the wall clock as far as it can have been slewed; tell whether it has moved beyond that."""
        slewed_ns = (anchor.monotonic_ns - self._read_ns) * SLEW_PPM // 1_000_000
        step_ns = anchor.offset_ns - self._followed_ns
        beyond_ns = abs(step_ns) - max(slewed_ns, 0)
        if beyond_ns > STEP_TOLERANCE_NS + anchor.error_ns:
            return True
        self._read_ns = anchor.monotonic_ns
        self._followed_ns += max(-slewed_ns, min(step_ns, slewed_ns))
        return False

    def _slept(self, error_ns: int) -> int:
        slept_ns = self.clock.asleep_ns() - self._asleep_ns
        return slept_ns if slept_ns > STEP_TOLERANCE_NS + error_ns else 0
