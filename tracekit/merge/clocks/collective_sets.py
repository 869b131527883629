"""The collectives of a merge with all their members, on the merged timeline; and whether their order can be true.

Nobody leaves a collective that synchronises before all have come, and no receive ends before its send has begun. Where the
merged trace shows that by more than the clocks' errors, one of the clocks is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tracekit.collectives.matching import match_near
from tracekit.merge.clocks.links import members_of_groups
from tracekit.merge.report import Causality

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.collectives.parts import Collective
    from tracekit.formats.rank_clock import RankClock
    from tracekit.merge.clocks.links import CollectiveLog
    from tracekit.merge.clocks.placement import Placement

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
    sets = [found.members for found in _gathered(placed, _Everyone) if len(found.members) > 1]
    return sorted(sets, key=lambda members: (members[0].part.end_ns, members[0][:2]))


def check_causality(placed: Placement) -> Causality:
    """Check the order of what collectives and messages between ranks must have in order."""
    beyond = [found.beyond(placed.clocks) for found in _gathered(placed, _Extremes) if found.comes is not None]
    beyond += [
        sent_ns - received_ns - _apart(placed.clocks, sender, receiver)
        for (sender, sent_ns), (receiver, received_ns) in _messages(placed)
    ]
    wrong = [excess for excess in beyond if excess > 0]
    return Causality(len(beyond), len(wrong), max(wrong, default=0))


class _Collection(Protocol):
    def take(self, member: Member, /) -> None: ...


_Kind = TypeVar("_Kind", bound=_Collection)


class _Everyone:
    """All members of a collective."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[Member] = []

    def take(self, member: Member) -> None:
        self.members.append(member)


def _gathered(placed: Placement, kind: Callable[[], _Kind]) -> Iterator[_Kind]:
    """Yield each collective with its members, in the order of ranks; a process group of a rank is in memory at a time."""
    aligned = [log for log in placed.logs if placed.clocks[log.rank].aligned]
    for _, members in sorted(members_of_groups(aligned).items()):
        waiting = members
        # The members of a group without a name may be of several; what is nobody's yet begins a set of its own.
        while len(waiting) > 1:
            (hub, place), *others = waiting
            ours = _merged(placed, hub, place)
            found = {}
            for one in ours:
                found[id(one)] = kind()
                found[id(one)].take(Member(hub.rank, hub.number, one))
            waiting = []
            for log, place in others:
                theirs = _merged(placed, log, place)
                pairs = match_near(ours, theirs, _apart(placed.clocks, hub.rank, log.rank))
                for own, their in pairs:
                    found[id(own)].take(Member(log.rank, log.number, their))
                paired = {id(their) for _, their in pairs}
                left = [number for number, one in enumerate(theirs) if id(one) not in paired]
                if len(left) == len(theirs):
                    waiting.append((log, place))
                elif left:
                    collectives = log.collectives.at(place)
                    waiting.append((log, log.collectives.put(collectives[number] for number in left)))
            yield from found.values()


class _Extremes:
    """Of the members of a collective, who leaves first, and who of the others comes last; of equal ones the first."""

    __slots__ = ("_latest", "leaves")

    def __init__(self) -> None:
        self.leaves: Member | None = None
        self._latest: list[Member] = []

    def take(self, member: Member) -> None:
        if self.leaves is None or member.part.end_ns < self.leaves.part.end_ns:
            self.leaves = member
        latest = self._latest
        if len(latest) < 2 or member.part.start_ns > latest[1].part.start_ns:
            latest.append(member)
            latest.sort(key=lambda one: -one.part.start_ns)
            del latest[2:]

    @property
    def comes(self) -> Member | None:
        return next((member for member in self._latest if member is not self.leaves), None)

    def beyond(self, clocks: Mapping[int, RankClock]) -> int:
        """Return by how much the first end lies before the last start of another member, beyond the clocks' errors."""
        leaves, comes = self.leaves, self.comes
        assert leaves is not None
        assert comes is not None
        return comes.part.start_ns - leaves.part.end_ns - _apart(clocks, comes.rank, leaves.rank)


def _merged(placed: Placement, log: CollectiveLog, place: int) -> list[Collective]:
    return [
        one._replace(start_ns=placed.time_ns(log.number, one.start_ns), end_ns=placed.time_ns(log.number, one.end_ns))
        for one in log.collectives.at(place)
    ]


def _apart(clocks: Mapping[int, RankClock], first: int, second: int) -> int:
    """Return how far the clocks of two ranks can be apart."""
    return sum(clocks[rank].error_ns or 0 for rank in {first, second})


def _messages(placed: Placement) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return who began a send and when, and who ended the receive that has its number, and when.

    Those without a number cannot be told from others.
    """
    sent: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    received: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for log in placed.logs:
        if not placed.clocks[log.rank].aligned:
            continue
        for one in log.collectives.messages():
            if one.sequence is not None:
                key = (one.label.group, one.label.peers, one.sequence)
                if one.label.kind == "send":
                    sent.setdefault(key, []).append((log.rank, placed.time_ns(log.number, one.start_ns)))
                else:
                    received.setdefault(key, []).append((log.rank, placed.time_ns(log.number, one.end_ns)))
    return [
        (sent[key][0], received[key][0])
        for key in sorted(sent, key=str)
        if len(sent[key]) == 1 and len(received.get(key, ())) == 1
    ]
