"""TimerBase: what every kind of timer can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["TimerBase"]


class TimerBase(ABC):
    """What ``timers(name)`` returns: a timer, a timer with barriers, or one that is off.

    Attributes:
        name: The timer's.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def start(self, barrier: bool = False) -> None:
        """Start it."""

    @abstractmethod
    def stop(self, barrier: bool = False) -> None:
        """Stop it."""

    @abstractmethod
    def reset(self) -> None:
        """Forget what was measured so far."""

    @abstractmethod
    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        """Return seconds since the last reset."""

    @abstractmethod
    def active_time(self) -> float:
        """Return seconds since the timer was made."""

    @abstractmethod
    def set_elapsed(self, value: float) -> None:
        """Say what was measured elsewhere, in seconds."""

    @abstractmethod
    def set_barrier_group(self, barrier_group: Any) -> None:
        """Say which ranks meet at the barriers."""

    @abstractmethod
    def with_barrier(self, barrier: bool = True) -> TimerBase:
        """Return the timer for a ``with`` that begins and ends with a barrier."""

    @abstractmethod
    def __enter__(self) -> TimerBase: ...

    @abstractmethod
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
