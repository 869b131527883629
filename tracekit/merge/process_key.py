"""ProcessKey: what a process is within its rank."""

from __future__ import annotations

from typing import Final

__all__ = ["CHILD", "CPU", "DEVICE", "GPU", "OVERHEAD", "PROFILER", "SAME_PID", "ProcessKey", "main_thread"]

ProcessKey = tuple[int, int | str]
"""What a process is within its rank: (kind, its number or name). It is written into merged traces."""

CPU, GPU, DEVICE, OVERHEAD, PROFILER, CHILD = range(6)

SAME_PID: Final = 2**32
"""What the number of a `CPU` process is raised by for each earlier process of its rank that had the same pid."""


def main_thread(key: ProcessKey) -> int | str:
    """Return the thread id of the main thread of a process: its pid as it was recorded."""
    kind, value = key
    if kind == CPU and isinstance(value, int):
        return value % SAME_PID
    if kind == CHILD and isinstance(value, str):
        return int(value.rpartition(" ")[2])
    return value
