"""ActionSlices: the actions of Lightning as slices in the trace of the active tracekit profiler, and as a table."""

from __future__ import annotations

import sys
import threading
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.actions import action_of
from tracekit.integrations.lightning.time_values import durations_table
from tracekit.notices import WarnOnce
from tracekit.recording.lifecycle import marker
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from tracekit.clock import Clock
    from tracekit.recording.marker import Marker

    # Name, kind, start, and the exception that was being handled then.
    _Open: TypeAlias = "tuple[str, _Kind, int, BaseException | None]"

_get_ident = threading.get_ident
_exc_info = sys.exc_info
_COUNTED_TOGETHER: Final = 256  # durations that are counted together, which is several times faster than one by one
MAX_RECORDED: Final = 10_000  # single durations that are kept of each kind of action on each thread


@dataclass(slots=True)
class _Kind:
    """One kind of action on one thread: its slices and their durations."""

    marker: Marker | None
    waiting_ns: list[int] = field(default_factory=list)
    statistics: DurationStatistics = field(default_factory=DurationStatistics)
    recorded_ns: array[int] = field(default_factory=lambda: array("q"))
    open: int = 0
    was_cut: bool = False  # ended by an exception, before its stop
    lock: Any = field(default_factory=threading.RLock)  # held while another thread may read what is counted

    def settle(self) -> DurationStatistics:
        with self.lock:
            waiting_ns = self.waiting_ns.copy()
            del self.waiting_ns[: len(waiting_ns)]  # no new list: the thread of the actions may be about to append
            self.statistics.add_all(waiting_ns)
            self.recorded_ns.extend(waiting_ns)
            if len(self.recorded_ns) > 2 * MAX_RECORDED:
                del self.recorded_ns[:-MAX_RECORDED]
        return self.statistics


@dataclass(slots=True)
class _Thread:
    """The open actions of one thread, the innermost last, and its kinds of actions by name."""

    open: list[_Open] = field(default_factory=list)
    kinds: dict[str, _Kind] = field(default_factory=dict)


