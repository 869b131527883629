"""This machine: its boot, the number of processors for this process, and the start method of its worker processes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final, Literal

_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")


def boot_id() -> str | None:
    """Return the kernel's id of this boot, or None if the system does not report it. Processes of one boot share their clocks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def usable_processors() -> int:
    """Return the number of usable processors: those in the affinity mask, or the limit of the container if that is lower.

    The limit comes from Linux cgroups version 2, where container engines set it (``cpu.max``), and is rounded up.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # another system or version, or no limit ("max")
        quota, period = map(int, _CPU_MAX.read_text(encoding="ascii").split())
        found = min(found, max(1, -(-quota // period)))
    return found


def start_method() -> Literal["fork", "spawn"]:
    """Return "fork" if this process has no other thread, not even one unknown to Python."""
    # Before Python 3.11, the executor forks some processes later, when this one has threads.
    if sys.platform != "linux" or sys.version_info < (3, 11):
        return "spawn"
    try:
        return "fork" if len([*Path("/proc/self/task").iterdir()]) == 1 else "spawn"
    except OSError:
        return "spawn"
