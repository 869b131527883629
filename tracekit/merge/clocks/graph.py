"""From what pairs of clocks say of each other to what every clock says of one: the best way through the graph of pairs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from tracekit.merge.clocks.clock_map import ClockMap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tracekit.merge.clocks.estimate import ClockEstimate

__all__ = ["ClockPath", "Evidence", "Link", "find_paths"]


class Evidence(IntEnum):
    """What says how two clocks stand to each other, best first."""

    EARLIER_MERGE = 0
    SYNC = 1
    COLLECTIVES = 2


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of two clocks: what to add to the times of ``first`` to get those of ``second``."""

    first: Hashable
    second: Hashable
    estimate: ClockEstimate
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ClockPath:
    """The way from a clock to the reference: links that follow each other, none for the reference itself."""

    links: tuple[Link, ...] = ()

    @property
    def by_collectives(self) -> bool:
        """Whether a link is by collectives: an estimate, not a measurement that is bounded."""
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
    # A number breaks ties, so that paths need no order of their own.
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