class ActionSlices:
    """Records a slice from the start to the stop of each action.

    Actions nest, and may be open several times, on any number of threads. The slice of an action that an exception
    ends names the exception. A stop without a start on its thread is ignored, and logged once; if ``strict``, it
    raises ``ValueError``, like a start of an open action, unless an exception is being handled. The clock is for the
    table, which has all columns if ``extended``.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, strict: bool = False) -> None:
        self.extended = True
        self._now_ns = clock.monotonic_ns
        self._strict = strict
        self._threads: dict[int, _Thread] = {}
        self._first_ns: int | None = None
        self._last_ns = 0
        self._warn = WarnOnce("tracekit: ")

    def start(self, action_name: str) -> None:
        """Begin a slice."""
        # Lightning calls this, and `stop`, a hundred times for each batch, so rare cases are handled elsewhere.
        try:
            thread = self._threads[_get_ident()]
            kind = thread.kinds[action_name]
        except KeyError:
            thread, kind = self._new(action_name)
        if kind.open and self._strict:
            raise ValueError(f"the action {action_name!r} was started, and it is open already; stop it first")
        kind.open += 1
        kind.was_cut = False
        thread.open.append((action_name, kind, self._now_ns(), _exc_info()[1]))
        if kind.marker is not None:
            kind.marker.__enter__()

    def stop(self, action_name: str) -> None:
        """End the innermost slice of this name on this thread, and those that an exception has left open in it."""
        opened: _Open | None
        try:
            started = self._threads[_get_ident()].open
            opened = started.pop()
            if opened[0] != action_name:
                started.append(opened)
                opened = self._take(started, action_name)
        except LookupError:
            opened = None  # this block handles an exception, so leave it first
        if opened is None:
            self._stopped_without_start(action_name)
        else:
            self._end(opened)

    def _end(self, opened: _Open) -> None:
        _, kind, start_ns, handled = opened
        kind.open -= 1
        self._last_ns = now_ns = self._now_ns()
        if kind.marker is not None:
            # Lightning stops actions in ``finally``, so an exception that ends one is known there.
            error = _exc_info()[1]
            kind.marker.__exit__(None if error is None or error is handled else type(error), None, None)
        kind.waiting_ns.append(now_ns - start_ns)
        if len(kind.waiting_ns) >= _COUNTED_TOGETHER:
            kind.settle()

    def _new(self, action_name: str) -> tuple[_Thread, _Kind]:
        if self._first_ns is None:
            self._first_ns = self._now_ns()
        action = action_of(action_name)
        thread = self._threads.setdefault(_get_ident(), _Thread())
        kind = _Kind(None if action.own else marker(action.name, action.categories))
        return thread, thread.kinds.setdefault(action_name, kind)

    def _take(self, started: list[_Open], action_name: str) -> _Open:
        """Remove and return the innermost of that name, which is not the last that was started."""
        place = next((place for place in reversed(range(len(started))) if started[place][0] == action_name), None)
        if place is None:
            raise LookupError
        error = _exc_info()[1]
        if error is not None and error is not started[place][3]:
            # Lightning does not stop every action in ``finally``; an exception has left these open.
            while len(started) > place + 1:
                started[-1][1].was_cut = True
                self._end(started.pop())
        return started.pop(place)

    def _stopped_without_start(self, action_name: str) -> None:
        # Raising would replace an exception on its way, and SimpleProfiler lets another thread stop an action.
        if self._strict and _exc_info()[1] is None:
            known = [kind for name, kind in self._kinds() if name == action_name]
            if not any(kind.open or kind.was_cut for kind in known):
                raise ValueError(f"the action {action_name!r} was stopped, and it was never started")
        if not action_of(action_name).own:  # which begins before it listens
            self._warn(
                "stop",
                f"the action {action_name!r} was stopped on a thread that had not started it; it is left out, and so are all "
                "others of which this is true",
            )

    def close(self) -> None:
        """End the open slices of this thread, which a failed run leaves."""
        thread = self._threads.get(threading.get_ident())
        for name, *_ in reversed(thread.open if thread is not None else []):
            self.stop(name)

    def durations(self, *, by_title: bool = False) -> dict[str, DurationStatistics]:
        """Return the durations of each ended action, over all threads, by its name.

        Args:
            by_title: Merge the actions of callbacks that differ only in their arguments.
        """
        found: defaultdict[str, DurationStatistics] = defaultdict(DurationStatistics)
        for name, kind in self._kinds():
            with kind.lock:
                found[action_of(name).title if by_title else name].merge(kind.settle())
        return {name: statistics for name, statistics in found.items() if statistics.count}

    @property
    def recorded_durations(self) -> defaultdict[str, list[float]]:
        """Single durations in seconds, by action: the latest 10,000 of each on each thread; `durations` counts all."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for name, kind in self._kinds():
            with kind.lock:
                count = kind.settle().count
                recorded_ns = kind.recorded_ns[-MAX_RECORDED:]
            if count:
                found[name] += [duration_ns / 1e9 for duration_ns in recorded_ns]
            if count > MAX_RECORDED:
                self._warn(
                    "recorded_durations",
                    f"recorded_durations holds the latest {MAX_RECORDED} durations of each action, and {name!r} has {count}; "
                    "durations() counts all",
                )
        return found

    def summary(self) -> str:
        """Return a table of all actions, the largest total first; empty if no action was recorded.

        Actions lie within each other, so that the percentages add up to more than 100.
        """
        if self._first_ns is None:
            return ""
        whole_ns = self._last_ns - self._first_ns
        return durations_table("Action", self.durations(by_title=True), whole_ns, extended=self.extended)

    def _kinds(self) -> Iterator[tuple[str, _Kind]]:
        """Yield the kinds of actions of all threads, which may go on meanwhile."""
        for thread in list(self._threads.values()):
            yield from list(thread.kinds.items())

    def __getstate__(self) -> dict[str, Any]:
        # Lightning sends the profiler to the processes that it spawns; what was measured stays here.
        return {**self.__dict__, "_threads": {}, "_first_ns": None}
