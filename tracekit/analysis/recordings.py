"""Which recordings a file holds, as it tells itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Recording", "recordings_of"]

_PROCESS_KEYS: Final = ("host", "boot_id", "pid", "start_ticks", "attempt")


@dataclass(frozen=True, slots=True)
class Recording:
    """What tracekit recorded of a process.

    Attributes:
        rank: Whose it is.
        run_id: Of which run; empty where that is not known.
        process: What the process shares with no other of its rank.
    """

    rank: int
    run_id: str
    process: tuple[str | int | None, ...]

    @property
    def known(self) -> bool:
        """Whether the process is told from others."""
        return isinstance(self.process[_PROCESS_KEYS.index("pid")], int)

    @classmethod
    def of(cls, rank: int, own: dict[str, Any]) -> Recording:
        """Return the one that rank metadata, or a merged trace, tells of."""
        run_id = own.get("run_id")
        values = (own.get(key) for key in _PROCESS_KEYS)
        return cls(
            rank,
            run_id if isinstance(run_id, str) else "",
            tuple(value if isinstance(value, (str, int)) else None for value in values),
        )


def recordings_of(header: dict[str, Any], metadata: dict[str, Any], rank: int | None) -> list[Recording]:
    """Return the recordings of a file: that of its rank metadata, or those that a merged trace lists."""
    if rank is not None:
        return [Recording.of(rank, metadata)] if "run_id" in metadata else []
    own = header.get("tracekit")
    table = own.get("processes") if isinstance(own, dict) else None
    return [
        Recording.of(entry["rank"], entry["identity"])
        for entry in (table if isinstance(table, list) else [])
        if isinstance(entry, dict)
        and isinstance(entry.get("rank"), int)
        and isinstance(entry.get("identity"), dict)
        and entry["identity"].get("recorded") is True
    ]
