"""ProcessIdentity: what a process is known by beyond its pid; a merged trace keeps it, so that it can be merged further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["IDENTITY_KEYS", "ProcessIdentity", "identity_of"]

IDENTITY_KEYS: Final = ("host", "boot_id", "pid", "start_ticks", "attempt", "run_id", "parent_pid", "worker")
"""What a process is known by, of all that it writes about itself."""


@dataclass(slots=True)
class ProcessIdentity:
    """A process of a rank.

    Attributes:
        rank: The rank.
        pid: Its pid when it ran.
        own: What tracekit wrote about it, of host, boot, pid, start, attempt, run, parent and worker; may be empty.
        name: What it calls itself.
        recorded: Whether there is a rank trace of it.
        began_ns: When it began, as far as is known, ns since the epoch.
        companions: Names of the other traces that it wrote.
        path: A file that it is known from.
    """

    rank: int
    pid: int
    own: dict[str, Any]
    name: str
    recorded: bool
    began_ns: int
    companions: frozenset[str] = frozenset()
    path: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What it shares with no other process of any rank."""
        return self.rank, *identity_of(self.own)

    @property
    def host(self) -> str | None:
        """Its host, where that is known."""
        host = self.own.get("host")
        return host if isinstance(host, str) else None

    @property
    def is_child(self) -> bool:
        """Whether it is a child of its rank's own process."""
        return isinstance(self.own.get("parent_pid"), int)

    def take(self, other: ProcessIdentity) -> None:
        """Take in what another file tells of the same process."""
        self.began_ns = min(self.began_ns, other.began_ns)
        self.companions |= other.companions

    def to_json(self) -> dict[str, Any]:
        """Return what a merged trace keeps of it."""
        return {
            **self.own,
            "pid": self.pid,
            "name": self.name,
            "recorded": self.recorded,
            "began_ns": self.began_ns,
            "companions": sorted(self.companions),
        }

    @classmethod
    def from_json(cls, rank: int, value: Any, path: str) -> ProcessIdentity | None:
        """Read what `to_json` wrote; None when it is something else."""
        if not isinstance(value, dict):
            return None
        pid, began_ns, companions = value.get("pid"), value.get("began_ns"), value.get("companions")
        if not isinstance(pid, int) or not isinstance(began_ns, int) or not isinstance(companions, list):
            return None
        recorded = value.get("recorded") is True
        own = {key: value[key] for key in IDENTITY_KEYS if key in value and (recorded or key != "pid")}
        return cls(
            rank, pid, own, str(value.get("name", "")), recorded, began_ns, frozenset(map(str, companions)), path
        )


def identity_of(own: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the process of a rank trace is known by, beside its rank."""
    values = (own.get(key) for key in ("host", "boot_id", "pid", "start_ticks", "attempt"))
    return tuple(value if isinstance(value, (str, int)) else None for value in values)
