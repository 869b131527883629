"""The account of a file about itself: its recordings, losses and clocks, as it states them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.merged_head import ACCOUNTS, PROCESS_EVENT, Accounts, stated_losses, stated_ranks
from tracekit.formats.rank_trace import CLOCK_OFFSET_EVENT, CLOCK_STEP_EVENT
from tracekit.structs import Struct, asdict, astuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.formats.json.reader import TraceReader

_MAX: Final = 2**62
_MAX_PROCESSES: Final = 100_000
_PROCESS_KEYS: Final = ("host", "boot_id", "pid", "start_ticks", "attempt")


class Recording(Struct, frozen=True):
    """A recording of a process by tracekit."""

    rank: int  # its rank
    run_id: str  # its run; empty if that is unknown
    process: tuple[str | int | None, ...]  # host, boot, pid, start and attempt, which together are those of one process

    @property
    def known(self) -> bool:
        """True if the process can be distinguished from others."""
        return isinstance(self.process[_PROCESS_KEYS.index("pid")], int)

    @classmethod
    def of(cls, rank: int, own: dict[str, Any]) -> Recording:
        """Return the recording that rank metadata, or the identity of a process in a merged trace, states."""
        run_id = own.get("run_id")
        values = (own.get(key) for key in _PROCESS_KEYS)
        return cls(
            rank,
            run_id if isinstance(run_id, str) else "",
            tuple(value if isinstance(value, (str, int)) else None for value in values),
        )


class AccountCollector:
    """Collects the account of a file from its metadata events."""

    def __init__(self) -> None:
        self._accounts = Accounts()
        self._processes: list[dict[str, Any]] = []
        self._exchanges: list[tuple[int, int, int]] = []  # error, offset and reference of each comparison of clocks
        self._drift_ppb: int | None = None
        self._clock_steps: dict[Any, tuple[int, int]] = {}

    def take(self, name: str, args: dict[str, Any], pid: Any) -> None:
        """Process a metadata event."""
        if name in ACCOUNTS:
            self._accounts.note(name, args)
        elif name == PROCESS_EVENT:
            self._processes.append(args)
        elif name == CLOCK_OFFSET_EVENT:
            offset, error, reference = (_integer(args.get(key)) for key in ("offset_ns", "error_ns", "reference_rank"))
            if offset is not None and error is not None and reference is not None and error >= 0:
                drift = _integer(args.get("drift_ppb"))
                self._drift_ppb = self._drift_ppb if drift is None else drift
                self._exchanges.append((error, offset, reference))
        elif name == CLOCK_STEP_EVENT and (step := _integer(args.get("step_ns"))) is not None:
            count, largest = self._clock_steps.get(pid, (0, 0))
            if count or len(self._clock_steps) < _MAX_PROCESSES:
                self._clock_steps[pid] = count + 1, max(largest, step, key=abs)

    def result(
        self, reader: TraceReader, metadata: dict[str, Any], rank: int | None, ranks: Mapping[Any, int] | None
    ) -> dict[str, Any]:
        """Return the account as a JSON document, after the end of the file.

        Returns:
            ``metadata``; ``recordings``: rank, run and process of each; ``losses`` and ``clocks`` of a merged trace;
            ``exchange``: offset_ns, error_ns, reference_rank, count and drift_ppb of the best comparison of clocks;
            ``clock_steps``: rank, count and largest_ns; ``summary``, ``lost_events`` and ``is_dump`` of a recording;
            ``damage``: the number of unreadable places of each kind; ``is_cut``.
        """
        steps: dict[int | None, tuple[int, int]] = {}
        for pid, (count, largest) in self._clock_steps.items():
            of = rank if ranks is None else ranks.get(pid)
            before, most = steps.get(of, (0, 0))
            steps[of] = before + count, max(most, largest, key=abs)
        best: dict[str, int | None] | None = None
        if self._exchanges:
            error, offset, reference = min(self._exchanges, key=lambda one: one[0])
            best = {"error_ns": error, "offset_ns": offset, "reference_rank": reference}
            best |= {"count": len(self._exchanges), "drift_ppb": self._drift_ppb}
        recordings = self._recordings(reader.header, metadata, rank if ranks is None else None)
        losses = [] if ranks is None else stated_losses(reader.header, set(ranks.values()))
        return {
            "metadata": metadata,
            "recordings": [astuple(one) for one in recordings],
            "losses": [asdict(one) for one in losses],
            "clocks": [] if ranks is None else [clock.to_json() for clock in stated_ranks(reader.header)],
            "exchange": best,
            "clock_steps": [(of, *values) for of, values in steps.items()],
            "summary": self._accounts.summary,
            "lost_events": self._accounts.lost_events,
            "is_dump": self._accounts.is_dump,
            "damage": {drop.kind: drop.count for drop in reader.drops},
            "is_cut": any(repair.kind == "cut_file" for repair in reader.repairs),
        }

    def _recordings(self, header: dict[str, Any], metadata: dict[str, Any], rank: int | None) -> list[Recording]:
        if rank is not None:
            return [Recording.of(rank, metadata)] if "run_id" in metadata else []
        own = header.get("tracekit")
        table = self._processes or (own.get("processes") if isinstance(own, dict) else None)
        return [
            Recording.of(entry["rank"], entry["identity"])
            for entry in (table if isinstance(table, list) else [])
            if isinstance(entry, dict)
            and isinstance(entry.get("rank"), int)
            and isinstance(entry.get("identity"), dict)
            and entry["identity"].get("recorded") is True
        ]


def _integer(value: object) -> int | None:
    return value if type(value) is int and abs(value) < _MAX else None
