"""Wall and monotonic time: the only module that reads a clock.

Events have times of the monotonic clock, which nobody can set. An *anchor*, which is one reading of both clocks at the same
moment, places them on the scale of the wall clock. Linux slews both clocks alike, so their difference changes only when
somebody sets the wall clock or the machine is suspended. `Timeline` keeps the first anchor for a whole recording, so that
durations and nesting stay true over such a step, and reports the step. A `ClockOffset` is the difference to the clock of
another process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_TOLERANCE_NS: Final = 100_000
"""A difference below this counts as a reading error, not as a step of the clock."""

SLEW_PPM: Final = 1_000
"""Maximum drift of a wall clock that is slewed, not set: NTP slews by 500 ppm at most, and smearing a leap second takes less.
The anchors follow such a drift, and no step is reported."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Sources of time in ns; tests replace those of the system.

    Attributes:
        wall_ns: Nanoseconds since the epoch, which may be set back and forth.
        monotonic_ns: Nanoseconds since some fixed moment, never set. ``time.perf_counter_ns`` is CLOCK_MONOTONIC on Linux,
            the same for all processes of one boot.
        boottime_ns: The monotonic clock plus the time that the machine was suspended, or None if the system has no such clock.
            It distinguishes a suspend from a wall clock that was set.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    boottime_ns: Callable[[], int] | None = None

    def anchor(self, samples: int = 5) -> Anchor:
        """Read both clocks at one moment; return the best of several tries, with the least time in between."""
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
        """Return the time that the machine has been suspended since boot; 0 if the system does not report it."""
        if self.boottime_ns is None:
            return 0
        # A delay between two readings makes the difference too small, never too large.
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
        error_ns: Maximum time between the two readings.
    """

    wall_ns: int
    monotonic_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """Wall time minus monotonic time."""
        return self.wall_ns - self.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock was set, or the machine slept.

    Attributes:
        monotonic_ns: Time of the detection.
        step_ns: Size of the jump of the wall clock; negative is back.
        suspended_ns: Part of the jump that was sleep; the rest was set. 0 if the system does not report it.
    """

    monotonic_ns: int
    step_ns: int
    suspended_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The offset of this process's clock to that of a reference process: add it to a time of this process.

    At ``monotonic_ns``, the true offset is within ``error_ns`` of the given one. Later, the drift moves it.

    Attributes:
        monotonic_ns: Time of the measurement, on this process's monotonic clock.
        offset_ns: Time scale of the reference minus that of this recording (`Timeline.wall_ns`).
        monotonic_offset_ns: Monotonic clock of the reference minus that of this process.
        error_ns: Maximum error of both offsets: half the shortest round trip.
        round_trips: Number of round trips; the shortest one counts.
        reference_rank: Rank of the reference.
        reference_boot_id: Boot id of the reference, or None. Processes of one boot share their monotonic clock.
        drift_ppb: Growth of the offset in ns per second, from this and an earlier measurement; None in the first.
        drift_error_ppb: Maximum error of ``drift_ppb``, if the drift was constant in between.
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
    """The time scale of one recording: the wall clock at its start, continued by the monotonic clock.

    Thread-safe: `wall_ns` only reads; only the writer thread calls `moved` and `check`.
    """

    __slots__ = ("_asleep_ns", "_followed_ns", "_read_ns", "anchor", "clock", "offset_ns")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.anchor = clock.anchor()
        self.offset_ns = self.anchor.offset_ns
        self._followed_ns = self.offset_ns  # the present offset, as far as it was followed or reported
        self._read_ns = self.anchor.monotonic_ns
        self._asleep_ns = clock.asleep_ns()

    def wall_ns(self, monotonic_ns: int) -> int:
        """Place a monotonic time on this recording's time scale, in ns since the epoch."""
        return monotonic_ns + self.offset_ns

    def moved(self) -> bool:
        """Return True if `check` would probably find a step. Takes a few µs."""
        anchor = self.clock.anchor(samples=1)
        return self._unexplained(anchor) or self._slept(anchor.error_ns) > 0

    def check(self) -> tuple[Anchor, ClockStep | None]:
        """Read the clocks again; return the step if the wall clock was set, or the machine slept, since the last check."""
        anchor = self.clock.anchor()
        slept_ns = self._slept(anchor.error_ns)
        self._asleep_ns += slept_ns
        step_ns = anchor.offset_ns - self._followed_ns
        if not self._unexplained(anchor) and not slept_ns:
            return anchor, None
        self._followed_ns = anchor.offset_ns
        return anchor, ClockStep(monotonic_ns=anchor.monotonic_ns, step_ns=step_ns, suspended_ns=slept_ns)

    def _unexplained(self, anchor: Anchor) -> bool:
        """Follow the wall clock within the limits of slewing; return True if it has moved beyond them."""
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
