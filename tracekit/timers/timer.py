"""Timer: measures a named piece of code each time it runs, as a slice in the trace and a number to report.

It keeps the difference of two readings of the monotonic clock; sums and statistics are computed when somebody asks.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import TimerError
from tracekit.notices import WarnOnce
from tracekit.recording.lifecycle import marker as module_marker
from tracekit.recording.tasks import current_owner
from tracekit.statistics import DurationStatistics
from tracekit.timers.device import DeviceEvents, device_mode, synchronize
from tracekit.timers.ranks import wait_at_barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tracekit.recording.marker import Marker

MAX_LOG_LEVEL: Final = 2  # default level of a timer
TIMER: Final = "timer"  # category of a timer's slices
NESTED: Final = "nested"  # A further category of slices inside another slice of the same timer, which counts their time
_FOLD_CALLS: Final = 1024  # number of durations that are kept before they go into the statistics
_SECOND_NS: Final = 1e9
_timers: Final[weakref.WeakSet[Timer]] = weakref.WeakSet()  # all timers of this process, for forked children
warn_once: Final = WarnOnce("tracekit: timers: ")  # warnings of this process about timers without a `Timers`


class TimerBase(ABC):
    """The timer that ``timers(name)`` returns: a `Timer`, one with barriers, or an `OffTimer`.

    Attributes:
        name: Name of the timer.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> TimerBase:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: Any, traceback: Any) -> None:
        """Stop it."""

    def start(self, barrier: bool = False) -> None:
        """Start it."""
        if barrier:
            self.with_barrier()

    def stop(self, barrier: bool = False) -> None:
        """Stop it."""
        if barrier:
            self.with_barrier()

    def reset(self) -> None:
        """Forget the time measured so far."""

    @abstractmethod
    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Return seconds since the last reset."""

    def active_time(self) -> float:
        """Return seconds since the timer was made."""
        return self.elapsed(reset=False)

    def set_elapsed(self, value: float) -> None:
        """Set a time measured elsewhere, in seconds."""

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Set the ranks that meet at the barriers."""

    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Return the timer for a ``with`` that begins and ends with a barrier."""
        return self


class OffTimer(TimerBase):
    """A timer that measures nothing and waits for nobody. Reading it raises a `TimerError`.

    `Timers` returns one for each name that its level switches off. ``DummyTimer()``, Megatron's name, makes one.

    Args:
        name: Name of the timer.
        reason: Text of the error that reading it raises.
        announce: Called where a barrier is asked for, so that other ranks do not wait for this one.
    """

    def __init__(
        self,
        name: str = "dummy timer",
        reason: str = "a dummy timer measures nothing; use Timer(name), or the timers of a Timers",
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name)
        self._reason = reason
        self._announce = announce

    def __repr__(self) -> str:
        return f"<Timer {self.name!r}, off>"

    def elapsed(self, reset: bool = True, barrier: bool = False) -> NoReturn:
        """Raise a `TimerError` that says which level would switch the timer on."""
        raise TimerError(self._reason)

    def with_barrier(self, barrier: bool = True) -> OffTimer:
        """Announce to the other ranks not to wait for this one, and return the timer itself."""
        if barrier:
            self._announce()
        return self


DummyTimer = OffTimer


@dataclass(slots=True)
class _Mark:
    """Totals of one report, ns: it counts from ``start_ns``, or for its last training step from ``step_start_ns``."""

    start_ns: int
    shown_ns: int
    step_start_ns: int
    step: object = None


class ReportMarks:
    """Marks on a total that only grows, in ns: one for the timer itself, one for each report. Not thread-safe.

    A reset drops, for every report, the time that this report has shown already, and no more (in Megatron, all time): ``write``
    and then ``log(reset=True)`` show the same, and a report that is asked every tenth time shows all ten.
    """

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, total_ns: int) -> None:
        """Start every report, and the timer's own reading, from a total."""
        self._start_ns = self._own_ns = total_ns
        self._marks: dict[str, _Mark] = {}

    def own(self, total_ns: int, *, reset: bool) -> int:
        """Return the time since the last reset by anybody, ns."""
        elapsed_ns = max(total_ns - self._own_ns, 0)
        if reset:
            self._reset(total_ns)
        return elapsed_ns

    def report(self, name: str, total_ns: int, *, reset: bool, step: object = None) -> int:
        """Return the time that a report has to show, ns; for the step of its last call, that and the time since.

        So two writers get the values of a step one after the other.
        """
        mark = self._marks.setdefault(name, _Mark(self._start_ns, self._start_ns, self._start_ns))
        if step is None or step != mark.step:
            mark.step, mark.step_start_ns = step, mark.start_ns
        # A total read while another thread ends an interval may miss that interval; the next report shows it.
        mark.shown_ns = max(total_ns, mark.shown_ns)
        if reset:
            self._reset(total_ns)
        return max(total_ns - mark.step_start_ns, 0)

    def _reset(self, total_ns: int) -> None:
        self._own_ns = max(total_ns, self._own_ns)
        for mark in self._marks.values():
            mark.start_ns = mark.shown_ns


