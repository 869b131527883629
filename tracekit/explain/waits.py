"""Find late members of collectives from the kernels of all members: waiting time and transfer time.

All members leave a collective that synchronises at one moment, so that who is in it for the shortest time has come last, and
the others have waited for it. Durations are enough for that: the clocks need not be synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from tracekit.traces.collectives.collector import by_group
from tracekit.traces.collectives.matching import match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.traces.collectives.collector import Collective


@dataclass(slots=True)
class RankWaits:
    """A rank in the collectives with all members found.

    Attributes:
        late_ns: Its delay behind the median of the other members, in each (negative: earlier).
    """

    wait_ns: int = 0  # time that it waited for the last member, in all of them
    transfer_ns: int = 0  # their time after the last member came
    last: int = 0  # number of collectives where it came last
    late_ns: list[float] = field(default_factory=list)

    @property
    def mean_late_ns(self) -> float:
        """Its mean delay behind the median of the other members."""
        return fmean(self.late_ns) if self.late_ns else 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting in collectives."""

    collectives: int  # number of collectives found in the traces of two members or more
    spread_ns: list[int]  # time between the first and the last member, of each
    ranks: dict[int, RankWaits]  # by rank
    unmatched: list[str]  # why those of some ranks could not be matched, in words


def find_waits(collectives: Mapping[int, list[Collective]]) -> Waits | None:
    """Find the time that each rank waited for others; None where fewer than two ranks have collectives."""
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
    return Waits(len(spreads), spreads, dict(sorted(ranks.items())), unmatched)


def _take(found: dict[int, Collective], ranks: dict[int, RankWaits]) -> int:
    """Add up one collective; returns how far apart the first and the last came."""
    lengths = {rank: one.end_ns - one.start_ns for rank, one in found.items()}
    transfer = min(lengths.values())
    last = min(lengths, key=lambda rank: (lengths[rank], rank))
    ordered = sorted(lengths.values())
    places = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    for rank, length in lengths.items():
        # The median of the others: the sorted lengths without the own one.
        others = fmean(ordered[place + (length <= ordered[place])] for place in places)
        waits = ranks.setdefault(rank, RankWaits())
        waits.wait_ns += length - transfer
        waits.transfer_ns += transfer
        waits.last += rank == last
        waits.late_ns.append(others - length)
    return max(lengths.values()) - transfer
