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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DiskHistory", "kill_at_write", "writes_seen"]

_CUTS = ("before", "half", "after")


def _is_file(descriptor: int) -> bool:
    """Tell whether it is a regular file, and not one that only memory holds (``memfd_create``)."""
    in_memory = str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
    return stat.S_ISREG(os.fstat(descriptor).st_mode) and not in_memory


@contextlib.contextmanager
def patched_os(**functions: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of ``os``; each replacement gets the original as its first argument."""
    originals = {name: getattr(os, name) for name in functions}
    for name, function in functions.items():
        setattr(os, name, lambda *args, _f=function, _o=originals[name], **options: _f(_o, *args, **options))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@contextlib.contextmanager
def kill_at_write(number: int, cut: str) -> Iterator[None]:
    """Kill this process with SIGKILL at its N-th write (from 1) to a regular file.

    Args:
        number: Which write.
        cut: "before" it, when "half" of its bytes are out, or "after" it.
    """
    assert cut in _CUTS
    seen = 0

    def deadly(original: Any, descriptor: int, data: Any, *rest: int) -> int:
        nonlocal seen
        if not _is_file(descriptor):
            return original(descriptor, data, *rest)
        seen += 1
        if seen == number:
            if cut != "before":
                original(descriptor, data if cut == "after" else memoryview(data)[: len(data) // 2], *rest)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(descriptor, data, *rest)

    with patched_os(write=deadly, pwrite=deadly):
        yield


@dataclass
class DiskHistory:
    """What every write of this process did to its file.

    Attributes:
        states: One for each write, in their order.
    """

    states: list[State] = field(default_factory=list)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the history of what happens inside."""

        def writing(original: Any, descriptor: int, data: Any, *rest: int) -> int:
            if not _is_file(descriptor):
                return original(descriptor, data, *rest)
            path = f"/proc/self/fd/{descriptor}"  # it may have another name by now, or none
            before = _content(path)
            appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
            at = len(before) if appends else rest[0] if rest else os.lseek(descriptor, 0, os.SEEK_CUR)
            written = original(descriptor, data, *rest)
            self.states.append(State(before, at, bytes(memoryview(data)[:written]), _content(path)))
            return written

        def cutting(original: Any, descriptor: int, size: int) -> None:
            if not _is_file(descriptor):
                original(descriptor, size)
                return
            path = f"/proc/self/fd/{descriptor}"  # it may have another name by now, or none
            before = _content(path)
            original(descriptor, size)
            self.states.append(State(before, size, b"", _content(path)))

        with patched_os(write=writing, pwrite=writing, ftruncate=cutting):
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


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def writes_seen(record: Callable[[], None]) -> int:
    """Return how many writes to regular files a recording makes."""
    seen = 0

    def counting(original: Any, descriptor: int, data: Any, *rest: int) -> int:
        nonlocal seen
        seen += _is_file(descriptor)
        return original(descriptor, data, *rest)

    with patched_os(write=counting, pwrite=counting):
        record()
    return seen
