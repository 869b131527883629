"""The identity of a process: its key within its rank, and the facts that distinguish it from others of the same pid.

A merged trace keeps both, so that it can be merged further.
"""

from __future__ import annotations

from typing import Any, Final

from tracekit.structs import Struct, field

ProcessKey = tuple[int, int | str]
"""The identity of a process within its rank: (kind, its number or name). It is written into merged traces."""

CPU, GPU, DEVICE, OVERHEAD, PROFILER, CHILD = range(6)

SAME_PID: Final = 2**32
"""Added to the number of a `CPU` process for each earlier process of its rank that had the same pid."""

IDENTITY_KEYS: Final = ("host", "boot_id", "pid", "start_ticks", "attempt", "run_id", "parent_pid", "worker")
"""The metadata of a process that identify it."""


class ProcessIdentity(Struct):
    """A process of a rank."""

    rank: int
    pid: int  # its pid when it ran
    # The host, boot, pid, start, attempt, run, parent and worker that tracekit wrote about it; may be empty.
    own: dict[str, Any]
    name: str  # its name for itself
    recorded: bool  # True if there is a rank trace of it
    began_ns: int  # when it began, as far as is known, ns since the epoch
    companions: frozenset[str] = frozenset()  # names of the other traces that it wrote
    path: str = ""  # a file that it is known from
    number: int = 0  # its place among the processes of its rank that are known before the events; 0 while it is unknown

    @property
    def key(self) -> tuple[Any, ...]:
        """The facts that no other process of any rank shares."""
        return self.rank, *identity_of(self.own)

    @property
    def host(self) -> str | None:
        """Its host, where that is known."""
        host = self.own.get("host")
        return host if isinstance(host, str) else None

    @property
    def is_child(self) -> bool:
        """True for a child of its rank's own process."""
        return isinstance(self.own.get("parent_pid"), int)

    @property
    def is_described(self) -> bool:
        """True if tracekit wrote any fact except the host, which may be known from elsewhere."""
        return any(key != "host" for key in self.own)

    def take(self, other: ProcessIdentity) -> None:
        """Add the facts from another file of the same process."""
        self.began_ns = min(self.began_ns, other.began_ns)
        self.companions |= other.companions

    def to_json(self) -> dict[str, Any]:
        """Return the facts that a merged trace keeps of it."""
        found = {"pid": self.pid, "name": self.name, "recorded": self.recorded, "began_ns": self.began_ns}
        return {**self.own, **found, "companions": sorted(self.companions)}

    @classmethod
    def from_json(cls, rank: int, value: Any, path: str) -> ProcessIdentity | None:
        """Read what `to_json` wrote; None when it is something else."""
        if not isinstance(value, dict):
            return None
        pid, began_ns, companions = value.get("pid"), value.get("began_ns"), value.get("companions")
        if not isinstance(pid, int) or not isinstance(began_ns, int) or not isinstance(companions, list):
            return None
        name, recorded = str(value.get("name", "")), value.get("recorded") is True
        own = {key: value[key] for key in IDENTITY_KEYS if key in value and (recorded or key != "pid")}
        return cls(rank, pid, own, name, recorded, began_ns, frozenset(map(str, companions)), path)


class KnownProcess(Struct):
    """A process of an input that is known before the events are read."""

    rank: int
    key: ProcessKey  # which process of its rank it is
    identity: ProcessIdentity | None = None
    name: str = ""  # its name in an earlier merge
    host: str | None = None  # its host in an earlier merge
    # Its threads in an earlier merge: tid to (tid in the inputs of that, lane).
    threads: dict[int, tuple[int | str, int]] = field(default_factory=dict)


def identity_of(own: dict[str, Any]) -> tuple[Any, ...]:
    """Return the facts that identify the process of a rank trace within its rank."""
    values = map(own.get, ("host", "boot_id", "pid", "start_ticks", "attempt"))
    return tuple(value if isinstance(value, (str, int)) else None for value in values)


def main_thread(key: ProcessKey) -> int | str:
    """Return the thread id of the main thread of a process: its pid as it was recorded."""
    kind, value = key
    if kind == CPU and isinstance(value, int):
        return value % SAME_PID
    if kind == CHILD and isinstance(value, str):
        return int(value.rpartition(" ")[2])
    return value
