"""ClockWatch: reads the clocks again during a recording, and logs steps of the wall clock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracekit.clock import Anchor, ClockStep, Timeline

logger = logging.getLogger("tracekit")
ANCHOR_INTERVAL_NS: Final = 60_000_000_000  # maximum time between two anchors
# Minimum time after a step before the next one is detected: a frozen wall clock steps continuously
STEP_INTERVAL_NS: Final = 10_000_000_000
LOGGED_STEPS: Final = 3  # Maximum number of logged steps. The trace contains all steps.


class ClockWatch:
    """Reads the clocks every minute, and after the wall clock was set or the machine slept. Used by one thread at a time."""

    __slots__ = ("_next_anchor_ns", "_next_step_ns", "_steps", "_timeline")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._next_anchor_ns = timeline.anchor.monotonic_ns + ANCHOR_INTERVAL_NS
        self._next_step_ns = 0
        self._steps = 0

    def due(self, now_ns: int) -> bool:
        """Return True if the clocks need a reading at this monotonic time. Called at every flush."""
        return now_ns >= self._next_anchor_ns or (now_ns >= self._next_step_ns and self._timeline.moved())

    def read(self) -> tuple[Anchor, ClockStep | None]:
        """Read the clocks. Log a step of the wall clock."""
        anchor, step = self._timeline.check()
        self._next_anchor_ns = anchor.monotonic_ns + ANCHOR_INTERVAL_NS
        if step is not None:
            self._next_step_ns = anchor.monotonic_ns + STEP_INTERVAL_NS
            self._steps += 1
            if self._steps <= LOGGED_STEPS:
                logger.warning(
                    "tracekit: %s; this recording's time scale goes on unbroken%s",
                    _describe(step),
                    "" if self._steps < LOGGED_STEPS else " (further steps are in the trace only)",
                )
        return anchor, step


def _describe(step: ClockStep) -> str:
    if not step.suspended_ns:
        return f"the wall clock was set by {step.step_ns / 1e9:+.4f} s"
    set_ns = step.step_ns - step.suspended_ns
    told = f"the machine was suspended for {step.suspended_ns / 1e9:.3f} s"
    return told if abs(set_ns) < 1_000_000 else f"{told}, and the wall clock was set by {set_ns / 1e9:+.4f} s"
