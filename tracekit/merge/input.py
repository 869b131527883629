"""Input: one file that is merged, with what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.event_fields import raw_number
from tracekit.formats.xprof import host_in_name
from tracekit.merge.identities import IDENTITY_KEYS, ProcessIdentity
from tracekit.storage import basename

if TYPE_CHECKING:
    from tracekit.merge.kept_scan import KeptScan
    from tracekit.merge.process_key import ProcessKey

__all__ = ["Input", "Omission"]

_KIND_ORDER: Final = {"tracekit": 0, "torch": 1, "chrome": 2, "flight recorder": 2, "xprof": 2, "merged": 3}


@dataclass(slots=True)
class Input:
    """One input of a merge.

    Attributes:
        path: The file or URL as it is opened.
        scan: What the first pass found.
        rank: Whose it is.
        rank_source: What said so.
        merged_processes: For an earlier merge: new pid to (rank, process key, name) of its processes.
        merged_hosts: Of an earlier merge: new pid to the host of the process.
        process_keys: Which process a pid of the file is, where the pid alone does not tell.
        identities: What is known of its processes, by pid as it stands in the file.
        unwanted_pids: For an earlier merge: the pids of the ranks that are not selected.
    """

    path: str
    scan: KeptScan
    rank: int = -1
    rank_source: str = ""
    merged_processes: dict[int, tuple[int, ProcessKey, str]] = field(default_factory=dict)
    merged_hosts: dict[int, str] = field(default_factory=dict)
    process_keys: dict[int, ProcessKey] = field(default_factory=dict)
    identities: dict[int, ProcessIdentity] = field(default_factory=dict)
    unwanted_pids: frozenset[Any] = frozenset()

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks whose events it holds."""
        return frozenset(rank for rank, _, _ in self.merged_processes.values()) or frozenset({self.rank})

    def rank_of(self, pid: Any) -> int:
        """Return the rank of a process, by its pid as it stands in the file."""
        known = self.merged_processes.get(raw_number(pid))
        return self.rank if known is None else known[0]

    @property
    def host(self) -> str | None:
        """The host's name, where the file tells."""
        host = self.scan.identity.get("host") or self.scan.host_name
        if host is None and self.scan.kind == "xprof":
            host = host_in_name(self.path)
        return host if isinstance(host, str) else None

    @property
    def pids(self) -> frozenset[int]:
        """The real process ids that it recorded."""
        return frozenset(pid for pid, _ in self.scan.named_pids)

    @property
    def order(self) -> tuple[Any, ...]:
        """The place in the output; it does not depend on the order in which the inputs were named."""
        scan = self.scan
        return (self.rank, _KIND_ORDER[scan.kind], scan.start_ns or scan.lowest_ns or 0, basename(self.path), self.path)

    def identity(self, pid: int) -> ProcessIdentity:
        """Return the identity of a process, by its pid as it ran: of a rank trace or a trace of torch."""
        told = self.scan.identity
        own: dict[str, Any] = {key: told[key] for key in IDENTITY_KEYS if key in told}
        if self.host is not None:
            own.setdefault("host", self.host)
        clock = told.get("clock")
        wall_ns = clock.get("wall_ns") if isinstance(clock, dict) else None
        began_ns = max(wall_ns if isinstance(wall_ns, int) else self.scan.start_ns or 0, 0)
        name = next((name for named, name in self.scan.named_pids if named == pid), None) or ""
        companions = frozenset(basename(name) for name in self.scan.companions)
        return ProcessIdentity(
            self.rank, pid, own, name, self.scan.kind == "tracekit", began_ns, companions, self.scan.path
        )


@dataclass(frozen=True, slots=True)
class Omission:
    """A file that is not in the merged trace.

    Attributes:
        path: The file.
        reason: Why.
        harmless: Whether nothing of the run is missing because of it, as for a report that lies among the traces.
        requested: Whether it is left out because the selection says so.
    """

    path: str
    reason: str
    harmless: bool
    requested: bool = False
