"""Whether a process that recorded runs on this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.watching.heads import Head

__all__ = ["Machine"]


class Machine:
    """This machine, as its recordings name it, and the processes that can be seen from here.

    A process id says nothing by itself: it is used again, and a container counts its own. So a process is *running* only where
    host, boot, id and start are those of the recording, and it is *gone* only where it was seen running before.
    """

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._boot_id = _text("/proc/sys/kernel/random/boot_id")

    def runs(self, head: Head) -> bool | None:
        """Tell whether the process of a recording is seen running here; None where it recorded elsewhere."""
        if not self._boot_id or head.host != self._host or head.boot_id != self._boot_id or head.start_ticks is None:
            return None
        stat = _text(f"/proc/{head.pid}/stat")
        # The name in parentheses may hold anything; the state is the field behind it, the start the 20th.
        fields = stat.rpartition(")")[2].split()
        return len(fields) > 19 and fields[0] not in "ZX" and fields[19] == str(head.start_ticks)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
