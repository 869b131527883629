"""Rules on flows, the arrows between slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.validation.report import Findings

__all__ = ["Flows"]


class Flows:
    """Looks for flows that are started twice.

    Flows without an end or a start are no problem: most of torch.profiler's are (kineto writes an ``f`` for every runtime
    call).

    Attributes:
        rank_of: The rank of each pid in a merged trace; empty in others.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.rank_of: dict[Any, int] = {}
        # Hashes instead of the keys: one in 2^64 is a small price for a third of the memory.
        self._started: dict[int, tuple[Any, int]] = {}

    def start(self, number: int, pid: Any, category: bytes | None, name: bytes | None, flow: int) -> None:
        """Add an ``s`` event."""
        other, first = self._started.setdefault(hash((category, name, flow)), (pid, number))
        if first != number:
            by, what = ("it", "flow") if other == pid else (f"pid {other}", "rank")
            rank = self.rank_of.get(pid)
            of_input = rank is not None and rank == self.rank_of.get(other)
            self._findings.add(
                "input-flow-duplicate" if of_input else "perfetto-flow-duplicate",
                number,
                f"flow {flow} is started here by pid {pid}, and in event {first} by {by}; give each {what} ids of its own",
            )
