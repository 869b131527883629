"""TimerBase, the methods of every timer, and OffTimer, a timer that is switched off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.errors import TimerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class TimerBase(ABC):
    """The timer that ``timers(name)`` returns: a `Timer`, one with barriers, or an `OffTimer`.

    By default, its methods do nothing, and the two that read it have to be overridden.

    Attributes:
        name: Name of the timer.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> TimerBase:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""

    def start(self, barrier: bool = False) -> None:
        """Start it."""

    def stop(self, barrier: bool = False) -> None:
        """Stop it."""

    def reset(self) -> None:
        """Forget the time measured so far."""

    @abstractmethod
    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Return seconds since the last reset."""

    @abstractmethod
    def active_time(self) -> float:
        """Return seconds since the timer was made."""

    def set_elapsed(self, value: float) -> None:
        """Set a time measured elsewhere, in seconds."""

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Set the ranks that meet at the barriers."""

    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Return the timer for a ``with`` that begins and ends with a barrier."""
        return self


class OffTimer(TimerBase):
    """A timer that measures nothing and waits for nobody. Reading it raises.

    `Timers` returns one for each name that its level switches off. Code that takes a timer can be given ``DummyTimer()``,
    Megatron's name for it.

    Args:
        name: Name of the timer.
        reason: Text of the error that reading it raises.
        announce: Called where a barrier is asked for, so that other ranks do not wait for this one.
    """

    __slots__ = ("_announce", "_reason")

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

    def start(self, barrier: bool = False) -> None:
        """Do nothing; with a barrier, announce to the other ranks not to wait for this one."""
        if barrier:
            self._announce()

    stop = start

    def with_barrier(self, barrier: bool = True) -> OffTimer:
        """Return the timer itself; see `start`."""
        self.start(barrier)
        return self

    def elapsed(self, reset: bool = True, barrier: bool = False) -> NoReturn:
        """Raise a `TimerError`, because nothing was measured; it says which level would switch the timer on."""
        raise TimerError(self._reason)

    def active_time(self) -> NoReturn:
        """Raise a `TimerError`; see `elapsed`."""
        raise TimerError(self._reason)


DummyTimer = OffTimer
