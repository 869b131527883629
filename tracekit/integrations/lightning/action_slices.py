"""What Lightning does, as slices in the trace of the active tracekit profiler, and as a table."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.actions import action_of
from tracekit.integrations.lightning.table import Row, table
from tracekit.recording.lifecycle import marker
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from typing import TypeAlias

    from tracekit.clock import Clock
    from tracekit.recording.marker import Marker

    _Open: TypeAlias = "tuple[str, _Kind, int, BaseException | None]"

__all__ = ["ActionSlices"]

logger = logging.getLogger("tracekit")

_get_ident = threading.get_ident
_exc_info = sys.exc_info
_AT_ONCE: Final = 256
"""Durations that are counted together: one by one costs several times as much."""


@dataclass(slots=True)
class _Kind:
    """One kind of action on one thread: its slices, and how long they took."""

    marker: Marker | None
    waiting_ns: list[int] = field(default_factory=list)
    statistics: DurationStatistics = field(default_factory=DurationStatistics)

    def settle(self) -> DurationStatistics:
        waiting_ns, self.waiting_ns = self.waiting_ns, []
        self.statistics.add_all(waiting_ns)
        return self.statistics


@dataclass(slots=True)
class _Thread:
    """What runs on one thread: (name, kind, start, the exception that was being handled then), the innermost last."""

    open: list[_Open] = field(default_factory=list)
    kinds: dict[str, _Kind] = field(default_factory=dict)


class ActionSlices:
    """Records a slice from the start to the stop of each action.

    Actions nest, and may be open several times, on any number of threads. One that is ended by an exception says so in
    its slice. A stop without a start on its thread is ignored, and told of once.

    Args:
        clock: The clock for the table; slices have that of their profiler.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._now_ns = clock.monotonic_ns
        self._threads: dict[int, _Thread] = {}
        self._first_ns: int | None = None
        self._last_ns = 0
        self._told = False

    def start(self, action_name: str) -> None:
        """Begin a slice."""
        # Lightning calls this, and `stop`, a hundred times for each batch: what is seldom needed is done elsewhere.
        try:
            thread = self._threads[_get_ident()]
            kind = thread.kinds[action_name]
        except KeyError:
            thread, kind = self._new(action_name)
        thread.open.append((action_name, kind, self._now_ns(), _exc_info()[1]))
        if kind.marker is not None:
            kind.marker.__enter__()

    def stop(self, action_name: str) -> None:
        """End the innermost slice of this name on this thread."""
        try:
            found = self._threads[_get_ident()].open.pop()
            if found[0] != action_name:
                found = self._take(found, action_name)
        except LookupError:
            self._report(action_name)
            return
        _, kind, start_ns, handled = found
        self._last_ns = now_ns = self._now_ns()
        if kind.marker is not None:
            # Lightning stops actions in ``finally``, so an exception that ends one is known there.
            error = _exc_info()[1]
            kind.marker.__exit__(None if error is None or error is handled else type(error), None, None)
        kind.waiting_ns.append(now_ns - start_ns)
        if len(kind.waiting_ns) >= _AT_ONCE:
            kind.settle()

    def _new(self, action_name: str) -> tuple[_Thread, _Kind]:
        if self._first_ns is None:
            self._first_ns = self._now_ns()
        action = action_of(action_name)
        thread = self._threads.setdefault(_get_ident(), _Thread())
        kind = _Kind(None if action.own else marker(action.name, action.categories))
        return thread, thread.kinds.setdefault(action_name, kind)

    def _take(self, last: _Open, action_name: str) -> _Open:
        """Return the innermost of that name, which is not the last that was started; raise `LookupError` if there is none."""
        started = self._threads[_get_ident()].open
        started.append(last)
        for place in reversed(range(len(started))):
            if started[place][0] == action_name:
                return started.pop(place)
        raise LookupError(action_name)

    def close(self) -> None:
        """End what is open on this thread: a run that failed has left it, or Lightning tells no more."""
        thread = self._threads.get(threading.get_ident())
        for name, *_ in reversed(thread.open if thread is not None else []):
            self.stop(name)

    def durations(self) -> dict[str, DurationStatistics]:
        """Return how long each action took, over all threads, by its name; those of one that is still open come later."""
        found: dict[str, DurationStatistics] = {}
        for thread in list(self._threads.values()):
            for name, kind in list(thread.kinds.items()):
                found.setdefault(name, DurationStatistics()).merge(kind.settle())
        return {name: statistics for name, statistics in found.items() if statistics.count}

    def summary(self) -> str:
        """Return a table of all actions, those that took most first; empty where there was none.

        Actions lie within each other, so that the percentages add up to more than 100. Callbacks that differ only in their
        arguments share a row.
        """
        if self._first_ns is None:
            return ""
        rows: dict[str, DurationStatistics] = {}
        for name, durations in self.durations().items():
            rows.setdefault(action_of(name).title, DurationStatistics()).merge(durations)
        whole_ns = self._last_ns - self._first_ns
        return table("Action", [Row(title, durations, whole_ns) for title, durations in rows.items()])

    def _report(self, action_name: str) -> None:
        if not self._told and not action_of(action_name).own:  # which begins before it listens
            self._told = True
            logger.warning(
                "tracekit: the action %r was stopped on a thread that had not started it; it is left out, and so are all "
                "others of which this is true",
                action_name,
            )

    def __getstate__(self) -> dict[str, Any]:
        # Lightning sends the profiler to the processes that it spawns; what was measured stays here.
        return {**self.__dict__, "_threads": {}, "_first_ns": None}
