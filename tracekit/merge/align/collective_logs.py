"""Collectives of the ranks of a merge, packed by process group: alignment looks at one group of thousands of ranks at a time."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Final

from tracekit.traces.collectives.collector import by_group, read_collectives, thinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.merge.align.domains import ClockDomain
    from tracekit.merge.input import Input
    from tracekit.traces.collectives.collector import Collective

Group = tuple[str, str]
"""Name and members of a process group."""

_MAX_READ: Final = 20_000
_MAX_OF_GROUP: Final = 300
"""How many collectives of a process group are kept: enough for the clocks, and little for thousands of ranks."""


@dataclass(frozen=True, slots=True)
class CollectiveLog:
    """The collectives of one rank in one input.

    Attributes:
        to_domain_ns: The offset from the time of the file to that of the domain.
        groups: The synchronising collectives of each process group, packed, sorted by group.
        sent: Sends and receives with known partners, packed.
    """

    number: int
    rank: int
    domain: int
    to_domain_ns: int
    groups: dict[Group, bytes]
    sent: bytes

    @staticmethod
    def of(number: int, rank: int, domain: int, to_domain_ns: int, found: list[Collective]) -> CollectiveLog:
        """Pack collectives that are in the order of their ends."""
        groups = {(intern(name), intern(members)): _packed(ones) for (name, members), ones in by_group(found)}
        messages = [one for one in found if one.label.peers is not None]
        return CollectiveLog(number, rank, domain, to_domain_ns, groups, _packed(messages) if messages else b"")

    def of_group(self, group: Group) -> list[Collective]:
        """Return the synchronising collectives of a process group, in the order of their ends."""
        return _unpacked(self.groups[group])

    def messages(self) -> list[Collective]:
        """Return sends and receives with known partners."""
        return _unpacked(self.sent) if self.sent else []


class CollectiveReader:
    """Reads the collectives of inputs, each once."""

    def __init__(self, items: Sequence[Input], domains: Sequence[ClockDomain]) -> None:
        self._items = items
        self._domains = domains
        self._domain_of = {member: place for place, domain in enumerate(domains) for member in domain.members}
        self._read: dict[int, list[CollectiveLog]] = {}
        self.sampled: set[int] = set()
        """The inputs of which only a sample was read."""

    def logs(self, numbers: Iterable[int] = (), *, sampled: bool = True) -> list[CollectiveLog]:
        """Return all logs that were read, after reading some of these inputs, as far as alignment needs them.

        A sample of a large input is enough where ``sampled``.
        """
        for number in numbers:
            if number not in self._read or (number in self.sampled and not sampled):
                self._read[number] = self._logs(number, most=_MAX_READ, sampled=sampled)
        return [log for _, logs in sorted(self._read.items()) for log in logs]

    def every_collective(self) -> list[CollectiveLog]:
        """Return logs of all inputs with every collective."""
        return [log for number in range(len(self._items)) for log in self._logs(number)]

    def _logs(self, number: int, *, most: int | None = None, sampled: bool = False) -> list[CollectiveLog]:
        item, domain = self._items[number], self._domain_of[number]
        if item.kind == "tracekit":  # it holds markers, and no collectives
            return []
        ranks = item.rank_of_pid or None
        found = read_collectives(item.path, ranks, most=most, sampled=True) if sampled else None
        self.sampled.add(number)
        if found is None:
            self.sampled.remove(number)
            found = read_collectives(item.path, ranks, most=most, follow=item.note_end) or {}
        to_domain_ns = (item.base_ns or 0) + self._domains[domain].shifts[number]
        by_rank = {item.rank if rank is None else rank: ones for rank, ones in found.items()}
        return [
            CollectiveLog.of(number, rank, domain, to_domain_ns, ones if most is None else thinned(ones, _MAX_OF_GROUP))
            for rank, ones in by_rank.items()
            if rank in item.ranks  # of an earlier merge, some ranks may not be selected
        ]


def members_of_groups(logs: Iterable[CollectiveLog]) -> dict[Group, list[CollectiveLog]]:
    """Return the members that synchronised in each process group, by rank."""
    groups: dict[Group, list[CollectiveLog]] = {}
    for log in sorted(logs, key=lambda log: (log.rank, log.number)):
        for group in log.groups:
            groups.setdefault(group, []).append(log)
    return groups


def _packed(collectives: list[Collective]) -> bytes:
    return zlib.compress(pickle.dumps(collectives, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(data: bytes) -> list[Collective]:
    found: list[Collective] = pickle.loads(zlib.decompress(data))  # noqa: S301 - packed by this process
    return found
