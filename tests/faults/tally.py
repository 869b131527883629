"""Tally: counts that a process keeps where they survive it, and a witness of how busy the machine is."""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tally"]

_SLOTS = 64
_LATE = _SLOTS - 1
_SINCE = _SLOTS - 2
_SLEEP_NS = 20_000_000


class Tally:
    """Whole numbers in a file that is mapped into memory, so that they outlive a kill. Slots are zero at first.

    Args:
        path: The file; made if it is not there.
    """

    EMITTED = 0
    """Slot by convention: how many events were recorded."""
    LAST_NS = 1
    """Slot by convention: the monotonic time after the last of them."""

    def __init__(self, path: Path | str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, 8 * _SLOTS)
        self._map = mmap.mmap(descriptor, 8 * _SLOTS)
        os.close(descriptor)
        self.slots = memoryview(self._map).cast("q")

    def __getitem__(self, slot: int) -> int:
        return self.slots[slot]

    def __setitem__(self, slot: int, value: int) -> None:
        self.slots[slot] = value

    def watch_the_machine(self) -> None:
        """Start a thread that only sleeps, and notes how late it wakes up at the worst.

        A flush can be no more punctual than that: on a machine that is busy with other things, promises in milliseconds are
        promises beside this.
        """
        threading.Thread(target=self._sleep_and_note, name="witness", daemon=True).start()

    def _sleep_and_note(self) -> None:
        while True:
            before = self.slots[_SINCE] = time.monotonic_ns()
            time.sleep(_SLEEP_NS / 1e9)
            late_ns = time.monotonic_ns() - before - _SLEEP_NS
            self.slots[_LATE] = max(self.slots[_LATE], late_ns)

    @property
    def late_ns(self) -> int:
        """How late the witness woke up at the worst, ns, or was when the last event was recorded."""
        since_ns = self.slots[_SINCE]
        return max(self.slots[_LATE], self.slots[self.LAST_NS] - since_ns - _SLEEP_NS if since_ns else 0)
