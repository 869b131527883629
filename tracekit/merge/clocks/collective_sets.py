"""The collectives of a merge with all their members, on the merged timeline; and whether their order can be true.

Nobody leaves a collective that synchronises before all have come, and no receive ends before its send has begun. Where the
merged trace shows that by more than the clocks' errors, one of the clocks is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.collectives.matching import match_near
from tracekit.collectives.parts import by_group
from tracekit.merge.report import Causality

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.collectives.parts import Collective
    from tracekit.merge.clocks.links import CollectiveLog
    from tracekit.merge.clocks.placement import Placement
    from tracekit.merge.clocks.words import RankClock

__all__ = ["Member", "check_causality", "find_sets"]


class Member(NamedTuple):
    """One rank's part of a collective, in merged time (ns after the merge's base).

    Attributes:
        rank: Whose.
        number: In which input.
        part: What it says; times are merged ones.
    """

    rank: int
    number: int
    part: Collective


def find_sets(placed: Placement) -> list[list[Member]]:
    """Return the collectives of which two or more members were read, each in the order of ranks."""
    groups: dict[tuple[str, str], list[tuple[CollectiveLog, list[Collective]]]] = {}
    for log in sorted(placed.logs, key=lambda log: (log.rank, log.number)):
        if placed.clocks[log.rank].aligned:
            for group, collectives in by_group(_merged(placed, log)):
                groups.setdefault(group, []).append((log, collectives))
    sets: list[list[Member]] = []
    for _, logs in sorted(groups.items()):
        waiting = logs
        # The members of a group without a name may be of several; what is nobody's yet begins a set of its own.
        while len(waiting) > 1:
            (hub, ours), *others = waiting
            found = {id(one): [Member(hub.rank, hub.number, one)] for one in ours}
            waiting = []
            for log, theirs in others:
                pairs = match_near(ours, theirs, _apart(placed.clocks, hub.rank, log.rank))
                for own, their in pairs:
                    found[id(own)].append(Member(log.rank, log.number, their))
                paired = {id(their) for _, their in pairs}
                left = [one for one in theirs if id(one) not in paired]
                if left:
                    waiting.append((log, left))
            sets += [members for members in found.values() if len(members) > 1]
    return sorted(sets, key=lambda members: (members[0].part.end_ns, members[0][:2]))


def check_causality(placed: Placement, sets: Sequence[Sequence[Member]]) -> Causality:
    """Check the order of what collectives and messages between ranks must have in order."""
    beyond = [_beyond(placed.clocks, members) for members in sets]
    beyond += [
        sent.part.start_ns - received.part.end_ns - _apart(placed.clocks, sent.rank, received.rank)
        for sent, received in _messages(placed)
    ]
    wrong = [excess for excess in beyond if excess > 0]
    return Causality(len(beyond), len(wrong), max(wrong, default=0))


def _merged(placed: Placement, log: CollectiveLog) -> list[Collective]:
    return [
        one._replace(start_ns=placed.time_ns(log.number, one.start_ns), end_ns=placed.time_ns(log.number, one.end_ns))
        for one in log.collectives
    ]


def _apart(clocks: Mapping[int, RankClock], first: int, second: int) -> int:
    """Return how far the clocks of two ranks can be apart."""
    return sum(clocks[rank].error_ns or 0 for rank in {first, second})


def _beyond(clocks: Mapping[int, RankClock], members: Sequence[Member]) -> int:
    """Return by how much the first end lies before the last start of another member, beyond the clocks' errors."""
    leaves = min(members, key=lambda member: member.part.end_ns)
    comes = max((member for member in members if member is not leaves), key=lambda member: member.part.start_ns)
    return comes.part.start_ns - leaves.part.end_ns - _apart(clocks, comes.rank, leaves.rank)


def _messages(placed: Placement) -> list[tuple[Member, Member]]:
    """Return sends and their receives, matched by their numbers; those without one cannot be told from others."""
    sent: dict[tuple[Any, ...], list[Member]] = {}
    received: dict[tuple[Any, ...], list[Member]] = {}
    for log in placed.logs:
        if not placed.clocks[log.rank].aligned:
            continue
        for one in _merged(placed, log):
            if one.label.peers is not None and one.sequence is not None:
                side = sent if one.label.kind == "send" else received
                key = (one.label.group, one.label.peers, one.sequence)
                side.setdefault(key, []).append(Member(log.rank, log.number, one))
    return [
        (sent[key][0], received[key][0])
        for key in sorted(sent, key=str)
        if len(sent[key]) == 1 and len(received.get(key, ())) == 1
    ]
