"""Find late members of collectives from the kernels of all members: waiting time and transfer time.

All members leave a collective that synchronises at one moment, so that who is in it for the shortest time has come last, and
the others have waited for it. Durations are enough for that: the clocks need not be synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from tracekit.explain.stragglers_results import CollectiveReport, Member
from tracekit.traces.collectives.collector import by_group
from tracekit.traces.collectives.matching import match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.traces.collectives.collector import Collective


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting in collectives."""

    report: CollectiveReport | None  # None where no collective was found on two ranks or more
    late_ns: dict[int, list[float]]  # of each rank, its delay behind the median of the other members in each collective
    unmatched: list[str]  # why those of some ranks could not be matched, in words


def find_waits(collectives: Mapping[int, list[Collective]]) -> Waits:
    """Find the time that each rank waited for others, from its collectives in the order of their ends."""
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = {}
    for rank, own in sorted(collectives.items()):
        for group, found in by_group(own):
            groups.setdefault(group, {})[rank] = found
    matched: list[dict[int, Collective]] = []
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
        matched += [one for one in sets.values() if len(one) > 1]
    late: dict[int, list[float]] = {}
    sums: dict[int, list[int]] = {}  # of each rank: the time that it waited, the time after, and how often it came last
    spreads = sorted(_take(one, late, sums) for one in matched)
    if not spreads:
        return Waits(None, {}, unmatched)
    members = [
        Member(
            rank=rank,
            count=len(late[rank]),
            wait_ns=wait_ns,
            transfer_ns=transfer_ns,
            last=last,
            mean_late_ns=fmean(late[rank]),
        )
        for rank, (wait_ns, transfer_ns, last) in sorted(sums.items())
    ]
    middle = spreads[len(spreads) // 2]
    report = CollectiveReport(
        count=len(spreads), spread_median_ns=middle, spread_longest_ns=spreads[-1], members=members
    )
    return Waits(report, late, unmatched)


def _take(found: dict[int, Collective], late: dict[int, list[float]], sums: dict[int, list[int]]) -> int:
    """Add up one collective; returns how far apart the first and the last came."""
    lengths = {rank: one.end_ns - one.start_ns for rank, one in found.items()}
    transfer = min(lengths.values())
    last = min(lengths, key=lambda rank: (lengths[rank], rank))
    ordered = sorted(lengths.values())
    places = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    for rank, length in lengths.items():
        # The median of the others: the sorted lengths without the own one.
        others = fmean(ordered[place + (length <= ordered[place])] for place in places)
        late.setdefault(rank, []).append(others - length)
        before = sums.get(rank, [0, 0, 0])
        sums[rank] = [before[0] + length - transfer, before[1] + transfer, before[2] + (rank == last)]
    return max(lengths.values()) - transfer
