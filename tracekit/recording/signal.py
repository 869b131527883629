"""Signal: wakes a thread that waits; safe where Ctrl-C may come, which `threading.Event` is not."""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["Signal"]


class Signal:
    """Set by any thread, waited for by one; waiting takes it back.

    `threading.Event` holds a lock in Python code: a KeyboardInterrupt between taking it and the block that gives it back leaves
    it locked for ever, and whoever sets the event hangs. Here each step is one call of C code.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that does."""
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set; return whether it was."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))
