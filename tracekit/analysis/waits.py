"""Who comes late to the collectives, from the kernels of all members: waiting, and what the transfer itself takes.

All members leave a collective that synchronises at one moment, so that who is in it for the shortest time has come last, and
the others have waited for it. Durations are enough for that: the clocks need not be synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from tracekit.analysis.evidence import chance_above_zero
from tracekit.collectives.matching import match
from tracekit.collectives.parts import by_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.collectives.parts import Collective

__all__ = ["RankWaits", "Waits", "find_waits"]

_LEAST_SETS: Final = 3


@dataclass(slots=True)
class RankWaits:
    """A rank in the collectives of which all members were found.

    Attributes:
        wait_ns: For how long it waited for the last one to come, in all of them together.
        transfer_ns: How long they took when all had come.
        last: In how many of them it came last.
        late_ns: By how much it came later than the median member (negative: earlier), in each.
        chance: How likely it is by chance that it comes so late on average.
    """

    wait_ns: int = 0
    transfer_ns: int = 0
    last: int = 0
    late_ns: list[float] = field(default_factory=list)
    chance: float = 1.0

    @property
    def mean_late_ns(self) -> float:
        """By how much it came later than the median member, on average."""
        return fmean(self.late_ns) if self.late_ns else 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting in collectives.

    Attributes:
        collectives: How many were found in the traces of two members or more.
        spread_ns: How far apart the first and the last member came, of each.
        ranks: By rank.
        unmatched: Why those of some ranks could not be matched, in words.
    """

    collectives: int
    spread_ns: list[int]
    ranks: dict[int, RankWaits]
    unmatched: list[str]


def find_waits(collectives: Mapping[int, list[Collective]]) -> Waits | None:
    """Find who waited for whom.

    Args:
        collectives: Of each rank, in the order of their ends.

    Returns:
        The waiting; None when the traces of fewer than two ranks hold collectives.
    """
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = {}
    for rank, own in sorted(collectives.items()):
        for group, members in by_group(own):
            groups.setdefault(group, {})[rank] = members
    spreads: list[int] = []
    ranks: dict[int, RankWaits] = {}
    unmatched: list[str] = []
    for _, logs in sorted(groups.items()):
        (hub, ours), *others = logs.items()
        sets: dict[int, dict[int, Collective]] = {id(one): {hub: one} for one in ours}
        for rank, theirs in others:
            pairs = match(ours, theirs)
            if isinstance(pairs, str):
                unmatched.append(f"rank {rank}: {pairs}")
                continue
            for one, other in pairs:
                sets[id(one)][rank] = other
        spreads += [_take(found, ranks) for found in sets.values() if len(found) > 1]
    if not spreads:
        return Waits(0, [], {}, unmatched) if unmatched else None
    for waits in ranks.values():
        if len(waits.late_ns) >= _LEAST_SETS:
            waits.chance = min(1.0, chance_above_zero(waits.late_ns) * len(ranks))
    return Waits(len(spreads), spreads, dict(sorted(ranks.items())), unmatched)


def _take(found: dict[int, Collective], ranks: dict[int, RankWaits]) -> int:
    """Add up one collective; returns how far apart the first and the last came."""
    lengths = {rank: one.end_ns - one.start_ns for rank, one in found.items()}
    transfer, middle = min(lengths.values()), median(lengths.values())
    last = min(lengths, key=lambda rank: (lengths[rank], rank))
    for rank, length in lengths.items():
        waits = ranks.setdefault(rank, RankWaits())
        waits.wait_ns += length - transfer
        waits.transfer_ns += transfer
        waits.last += rank == last
        waits.late_ns.append(middle - length)
    return max(lengths.values()) - transfer
