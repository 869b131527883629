"""A timer whose ``with`` begins and ends with a barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.timers.base import TimerBase

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["TimerWithBarrier"]


class TimerWithBarrier(TimerBase):
    """A timer whose ``with`` begins and ends with a barrier; in everything else it is the timer itself.

    When the body raises there is no barrier at its end: the other ranks may never come, and the error must get out.
    """

    __slots__ = ("_timer", "_wait_for_ranks")

    def __init__(self, timer: TimerBase, wait_for_ranks: Callable[[], None]) -> None:
        super().__init__(timer.name)
        self._timer = timer
        self._wait_for_ranks = wait_for_ranks

    def __repr__(self) -> str:
        return f"<Timer {self.name!r} with barriers>"

    def __enter__(self) -> TimerWithBarrier:
        self._wait_for_ranks()
        self._timer.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self._wait_for_ranks()
        self._timer.__exit__(exc_type, exc, traceback)

    def start(self, barrier: bool = False) -> None:
        """Do as `Timer.start`."""
        self._timer.start(barrier)

    def stop(self, barrier: bool = False) -> None:
        """Do as `Timer.stop`."""
        self._timer.stop(barrier)

    def reset(self) -> None:
        """Do as `Timer.reset`."""
        self._timer.reset()

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Do as `Timer.elapsed`."""
        return self._timer.elapsed(reset, barrier)

    def active_time(self) -> float:
        """Do as `Timer.active_time`."""
        return self._timer.active_time()

    def set_elapsed(self, value: float) -> None:
        """Do as `Timer.set_elapsed`."""
        self._timer.set_elapsed(value)

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Do as `Timer.set_barrier_group`."""
        self._timer.set_barrier_group(barrier_group)

    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Do as `Timer.with_barrier`."""
        return self._timer.with_barrier(barrier)
