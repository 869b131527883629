"""Signal: wakes a waiting thread. Unlike `threading.Event`, it is safe to interrupt with Ctrl-C."""

from __future__ import annotations

import threading
from contextlib import suppress


class Signal:
    """An auto-reset event: any thread sets it, one thread waits for it, and `wait` resets it.

    `threading.Event` holds a lock in Python code. A KeyboardInterrupt after the lock is taken, but before the ``try``
    block that releases it, leaves it locked, and the next `set` hangs. Here each step is one call of C code.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next thread that waits."""
        if self._lock.locked():
            with suppress(RuntimeError):  # set by another thread in between
                self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set. Return False on a timeout."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))
