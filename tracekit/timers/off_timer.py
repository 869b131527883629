"""A timer that is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.errors import TimerError
from tracekit.timers.base import TimerBase

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["DummyTimer", "OffTimer"]


class OffTimer(TimerBase):
    """A timer that measures nothing and waits for nobody. Reading it raises.

    `Timers` returns one for each name that its level switches off. Code that takes a timer can be given ``DummyTimer()``,
    which is Megatron's name for it.

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

    def __enter__(self) -> OffTimer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""

    def start(self, barrier: bool = False) -> None:
        """Do nothing, and wait for nobody; but ranks on which it is on are told not to wait for this one."""
        if barrier:
            self._announce()

    def stop(self, barrier: bool = False) -> None:
        """Do nothing, and wait for nobody; see `start`."""
        if barrier:
            self._announce()

    def reset(self) -> None:
        """Do nothing."""

    def set_elapsed(self, value: float) -> None:
        """Do nothing."""

    def set_barrier_group(self, barrier_group: Any) -> None:
        """Do nothing."""

    def with_barrier(self, barrier: bool = True) -> OffTimer:
        """Return it as it is; see `start`."""
        if barrier:
            self._announce()
        return self

    def elapsed(self, reset: bool = True, barrier: bool = False) -> NoReturn:
        """Refuse: nothing was measured.

        Raises:
            TimerError: Always; it says which level would switch it on.
        """
        raise TimerError(self._reason)

    def active_time(self) -> NoReturn:
        """Refuse: nothing was measured.

        Raises:
            TimerError: Always; it says which level would switch it on.
        """
        raise TimerError(self._reason)


DummyTimer = OffTimer
