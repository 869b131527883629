"""What a loop of tracekit shows of itself to code that was written for Composer's State and Logger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.recording.lifecycle import active_profiler
from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.timestamp import Timestamp

__all__ = ["LoopState", "NoLogger", "as_action"]


class LoopState:
    """The training time of one moment, and whatever else Composer's State has where a Trainer is behind it.

    Attributes:
        timestamp: The training time at the moment of the call.
        run_name: The name of the run; tracekit's run id.
    """

    def __init__(self, timestamp: Timestamp, run_name: str, real: Any = None) -> None:
        self.timestamp = timestamp
        self.run_name = run_name
        self._real = real

    @property
    def profiler(self) -> Any:
        """The profiler that records: that of the Trainer, else the active one of tracekit."""
        return getattr(self._real, "profiler", None) or active_profiler()

    @property
    def dataloader_len(self) -> Any:
        """How many batches an epoch has, where it is known."""
        return getattr(self._real, "dataloader_len", None)

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_real") is None:
            raise AttributeError(f"the state has no {name!r}: no Composer Trainer runs this loop")
        return getattr(self._real, name)


class NoLogger:
    """Stands for Composer's Logger in a loop that has none: says so when it is used."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the logger has no {name!r}: no Composer Trainer runs this loop")


def as_action(action: Any) -> ProfilerAction:
    """Return the action for one of Composer's, for its name in upper or lower case, or for one of tracekit's.

    Raises:
        ConfigError: There is no such action.
    """
    return ProfilerAction(getattr(action, "value", action))
