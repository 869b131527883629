"""SignalPipe: the numbers of arriving signals, also while the main thread is in C code."""

from __future__ import annotations

import contextlib
import os
import signal


class SignalPipe:
    """A pipe that receives the number of each signal that Python handles.

    Python runs signal handlers only on the main thread, between two instructions. The C handler of the interpreter
    writes to Python's wakeup descriptor immediately. This pipe becomes the wakeup descriptor unless another library
    (asyncio, another pipe) has it; then only `write` writes here. Made and released on the main thread.
    """

    def __init__(self) -> None:
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)
        taken = signal.set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)
        self._is_wakeup = taken == -1  # also true while another library has taken it away, and may restore it
        if not self._is_wakeup:
            signal.set_wakeup_fd(taken)

    def fileno(self) -> int:
        """Return the descriptor to read from, for `select`."""
        return self._ends[0]

    def read(self) -> bytes:
        """Return the numbers that have arrived since the last call."""
        try:
            return os.read(self._ends[0], 65536)
        except BlockingIOError:
            return b""

    def write(self, number: int) -> None:
        """Add a number, unless the pipe is full."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._ends[1], bytes([number]))

    def release(self) -> None:
        """Stop receiving the numbers of signals."""
        if self._is_wakeup:
            current = signal.set_wakeup_fd(-1)
            self._is_wakeup = current != self._ends[1]
            if self._is_wakeup:
                signal.set_wakeup_fd(current)

    def close(self) -> None:
        """Close the pipe, unless signals may still be written to it: a file could get its descriptor."""
        if not self._is_wakeup:
            for end in self._ends:
                os.close(end)
