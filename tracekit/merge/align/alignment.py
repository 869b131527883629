"""Place every clock domain: on the reference's clock if a path leads there, else on its own wall clock.

Pairs of clocks with a known offset are the links of a graph; the best path leads from a clock to the reference.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tracekit.merge.align.clock_map import ClockMap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from tracekit.merge.align.domains import ClockDomain
    from tracekit.merge.align.estimate import ClockEstimate
    from tracekit.merge.input import Input


class Evidence(IntEnum):
    """A source of an offset between two clocks, best first."""

    EARLIER_MERGE = 0
    SYNC = 1
    COLLECTIVES = 2


class Link(NamedTuple):
    """The offset from the clock ``first`` to the clock ``second``."""

    first: Hashable
    second: Hashable
    estimate: ClockEstimate
    evidence: Evidence


class ClockPath(NamedTuple):
    """The way from a clock to the reference: links that follow each other, none for the reference itself."""

    links: tuple[Link, ...] = ()

    @property
    def by_collectives(self) -> bool:
        """True if a link depends on collectives, which give an estimate and not a bound."""
        return any(link.evidence is Evidence.COLLECTIVES for link in self.links)

    def offset_at(self, time_ns: int) -> int:
        """Return what to add to a time."""
        reached = time_ns
        for link in self.links:
            reached += link.estimate.map.offset_at(reached)
        return reached - time_ns

    def error_at(self, time_ns: int) -> int:
        """Return how far that can be off: the errors of all links add up."""
        error, reached = 0, time_ns
        for link in self.links:
            error += link.estimate.error_at(reached)
            reached += link.estimate.map.offset_at(reached)
        return error

    def map_for(self, from_ns: int, to_ns: int) -> ClockMap:
        """Return what to add to the times of a span, as one map."""
        if all(link.estimate.map.is_constant for link in self.links):
            return ClockMap.constant(self.offset_at(from_ns))
        times = {from_ns, to_ns}
        for number, link in enumerate(self.links):
            for time_ns, _ in link.estimate.map.knots:
                reached = time_ns
                for before in reversed(self.links[:number]):
                    reached += before.estimate.map.inverse().offset_at(reached)
                if from_ns < reached < to_ns:
                    times.add(reached)
        return ClockMap(tuple((time_ns, self.offset_at(time_ns)) for time_ns in sorted(times)))


def find_paths(reference: Hashable, links: Iterable[Link]) -> dict[Hashable, ClockPath]:
    """Find the best way to the reference for every clock that has one.

    Best is the one with the fewest links of the worse kind of evidence, of these the one with the least error.
    """
    neighbours: dict[Hashable, list[Link]] = {}
    for link in links:
        back = Link(link.second, link.first, link.estimate.inverse(), link.evidence)
        neighbours.setdefault(link.second, []).append(link)
        neighbours.setdefault(link.first, []).append(back)
    found: dict[Hashable, ClockPath] = {}
    # A number breaks ties, as paths have no order.
    queue: list[tuple[tuple[int, int, int], int, Hashable, ClockPath]] = [((0, 0, 0), 0, reference, ClockPath())]
    pushed = 0
    while queue:
        cost, _, node, path = heapq.heappop(queue)
        if node in found:
            continue
        found[node] = path
        for link in neighbours.get(node, ()):
            if link.first not in found:
                pushed += 1
                of_collectives, of_sync, error_ns = cost
                longer = (
                    of_collectives + (link.evidence is Evidence.COLLECTIVES),
                    of_sync + (link.evidence is Evidence.SYNC),
                    error_ns + link.estimate.error_ns,
                )
                heapq.heappush(queue, (longer, pushed, link.first, ClockPath((link, *path.links))))
    return found


@dataclass(slots=True)
class PlacedDomain:
    """A domain and where it goes.

    Attributes:
        own: The domain.
        path: The way to the reference's clock; where it is not ``aligned``, to that of another domain, or to its own.
        absolute: True if its moved times count from the epoch.
        reason: Why it is not aligned, where that is known.
        among: The ranks that are aligned with each other.
        map: The offset of its times.
        error_ns: The error of this offset.
    """

    own: ClockDomain
    path: ClockPath
    aligned: bool
    absolute: bool = True
    reason: str = ""
    among: list[int] = field(default_factory=list)
    map: ClockMap = field(default_factory=lambda: ClockMap.constant(0))
    error_ns: int = 0


def solve(
    items: Sequence[Input],
    domains: Sequence[ClockDomain],
    reference: int,
    links: Sequence[Link],
    refused: Mapping[int, str],
) -> list[PlacedDomain]:
    """Place every domain.

    Args:
        items: The inputs.
        domains: Their clocks.
        reference: The domain that the others are to be tied to.
        links: Measured offsets between them.
        refused: The reason for a refused offset, by domain.
    """
    placed: dict[int, PlacedDomain] = {}
    # Domains that are tied to each other, but not to the reference, stay so: by the clock of one that counts from the epoch.
    roots = [reference, *sorted(range(len(domains)), key=lambda number: (not domains[number].known, number))]
    for root in roots:
        if root in placed:
            continue
        island = [(other, path) for other, path in find_paths(root, links).items() if isinstance(other, int)]
        ranks = sorted(
            {rank for other, _ in island for member in domains[other].members for rank in items[member].ranks}
        )
        for other, path in island:
            aligned = root == reference
            placed[other] = PlacedDomain(domains[other], path, aligned=aligned, absolute=domains[root].known)
            if not aligned:
                placed[other].reason = refused.get(other, "")
                placed[other].among = ranks if len(island) > 1 else []
            _settle(items, placed[other])
    return [placed[number] for number in range(len(domains))]


def span_of(item: Input) -> tuple[int, int] | None:
    """Return the first and the last start of an input in absolute time (its own, where its clock is unknown)."""
    base_ns = item.base_ns or 0
    low = item.epoch_lowest_ns if item.base_ns == 0 else item.lowest_ns
    if low is None:
        return None
    return base_ns + low, base_ns + max(low, item.highest_ns or low)


def _settle(items: Sequence[Input], domain: PlacedDomain) -> None:
    """Find what to add to the times of a domain: one map for all its inputs, so that they stay together."""
    times = [time + domain.own.shifts[member] for member in domain.own.members for time in span_of(items[member]) or ()]
    low, high = min(times, default=0), max(times, default=0)
    path = domain.path
    domain.map = path.map_for(low, high)
    # Keep a wall clock that differs from the reference's by less than the error: it may be better than the collectives.
    if domain.own.known and domain.aligned and path.by_collectives:
        first = path.links[0].estimate
        measured = (low, high, first.from_ns, first.to_ns)
        if all(abs(domain.map.offset_at(time)) <= path.error_at(time) for time in measured):
            domain.map = ClockMap.constant(0)
    domain.error_ns = max(
        path.error_at(time) + abs(path.offset_at(time) - domain.map.offset_at(time)) for time in (low, high)
    )
