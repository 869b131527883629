"""Where every clock domain goes: the reference's clock where something ties it to that, else its own wall clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.merge.clocks.clock_map import ClockMap
from tracekit.merge.clocks.graph import ClockPath, Link, find_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.merge.clocks.domains import ClockDomain
    from tracekit.merge.input import Input

__all__ = ["PlacedDomain", "solve", "span_of"]


@dataclass(slots=True)
class PlacedDomain:
    """A domain and where it goes.

    Attributes:
        own: The domain.
        path: The way to the reference's clock; where it is not ``aligned``, to that of another domain, or to its own.
        absolute: Whether its times, once moved, count from the epoch.
        reason: Why it is not aligned, where that is known.
        among: The ranks that are aligned with each other.
        map: What is added to its times.
        error_ns: How far that can be off.
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
        links: What ties them to each other.
        refused: Why something could not tie a domain to another.
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
    base_ns = item.scan.base_ns or 0
    low = item.scan.epoch_lowest_ns if item.scan.base_ns == 0 else item.scan.lowest_ns
    if low is None:
        return None
    return base_ns + low, base_ns + max(low, item.scan.highest_ns or low)


def _settle(items: Sequence[Input], domain: PlacedDomain) -> None:
    """Find what to add to the times of a domain: one map for all its inputs, so that they stay together."""
    times = [time + domain.own.shifts[member] for member in domain.own.members for time in span_of(items[member]) or ()]
    low, high = min(times, default=0), max(times, default=0)
    path = domain.path
    domain.map = path.map_for(low, high)
    # A wall clock that the collectives cannot tell from the reference's is left as it is: it may well be better than they.
    if domain.own.known and domain.aligned and path.by_collectives:
        first = path.links[0].estimate
        measured = (low, high, first.from_ns, first.to_ns)
        if all(abs(domain.map.offset_at(time)) <= path.error_at(time) for time in measured):
            domain.map = ClockMap.constant(0)
    domain.error_ns = max(
        path.error_at(time) + abs(path.offset_at(time) - domain.map.offset_at(time)) for time in (low, high)
    )
