"""SharedAction: one shared byte with the current action of a profiler's schedule, for its child processes."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.timestamp import Timestamp

_ACTIONS: Final = tuple(ProfilerAction)


class SharedAction:
    """The parent's side. Children of any start method open it through the parent's pid. It disappears with the parent.

    The byte is in an anonymous file in memory, so that nothing remains when the parent is killed.

    Raises:
        OSError: The system has no such files. Children then cannot follow the schedule.
    """

    __slots__ = ("_descriptor", "_memory", "_path")

    def __init__(self, action: ProfilerAction) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        self._descriptor = os.memfd_create("tracekit-action", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, 1)
        self._memory = mmap.mmap(self._descriptor, 1)
        self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.set(action)

    def set(self, action: ProfilerAction) -> None:
        """Set the action for the children."""
        self._memory[0] = _ACTIONS.index(action)

    def view(self) -> ActionView:
        """Return the children's side."""
        return ActionView(self._path, self._memory)

    def close(self) -> None:
        """Set the action to SKIP, so that children stop recording, and close the file."""
        self.set(ProfilerAction.SKIP)
        os.close(self._descriptor)


class ActionView:
    """The child's side: a schedule that returns the parent's current action. Picklable.

    Args:
        path: Path of the file with the byte.
        memory: The mapped file, which a forked child inherits.
    """

    __slots__ = ("_last", "_memory", "_path")

    def __init__(self, path: str, memory: mmap.mmap | None = None) -> None:
        self._path = path
        self._memory = memory
        self._last = -1

    def __reduce__(self) -> tuple[type[ActionView], tuple[str]]:
        return ActionView, (self._path,)

    def __call__(self, _timestamp: Timestamp) -> ProfilerAction:
        """Return the current action of the parent's schedule."""
        self._last = self._read()
        return _ACTIONS[self._last]

    def changed(self) -> bool:
        """Return True if the action has changed since the last call of the schedule."""
        return self._read() != self._last

    def _read(self) -> int:
        if self._memory is None:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                # The parent has ended, and so has its recording.
                return _ACTIONS.index(ProfilerAction.SKIP)
            try:
                self._memory = mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        return self._memory[0]
