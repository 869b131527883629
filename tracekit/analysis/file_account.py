"""What a file says about itself beside its slices: what was lost, and how its clock stands to the others'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.losses import ACCOUNTS, Accounts
from tracekit.formats.rank_trace import CLOCK_OFFSET_EVENT, CLOCK_STEP_EVENT

if TYPE_CHECKING:
    from tracekit.formats.losses import RecordingLoss
    from tracekit.formats.rank_clock import RankClock
    from tracekit.formats.trace_event import Event

__all__ = ["ClockExchange", "FileAccount"]

_MOST: Final = 2**62
_MOST_PROCESSES: Final = 100_000


class ClockExchange(NamedTuple):
    """A comparison with the clock of another rank.

    Attributes:
        offset_ns: What to add to the times of the file to get those of the other rank.
        error_ns: How far that can be off at most.
        reference_rank: The other rank.
        drift_ppb: By how many ns a second the offset grows; None where it was measured once.
    """

    offset_ns: int
    error_ns: int
    reference_rank: int
    drift_ppb: int | None


@dataclass(slots=True)
class FileAccount:
    """What one file says about itself.

    Attributes:
        accounts: What it lacks, in its own words.
        exchanges: How often its clock was compared with another rank's.
        exchange: The comparison with the smallest error; None without any.
        drift_ppb: The drift that was measured last.
        clock_steps: Of each ``pid``, by how much its wall clock was set, or the machine slept: how often, and the largest.
        metadata: Its rank metadata; empty where it has none.
        cut: Whether it ends without its closing bracket.
        start_ns: When its first slice is, in its own time; None where it has none.
        damage: What could not be read, and how often, in the reader's words.
        repairs: What was wrong with it and could be repaired, the same way.
        clocks: The clocks that a merged trace states.
        losses: The losses that a merged trace passes on.
    """

    accounts: Accounts = field(default_factory=Accounts)
    exchanges: int = 0
    exchange: ClockExchange | None = None
    drift_ppb: int | None = None
    clock_steps: dict[Any, tuple[int, int]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    cut: bool = False
    start_ns: int | None = None
    damage: dict[str, int] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)
    clocks: list[RankClock] = field(default_factory=list)
    losses: list[RecordingLoss] = field(default_factory=list)

    def take(self, name: object, args: dict[str, Any], pid: Any) -> None:
        """Take in a metadata event of a process."""
        if name in ACCOUNTS:
            self.accounts.note(str(name), args)
        elif name == CLOCK_OFFSET_EVENT:
            self._take_offset(args)
        elif name == CLOCK_STEP_EVENT and _integer(args.get("step_ns")) is not None:
            count, largest_ns = self.clock_steps.get(pid, (0, 0))
            if count or len(self.clock_steps) < _MOST_PROCESSES:
                self.clock_steps[pid] = count + 1, max(largest_ns, args["step_ns"], key=abs)

    def take_instant(self, event: Event) -> None:
        """Take in an instant, which may be a gap in the recording."""
        self.accounts.note_instant(event)

    def _take_offset(self, args: dict[str, Any]) -> None:
        offset, error, reference = (_integer(args.get(key)) for key in ("offset_ns", "error_ns", "reference_rank"))
        if offset is None or error is None or reference is None or error < 0:
            return
        self.exchanges += 1
        drift = _integer(args.get("drift_ppb"))
        self.drift_ppb = self.drift_ppb if drift is None else drift
        if self.exchange is None or error < self.exchange.error_ns:
            self.exchange = ClockExchange(offset, error, reference, drift)


def _integer(value: object) -> int | None:
    return value if type(value) is int and abs(value) < _MOST else None
