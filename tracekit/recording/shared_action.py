"""SharedAction: one byte that tells the children of a process what its schedule says."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

from tracekit.recording.schedule import ProfilerAction

if TYPE_CHECKING:
    from tracekit.timestamp import Timestamp

__all__ = ["ActionView", "SharedAction"]

_ACTIONS: Final = tuple(ProfilerAction)


class SharedAction:
    """The parent's side. Children of any start method reach it by the parent's pid; it is gone when the parent is.

    A file that only memory holds, because nothing of it may be left when the parent is killed.

    Raises:
        OSError: The system has no such files; children then cannot tell what the schedule says.
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
        """Tell the children."""
        self._memory[0] = _ACTIONS.index(action)

    def view(self) -> ActionView:
        """Return the children's side."""
        return ActionView(self._path, self._memory)

    def close(self) -> None:
        """Tell the children that nothing is recorded any more."""
        self.set(ProfilerAction.SKIP)
        os.close(self._descriptor)


class ActionView:
    """The child's side: a schedule that says what the parent's says. Picklable.

    Args:
        path: Where the byte is.
        memory: The byte itself, for a forked child, which has it already.
    """

    __slots__ = ("_last", "_memory", "_path")

    def __init__(self, path: str, memory: mmap.mmap | None = None) -> None:
        self._path = path
        self._memory = memory
        self._last = -1

    def __reduce__(self) -> tuple[type[ActionView], tuple[str]]:
        return ActionView, (self._path,)

    def __call__(self, _timestamp: Timestamp) -> ProfilerAction:
        """Return what the parent's schedule says now."""
        self._last = self._read()
        return _ACTIONS[self._last]

    def changed(self) -> bool:
        """Tell whether it says something else than when it was asked last."""
        return self._read() != self._last

    def _read(self) -> int:
        if self._memory is None:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                # The parent has gone, and its recording with it.
                return _ACTIONS.index(ProfilerAction.SKIP)
            try:
                self._memory = mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        return self._memory[0]
