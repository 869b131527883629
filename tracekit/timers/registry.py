"""TimerRegistry: which timers there are, which of them are on, and what they measure."""

from __future__ import annotations

import itertools
import logging
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.recording.lifecycle import marker as module_marker
from tracekit.timers.device import check_device_mode
from tracekit.timers.off_timer import OffTimer
from tracekit.timers.ranks import RankReports
from tracekit.timers.timer import MAX_LOG_LEVEL, Timer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.clock import Clock
    from tracekit.recording.profiler import Profiler
    from tracekit.timers.base import TimerBase

__all__ = ["TimerRegistry"]

logger = logging.getLogger("tracekit")

_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
"""Numbers of the registries of one name, or made in one place."""


class TimerRegistry:
    """Makes timers and finds them again, by name; `Timers` adds the reports.

    Args:
        log_level: Which timers are on.
        device: What they measure, unless they are told otherwise.
        profiler: Whose trace they appear in; None is the one that is active.
        timeout_s: How long a report waits for the other ranks at most.
        name: What ranks know it by; None is the place where it is made.
        clock: The clock that they read.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        log_level: int,
        device: str | None,
        profiler: Profiler | None,
        timeout_s: float,
        name: str | None,
        clock: Clock,
    ) -> None:
        if name is not None and not (isinstance(name, str) and name):
            raise ConfigError(f"Timers: name must be text that is not empty, not {name!r}")
        if isinstance(log_level, bool) or not isinstance(log_level, int):
            raise ConfigError(f"Timers: log_level must be a whole number (0, 1 or 2), not {log_level!r}")
        self._log_level = log_level
        self._device = None if device is None else check_device_mode(device)
        self._make_marker = module_marker if profiler is None else profiler.marker
        known_by = _place(self) if name is None else name
        self._ranks = RankReports(f"{known_by}#{next(_numbers[known_by])}", log_level, timeout_s, self._make_marker)
        self._clock = clock
        self._timers: dict[str, Timer] = {}
        self._off: dict[tuple[str, int | None], OffTimer] = {}  # by name, and by the level that was given
        self._first_off: dict[str, OffTimer] = {}  # by name: the one that was logged

    def __call__(
        self, name: str, log_level: int | None = None, barrier: bool = False, *, device: str | None = None
    ) -> TimerBase:
        """Return the timer of a name, making it at the first call.

        Args:
            name: The timer's name, and that of its slices.
            log_level: Its level, 2 if None; from then on only this one may be given.
            barrier: For ``with timers(name, barrier=True):``, all ranks meet at its beginning and at its end.
            device: What it measures, if it is made by this call: "host", "synchronize" or "events".

        Raises:
            ConfigError: The level is above 2, or not the one that the timer was made with.
        """
        timer = self._timers.get(name)
        if timer is None:
            off = self._off.get((name, log_level))
            if off is None:
                made = self._make(name, log_level, device)
                return made.with_barrier() if barrier else made
            return off.with_barrier() if barrier else off
        if log_level is not None and log_level != timer.log_level:
            raise ConfigError(
                f"timer {name!r} was made with log_level {timer.log_level}, and is now asked for with {log_level}; leave it "
                "out, or give the same"
            )
        return timer.with_barrier() if barrier else timer

    @property
    def names(self) -> list[str]:
        """The names of the timers that are on, in the order in which they were made."""
        return list(self._timers)

    def _make(self, name: str, asked_level: int | None, device: str | None) -> Timer | OffTimer:
        log_level = MAX_LOG_LEVEL if asked_level is None else asked_level
        if not isinstance(name, str):
            raise ConfigError(f"the name of a timer must be text, not {name!r}")
        if isinstance(log_level, bool) or not isinstance(log_level, int) or log_level > MAX_LOG_LEVEL:
            raise ConfigError(
                f"timer {name!r}: log_level must be a whole number up to {MAX_LOG_LEVEL}, not {log_level!r}"
            )
        if log_level > self._log_level:
            return self._switched_off(name, log_level, asked_level)
        timer = Timer(
            name,
            log_level,
            device=device or self._device,
            make_marker=self._make_marker,
            clock=self._clock.monotonic_ns,
            barrier=self._ranks.barrier,
            warn=self._ranks.tell,
        )
        return self._timers.setdefault(name, timer)  # atomic: two threads that ask at once get the same

    def _switched_off(self, name: str, log_level: int, asked_level: int | None) -> OffTimer:
        which = f"its level is {log_level}" + (", the one of a timer without any" if asked_level is None else "")
        reason = (
            f"timer {name!r} is off and measures nothing: {which}, and Timers has log_level {self._log_level}. Give Timers a "
            f"log_level of {log_level}, or the timer one up to {self._log_level}"
        )
        off = OffTimer(name, reason, self._ranks.announce)
        if self._first_off.setdefault(name, off) is off:
            # A level that was chosen is no surprise; the default is (Megatron-LM#871).
            logger.log(logging.WARNING if asked_level is None else logging.INFO, "tracekit: timers: %s", reason)
        return self._off.setdefault((name, asked_level), off)


def _place(made: object) -> str:
    """Return the file and line where an object is made: on all ranks the same, whatever else one of them makes before."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - inspect reads the source files, too, and has nothing else for it
    while frame.f_back is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made:
        frame = frame.f_back  # of a subclass, too
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
