"""Find the best path from each clock to the reference. Pairs of clocks with a known offset are the links of a graph."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tracekit.merge.align.clock_map import ClockMap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tracekit.merge.align.estimate import ClockEstimate


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