class Timer(TimerBase):
    """Measures a piece of code each time it runs: ``with timers("forward"):``, or by `start` and `stop`.

    `Timers` makes timers and reports them. A separate ``Timer("load")`` measures the same way and is in the trace, but in no
    report. Times are of the monotonic clock, which nobody can set.

    Threads and asyncio tasks may time with it concurrently: each has its own interval, and the sum may then be longer than
    the wall clock's. Recursion: a ``with`` inside of a ``with`` of the same timer is a slice in the trace, and its time, which
    belongs to the outer one, is counted once. Reading never disturbs a running timer: the part that has passed is counted.
    In a function that torch.compile compiles a timer breaks the graph, and measures; a `Marker` does neither.

    Args:
        name: Name of the timer and of its slices.
        log_level: Level of the timer; see `Timers`. A timer without a `Timers` is always on.
        device: The time it measures; see `Timers`. With "events", calls count once the device has finished them. Without a
            CUDA device, "events" is "host".
        make_marker: Makes the markers of the slices; by default those of the active profiler.
        clock: Returns the time in ns; for tests.
        barrier: Waits for the ranks of a group, by name, level and group; by default the barrier of torch.distributed.
        warn: Logs a warning once, by its subject and its text; by default once in this process.

    Attributes:
        device: The time it measures: "host", "synchronize" or "events".

    Raises:
        ConfigError: There is no such device mode.
    """

    def __init__(
        self,
        name: str,
        log_level: int = MAX_LOG_LEVEL,
        *,
        device: str | None = None,
        make_marker: Callable[[str, tuple[str, ...]], Marker] = module_marker,
        clock: Callable[[], int] = SYSTEM_CLOCK.monotonic_ns,
        barrier: Callable[[str, int, Any], None] | None = None,
        warn: Callable[[object, str], None] = warn_once,
    ) -> None:
        super().__init__(name)
        self.log_level = log_level
        self.device = device_mode(device, warn)
        self._events = DeviceEvents(name) if self.device == "events" else None
        self._make_marker = make_marker
        self._marker = make_marker(name, (TIMER,))
        self._marker.by_hand = True
        self._clock = clock
        self._barrier = barrier or (lambda name, _, group: wait_at_barrier(name, group, make_marker))
        self._group: Any = None
        self._lock = threading.Lock()
        # By thread or asyncio task; each changes its own entries only.
        self._open: dict[Hashable, int] = {}  # start of its interval
        self._nested: dict[Hashable, int] = {}  # number of slices inside of that
        self._began: dict[Hashable, Any] = {}  # the device's event at its start
        self._stale: set[Hashable] = set()  # intervals that were reset: they may be started again
        self._calls: list[int] = []  # durations that are not in the statistics yet
        # Statistics since they were last taken, those that were taken then, and all before.
        self._statistics, self._taken, self._before = (DurationStatistics() for _ in range(3))
        self._injected_ns = 0  # the part of these that `set_elapsed` has added
        self._marks = ReportMarks()
        _timers.add(self)

    def __repr__(self) -> str:
        return f"<Timer {self.name!r}>"

    # ---- measuring --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Timer:
        owner = current_owner()
        if owner in self._open:
            self._nested[owner] = self._nested.get(owner, 0) + 1
            self._make_marker(self.name, (TIMER, NESTED)).start()
            return self
        if self._events is not None:
            self._began[owner] = self._events.begin()
        elif self.device != "host":
            synchronize()
        self._marker.__enter__()
        self._open[owner] = self._clock()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: Any, traceback: Any) -> None:
        if self.device == "synchronize":
            synchronize()
        end_ns = self._clock()
        owner = current_owner()
        if self._nested and owner in self._nested:
            self._make_marker(self.name, (TIMER, NESTED)).__exit__(exc_type, exc, traceback)
            if depth := self._nested.pop(owner) - 1:
                self._nested[owner] = depth
            return
        start_ns = self._open.pop(owner, None)
        if start_ns is None:
            return  # the body has called `stop`
        self._marker.__exit__(exc_type, exc, traceback)
        if self._stale:
            self._stale.discard(owner)
        if self._events is None:
            self._calls.append(end_ns - start_ns)
            is_due = len(self._calls) >= _FOLD_CALLS
        else:
            is_due = self._events.end(self._began.pop(owner, None))
        if is_due:
            with self._lock:
                self._fold_calls()

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
            self.reset()  # the time since the first reset does not count either
            self._stale.discard(owner)
            return
        if barrier:
            self.wait_for_ranks()
        self.__enter__()

    def stop(self, barrier: bool = False) -> None:
        """Stop it, where this thread or asyncio task has started it.

        Args:
            barrier: Wait for the other ranks of the barrier group first. The wait is counted.

        Raises:
            TimerError: It does not run there.
        """
        if current_owner() not in self._open:
            elsewhere = " (another thread has started it)" if self._open else ""
            raise TimerError(f"timer {self.name!r} has not been started on this thread{elsewhere}; call start() first")
        if barrier:
            self.wait_for_ranks()
        self.__exit__(None, None, None)

    def after_fork_in_child(self) -> None:
        """Drop the lock and the intervals of the parent's other threads, in a forked child."""
        self._lock = threading.Lock()
        ident = threading.get_ident()  # the forking thread goes on in the child; asyncio tasks do not
        for entries in (self._open, self._nested, self._began):
            for owner in [owner for owner in entries if owner != ident]:
                del entries[owner]
        self._stale &= {ident}

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Set the ranks that meet at the barriers of this timer: a group of torch.distributed; None is all ranks."""
        self._group = barrier_group

    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Return this timer for a ``with`` that begins and ends with a barrier. No other ``with`` gets a barrier by this."""
        return cast("TimerBase", _TimerWithBarrier(self)) if barrier else self

    def wait_for_ranks(self) -> None:
        """Wait for the other ranks of the barrier group."""
        self._barrier(self.name, self.log_level, self._group)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Return the seconds since the last reset, those of a running interval included; it goes on running.

        Args:
            reset: Count from here the next time. The reports (`Timers.log`, `write`) still show what they have not shown.
            barrier: Wait for the other ranks of the barrier group first.
        """
        if barrier:
            self.wait_for_ranks()
        with self._lock:
            return self._marks.own(self._total_ns(), reset=reset) / _SECOND_NS

    def active_time(self) -> float:
        """Return the seconds since the timer was made, those of a running interval included. Nothing resets it."""
        with self._lock:
            return (self._total_ns() - self._injected_ns) / _SECOND_NS

    def reset(self) -> None:
        """Forget the time measured so far, for every report and for the statistics. A running interval counts from here on.

        With ``device="events"``, calls that the device has not finished by now still count.
        """
        with self._lock:
            self._restart()
            self._stale.update(list(self._open))

    def set_elapsed(self, value: float) -> None:
        """Set a time measured elsewhere: `elapsed` and the reports return it, plus the time measured from here on.

        It counts as one call of that length in the statistics. The trace, and `active_time`, hold only times measured here.

        Args:
            value: Seconds, from 0 on.

        Raises:
            TimerError: It is no such number.
        """
        if not isinstance(value, Real) or not 0 <= value < math.inf:
            raise TimerError(f"timer {self.name!r}: set_elapsed() takes a number of seconds from 0 on, not {value!r}")
        value_ns = round(float(value) * _SECOND_NS)
        with self._lock:
            self._restart()
            self._statistics.add(value_ns)
            self._injected_ns += value_ns

    def report_ns(self, report: str, *, reset: bool, step: object = None) -> int:
        """Return the time that a report has to show, ns; see `ReportMarks.report`."""
        with self._lock:
            return self._marks.report(report, self._total_ns(), reset=reset, step=step)

    def statistics(self, *, reset: bool = False, lifetime: bool = False) -> DurationStatistics:
        """Return the statistics of the calls that have ended: count, total, mean, quantiles.

        Args:
            reset: Take them: the next ones are of the calls that end from here on.
            lifetime: All calls since the timer was made, not only those since the statistics were taken last.
        """
        with self._lock:
            self._fold_calls()
            earlier = [self._before, self._taken] if lifetime else []
            found = DurationStatistics.merged([*earlier, self._statistics])
            if reset:
                self._before.merge(self._taken)
                self._taken, self._statistics = self._statistics, DurationStatistics()
            return found

    def take_back_reset(self) -> None:
        """Put the statistics that were taken last back, unless the timer was reset meanwhile; keep those since."""
        with self._lock:
            self._statistics.merge(self._taken)
            self._taken = DurationStatistics()

    def _total_ns(self) -> int:
        """Return all time measured, running intervals included. Under the lock."""
        self._fold_calls()
        ended_ns = self._before.total_ns + self._taken.total_ns + self._statistics.total_ns
        if self._events is not None or not self._open:
            return ended_ns
        now_ns = self._clock()
        return ended_ns + sum(max(now_ns - start_ns, 0) for start_ns in list(self._open.values()))

    def _restart(self) -> None:
        self._marks.restart(self._total_ns())
        for part in (self._taken, self._statistics):
            self._before.merge(part)
        self._taken, self._statistics = DurationStatistics(), DurationStatistics()

    def _fold_calls(self) -> None:
        if self._events is not None:
            self._calls += self._events.finished()
        count = len(self._calls)
        calls = self._calls[:count]  # other threads go on appending
        del self._calls[:count]
        self._statistics.add_all(calls)


class _TimerWithBarrier:
    """A timer with a barrier at the beginning and the end of its ``with``; in everything else it is the timer itself.

    A body that raises does not end with a barrier: the other ranks may never come, and the error must get out.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy asks for these before there is a timer
            raise AttributeError(name)
        return getattr(self._timer, name)

    def __repr__(self) -> str:
        return f"<Timer {self.name!r} with barriers>"

    def __enter__(self) -> _TimerWithBarrier:
        self._timer.wait_for_ranks()
        self._timer.__enter__()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: Any, traceback: Any) -> None:
        if exc_type is None:
            self._timer.wait_for_ranks()
        self._timer.__exit__(exc_type, exc, traceback)


TimerBase.register(_TimerWithBarrier)


def _after_fork_in_child() -> None:
    for timer in list(_timers):
        timer.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
