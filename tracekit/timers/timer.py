"""Timer: how long a named piece of code takes, each time it runs; a slice in the trace and a number to report.

A timer stands on a marker, so that what it times is in the trace as well, with the category "timer". It reads the monotonic
clock itself, twice a call, and keeps the difference; everything else (sums, statistics) is made of those when somebody asks.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import TimerError
from tracekit.recording.lifecycle import marker as module_marker
from tracekit.recording.tasks import current_owner
from tracekit.statistics import DurationStatistics
from tracekit.timers.base import TimerBase
from tracekit.timers.device import DeviceEvents, cuda_available, device_mode, synchronize, warn_once
from tracekit.timers.ranks import barrier_of_ranks
from tracekit.timers.readers import Readers
from tracekit.timers.timer_with_barrier import TimerWithBarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

    from tracekit.recording.marker import Marker

    MakeMarker = Callable[[str, tuple[str, ...]], Marker]
    Barrier = Callable[[str, int, Any], None]

__all__ = ["MAX_LOG_LEVEL", "NESTED", "TIMER", "Timer"]

MAX_LOG_LEVEL: Final = 2
"""Level of a timer that is given none."""

TIMER: Final = "timer"
"""Category of a timer's slices."""

NESTED: Final = "nested"
"""A further category of those that lie within another slice of the same timer, and whose time is counted there."""

_FOLD_CALLS: Final = 1024
"""So many durations are kept as they are before they are put into the statistics."""

_SECOND_NS: Final = 1e9

_timers: Final[weakref.WeakSet[Timer]] = weakref.WeakSet()
"""All timers of this process, for forked children."""


