"""Counts that a process keeps where they survive it."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tally"]

_SLOTS = 64


class Tally:
    """Whole numbers in a file that is mapped into memory, so that they outlive a kill. Slots are zero at first.

    Args:
        path: The file; made if it is not there.
    """

    EMITTED = 0
    """Slot by convention: how many events were recorded."""
    DELIVERIES = 62
    """Slot by convention: how often the writer of the trace was flushed; see `note_deliveries` in `tests.faults.child`."""
    DELIVERED_NS = 63
    """Slot by convention: the monotonic time of the newest event that the writer had been given at that moment."""

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
