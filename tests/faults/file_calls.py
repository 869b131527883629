"""Stands between a recorder and the file system: kills the process at its N-th write, or keeps what every crash would leave.

Patches the functions of ``os`` that write, in this process, for descriptors of regular files. What is written otherwise (by
Python's own file objects) is not seen; a recorder that is safe to kill has no such buffer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["State", "disk_history", "kill_at_write"]


def _is_file(descriptor: int) -> bool:
    """Tell whether it is a regular file, and not one that only memory holds (``memfd_create``)."""
    in_memory = str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
    return stat.S_ISREG(os.fstat(descriptor).st_mode) and not in_memory


@contextlib.contextmanager
def _patched_os(function: Callable[..., Any], *names: str) -> Iterator[None]:
    """Replace functions of ``os`` for regular files; the replacement gets the original as its first argument."""

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(descriptor: int, *arguments: Any) -> Any:
            if not _is_file(descriptor):
                return original(descriptor, *arguments)
            return function(original, descriptor, *arguments)

        return replacement

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(os, name, replacing(getattr(os, name))))
        yield


@contextlib.contextmanager
def kill_at_write(number: int, cut: str) -> Iterator[None]:
    """Kill this process with SIGKILL at its N-th write (from 1) to a regular file.

    Args:
        number: Which write.
        cut: "before" it, when "half" of its bytes are out, or "after" it.
    """
    seen = 0

    def deadly(original: Any, descriptor: int, data: Any, *rest: int) -> int:
        nonlocal seen
        seen += 1
        if seen == number:
            if cut != "before":
                original(descriptor, data if cut == "after" else memoryview(data)[: len(data) // 2], *rest)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(descriptor, data, *rest)

    with _patched_os(deadly, "write", "pwrite"):
        yield


@dataclass(frozen=True)
class State:
    """A file before and after a write.

    Attributes:
        before: What it held.
        at: Where the data went.
        data: The data.
        after: What it holds now.
    """

    before: bytes
    at: int
    data: bytes
    after: bytes

    def outcomes(self) -> Iterator[tuple[str, bytes]]:
        """Yield what a power loss may make of the write: nothing of it, a half, zeros, a half of zeros, all."""
        half = len(self.data) // 2
        yield "absent", self.before
        yield "whole", self.after
        for name, data in (
            ("half", self.data[:half]),
            ("zeros", bytes(len(self.data))),
            ("half, then zeros", self.data[:half] + bytes(len(self.data) - half)),
        ):
            yield name, self.before[: self.at] + data + self.before[self.at + len(data) :]


@contextlib.contextmanager
def disk_history() -> Iterator[list[State]]:
    """Keep what every write of this process does to its file, in order."""
    states: list[State] = []

    def content(descriptor: int) -> bytes:
        return Path(f"/proc/self/fd/{descriptor}").read_bytes()  # it may have another name by now, or none

    def writing(original: Any, descriptor: int, data: Any, *rest: int) -> int:
        before = content(descriptor)
        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        at = len(before) if appends else rest[0] if rest else os.lseek(descriptor, 0, os.SEEK_CUR)
        written: int = original(descriptor, data, *rest)
        states.append(State(before, at, bytes(memoryview(data)[:written]), content(descriptor)))
        return written

    def cutting(original: Any, descriptor: int, size: int) -> None:
        before = content(descriptor)
        original(descriptor, size)
        states.append(State(before, size, b"", content(descriptor)))

    with _patched_os(writing, "write", "pwrite"), _patched_os(cutting, "ftruncate"):
        yield states