class Timer(TimerBase):
    """Measures a piece of code each time it runs.

    `Timers` makes timers and reports them. A separate ``Timer("load")`` measures the same way and is in the trace, but in no
    report.

    Use it as ``with timers("forward"):``, or by `start` and `stop`. Times are of the monotonic clock, which nobody can set.

    Threads and asyncio tasks may time with it at once: each has an interval of its own, and the sum may then be longer than
    the wall clock's. Recursion: a ``with`` inside of a ``with`` of the same timer is a slice in the trace, and its time, which
    belongs to the outer one, is counted once. Reading never disturbs what is running: the part that has passed is counted.

    In a function that torch.compile compiles a timer breaks the graph, and measures; a `Marker` does neither.

    Args:
        name: Name of the timer and of its slices.
        log_level: Level of the timer; see `Timers`. A timer without a `Timers` is always on.
        device: Which time it measures: "host" (the Python code), "synchronize" (wait for the device at both ends), or
            "events" (the device's own time; calls count once the device has finished them). None is "host", with a hint in
            the log when CUDA is in use. Without a CUDA device, "events" is "host".
        make_marker: Makes the markers of the slices; by default those of the active profiler.
        clock: Returns the time in ns; for tests.
        barrier: Waits for the ranks of a group, by name, level and group; by default the barrier of torch.distributed.
        warn: Logs a warning once, by its subject and its text; by default once in this process.

    Attributes:
        name: As given.
        log_level: As given.
        device: The time it measures: "host", "synchronize" or "events".

    Raises:
        ConfigError: There is no such device mode.
    """

    __slots__ = (
        "__weakref__",
        "_barrier",
        "_before",
        "_began",
        "_calls",
        "_clock",
        "_events",
        "_group",
        "_injected_ns",
        "_lock",
        "_make_marker",
        "_marker",
        "_nested",
        "_open",
        "_readers",
        "_stale",
        "_statistics",
        "_sum_ns",
        "_taken",
        "device",
        "log_level",
    )

    def __init__(
        self,
        name: str,
        log_level: int = MAX_LOG_LEVEL,
        *,
        device: str | None = None,
        make_marker: MakeMarker = module_marker,
        clock: Callable[[], int] = SYSTEM_CLOCK.monotonic_ns,
        barrier: Barrier | None = None,
        warn: Callable[[object, str], None] = warn_once,
    ) -> None:
        super().__init__(name)
        self.log_level = log_level
        self.device = device_mode(device, warn)
        self._events = DeviceEvents(name, cuda_available()) if self.device == "events" else None
        self._make_marker = make_marker
        self._marker = make_marker(name, (TIMER,))
        self._marker.by_hand = True
        self._clock = clock
        self._barrier = barrier
        self._group: Any = None
        self._lock = threading.Lock()
        # By thread or asyncio task; each changes its own entries only.
        self._open: dict[Hashable, int] = {}  # when its interval began
        self._nested: dict[Hashable, int] = {}  # how many slices it has inside of that
        self._began: dict[Hashable, Any] = {}  # the device's event at its beginning
        self._stale: set[Hashable] = set()  # whose running interval was reset: it may be started again
        self._calls: list[int] = []  # durations that are not in what follows yet
        self._sum_ns = 0
        self._injected_ns = 0
        self._statistics = DurationStatistics()  # since they were last taken
        self._before = DurationStatistics()  # until then
        self._taken: tuple[DurationStatistics, DurationStatistics] | None = None  # both, before they were last taken
        self._readers = Readers()
        _timers.add(self)

    def __repr__(self) -> str:
        return f"<Timer {self.name!r}>"

    # ---- measuring --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Timer:
        owner = current_owner()
        if owner in self._open:
            self._enter_again(owner)
            return self
        if self.device != "host":
            self._begin_on_device(owner)
        self._marker.__enter__()
        self._open[owner] = self._clock()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.device == "synchronize":
            synchronize()
        end_ns = self._clock()
        owner = current_owner()
        if self._nested and owner in self._nested:
            self._exit_again(owner, exc_type, exc, traceback)
            return
        start_ns = self._open.pop(owner, None)
        if start_ns is None:
            return  # `stop` was called in the body, and it is over
        self._marker.__exit__(exc_type, exc, traceback)
        if self._stale:
            self._stale.discard(owner)
        calls = self._calls
        if self._events is None:
            calls.append(end_ns - start_ns)
        else:
            self._events.end(self._began.pop(owner, None))
            calls.extend(self._events.finished())
        if len(calls) >= _FOLD_CALLS:
            with self._lock:
                self._take_calls()

    def start(self, barrier: bool = False) -> None:
        """Start it, on this thread or asyncio task.

        Args:
            barrier: Wait for the other ranks of the barrier group first. The wait is not counted.

        Raises:
            TimerError: It runs there already. (A ``with`` may be inside of another one.)
        """
        owner = current_owner()
        if owner in self._open:
            if owner not in self._stale:
                raise TimerError(
                    f"timer {self.name!r} has already been started on this thread; stop it first, or use "
                    f"'with timers({self.name!r}):', which may be nested"
                )
            self.reset()  # what passed since the reset is not wanted either
            self._stale.discard(owner)
            return
        if barrier:
            self.wait_for_ranks()
        self.__enter__()

    def stop(self, barrier: bool = False) -> None:
        """Stop it, where this thread or asyncio task has started it.

        Args:
            barrier: Wait for the other ranks of the barrier group first. The wait is counted: it is the time until all are here.

        Raises:
            TimerError: It does not run there.
        """
        owner = current_owner()
        if owner not in self._open:
            elsewhere = " (another thread has started it)" if self._open else ""
            raise TimerError(f"timer {self.name!r} has not been started on this thread{elsewhere}; call start() first")
        if barrier:
            self.wait_for_ranks()
        self.__exit__(None, None, None)

    def _begin_on_device(self, owner: Hashable) -> None:
        if self._events is None:
            synchronize()
        else:
            self._began[owner] = self._events.begin()

    def _enter_again(self, owner: Hashable) -> None:
        self._nested[owner] = self._nested.get(owner, 0) + 1
        self._make_marker(self.name, (TIMER, NESTED)).start()

    def _exit_again(
        self,
        owner: Hashable,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._make_marker(self.name, (TIMER, NESTED)).__exit__(exc_type, exc, traceback)
        depth = self._nested.pop(owner) - 1
        if depth:
            self._nested[owner] = depth

    def after_fork_in_child(self) -> None:
        """In a forked child: go on without the parent's other threads, one of which may have held the lock."""
        self._lock = threading.Lock()
        if self._events is not None:
            self._events.after_fork_in_child()
        ident = threading.get_ident()  # the forking thread's, which goes on in the child; asyncio's tasks do not
        for entries in (self._open, self._nested, self._began):
            for owner in [owner for owner in entries if owner != ident]:
                del entries[owner]
        self._stale &= {ident}

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Say which ranks meet at the barriers of this timer.

        Args:
            barrier_group: A process group of torch.distributed; None is all ranks.
        """
        self._group = barrier_group

    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Return this timer for a ``with`` that begins and ends with a barrier.

        What is asked for here belongs to what is returned, and to nothing else: it cannot reach another ``with``.
        """
        return TimerWithBarrier(self, self.wait_for_ranks) if barrier else self

    def wait_for_ranks(self) -> None:
        """Meet the other ranks of the barrier group."""
        if self._barrier is None:
            barrier_of_ranks(self.name, self._group, self._make_marker)
        else:
            self._barrier(self.name, self.log_level, self._group)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Return the seconds since the last reset, those of what is running included; it goes on running.

        Args:
            reset: Count from here the next time. The reports (`Timers.log`, `write`) still show what they have not shown.
            barrier: Wait for the other ranks of the barrier group first.
        """
        if barrier:
            self.wait_for_ranks()
        with self._lock:
            return self._readers.own(self._total_ns(), reset=reset) / _SECOND_NS

    def active_time(self) -> float:
        """Return the seconds since the timer was made, those of what is running included. Nothing resets it."""
        with self._lock:
            return (self._total_ns() - self._injected_ns) / _SECOND_NS

    def reset(self) -> None:
        """Forget what was measured so far, for every report and for the statistics. What is running counts from here on.

        With ``device="events"``, calls that the device has not finished by now still count.
        """
        with self._lock:
            self._readers.restart(self._total_ns())
            self._set_statistics_aside()
            self._stale.update(list(self._open))

    def set_elapsed(self, value: float) -> None:
        """Say what was measured elsewhere: `elapsed` and the reports return it, plus what is measured from here on.

        It counts as one call of that length in the statistics. The trace, and `active_time`, hold only what was timed here.

        Args:
            value: Seconds, from 0 on.

        Raises:
            TimerError: It is no such number.
        """
        if not isinstance(value, Real) or not 0 <= value < math.inf:
            raise TimerError(f"timer {self.name!r}: set_elapsed() takes a number of seconds from 0 on, not {value!r}")
        value_ns = round(float(value) * _SECOND_NS)
        with self._lock:
            self._readers.restart(self._total_ns())
            self._sum_ns += value_ns
            self._injected_ns += value_ns
            self._set_statistics_aside()
            self._statistics.add(value_ns)

    def report_ns(self, report: str, *, reset: bool, step: object = None) -> int:
        """Return what a report has to show, ns; see `tracekit.timers.readers`."""
        with self._lock:
            return self._readers.report(report, self._total_ns(), reset=reset, step=step)

    def statistics(self, *, reset: bool = False, lifetime: bool = False) -> DurationStatistics:
        """Return the statistics of the calls that have ended: count, total, mean, quantiles.

        Args:
            reset: Take them: the next ones are of the calls that end from here on.
            lifetime: All calls since the timer was made, not only those since the statistics were taken last.
        """
        with self._lock:
            self._take_calls()
            found = DurationStatistics.merged([self._before, self._statistics] if lifetime else [self._statistics])
            if reset:
                taken = (self._before, self._statistics)
                self._set_statistics_aside()
                self._taken = taken
            return found

    def take_back_reset(self) -> None:
        """Have the statistics that were taken last again, besides those of the calls that have ended since."""
        with self._lock:
            if self._taken is not None:  # else they were reset on purpose meanwhile
                self._before, statistics = self._taken
                self._statistics = DurationStatistics.merged([statistics, self._statistics])
                self._taken = None

    def _total_ns(self) -> int:
        """Return all that was measured, the running part included. Under the lock."""
        self._take_calls()
        if self._events is not None or not self._open:
            return self._sum_ns
        now = self._clock()
        return self._sum_ns + sum(max(now - began, 0) for began in list(self._open.values()))

    def _take_calls(self) -> None:
        if self._events is not None:
            self._calls.extend(self._events.finished())
        count = len(self._calls)
        taken = self._calls[:count]  # other threads go on appending
        del self._calls[:count]
        self._sum_ns += sum(taken)
        self._statistics.add_all(taken)

    def _set_statistics_aside(self) -> None:
        self._take_calls()
        self._before = DurationStatistics.merged([self._before, self._statistics])
        self._taken = None
        self._statistics = DurationStatistics()


def _after_fork_in_child() -> None:
    for timer in list(_timers):
        timer.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
