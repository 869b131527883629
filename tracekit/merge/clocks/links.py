"""What the inputs of a merge say of each other's clocks: the measurements of ClockSync, and collectives in torch's traces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.collectives.matching import match
from tracekit.merge.clocks.clock_map import ClockMap
from tracekit.merge.clocks.domains import monotonic_base_ns
from tracekit.merge.clocks.estimate import ClockEstimate, SyncPoint, estimate_from_ends, estimate_from_sync
from tracekit.merge.clocks.graph import Evidence, Link
from tracekit.storage import basename

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tracekit.collectives.parts import Collective
    from tracekit.merge.clocks.domains import ClockDomain
    from tracekit.merge.clocks.kept_collectives import Group, KeptCollectives
    from tracekit.merge.input import Input

__all__ = [
    "CollectiveLog",
    "barrier_links",
    "collective_links",
    "earlier_links",
    "members_of_groups",
    "stated_clocks",
    "sync_links",
]

_MOST: Final = 2**62
_MOST_HUBS: Final = 8
_RANK: Final = re.compile(r"rank[-_=]?\d+", re.IGNORECASE)
_ROUNDED_US: Final = 2
"""Composer writes whole microseconds: the bound, and the readings that it bounds."""
_SYNC_KEYS: Final = ("monotonic_ns", "offset_ns", "monotonic_offset_ns", "error_ns", "round_trips", "reference_rank")


@dataclass(frozen=True, slots=True)
class CollectiveLog:
    """The collectives of one rank in one input.

    Attributes:
        number: The input's place.
        rank: Whose they are.
        domain: Place of the domain of its clock.
        to_domain_ns: What to add to the times of the file to get those of the domain.
        collectives: What is known of them.
    """

    number: int
    rank: int
    domain: int
    to_domain_ns: int
    collectives: KeptCollectives


def sync_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> list[Link]:
    """Return what the clock exchanges of rank traces say. Where the reference is no input, it is a clock of its own."""
    boots = {domain.boot_id: number for number, domain in enumerate(domains) if domain.monotonic_base_ns is not None}
    recorders: dict[int, set[int]] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            if items[member].scan.kind == "tracekit":
                recorders.setdefault(items[member].rank, set()).add(number)
    points: dict[tuple[int, Hashable], list[SyncPoint]] = {}
    outside: dict[Hashable, int] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            own_ns = monotonic_base_ns(items[member])
            if own_ns is None:
                continue
            base_ns = domain.monotonic_base_ns if domain.monotonic_base_ns is not None else own_ns
            for measured in items[member].scan.clock_offsets():
                if not _is_sync(measured):
                    continue
                boot, rank = measured.get("reference_boot_id"), measured["reference_rank"]
                boot = boot if isinstance(boot, str) else None
                target: Hashable = boots.get(boot) if boot is not None else None
                if target is not None:
                    target_ns = domains[boots[boot]].monotonic_base_ns or 0
                elif boot is None and len(recorders.get(rank, ())) == 1:
                    target = next(iter(recorders[rank]))
                    target_ns = own_ns + measured["offset_ns"] - measured["monotonic_offset_ns"]
                else:
                    target = ("reference", rank, boot)
                    target_ns = outside.setdefault(
                        target, own_ns + measured["offset_ns"] - measured["monotonic_offset_ns"]
                    )
                if target == number:
                    continue
                at_ns = measured["monotonic_ns"] + base_ns
                offset_ns = measured["monotonic_offset_ns"] + target_ns - base_ns
                points.setdefault((number, target), []).append(SyncPoint(at_ns, offset_ns, measured["error_ns"]))
    return [
        Link(first, second, estimate_from_sync(found), Evidence.SYNC)
        for (first, second), found in sorted(points.items(), key=str)
    ]


class _Barrier(NamedTuple):
    """One reading of the clock after a barrier of Composer.

    Attributes:
        window: The file without its rank, and which barrier of the file: the same for all ranks.
        domain: The index of the clock domain.
        time_ns: The reading, in the time of the domain.
        error_ns: All ranks left the barrier within this time.
    """

    window: tuple[str, int]
    domain: int
    time_ns: int
    error_ns: int


def barrier_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> tuple[list[Link], dict[int, str]]:
    """Return what the barriers of Composer's JSONTraceHandler say, and for each domain why some of it could not be used.

    Each rank reads its clock between two barriers, so all of these readings lie within the two barriers of every rank.
    """
    ranks: dict[int, list[_Barrier]] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            item = items[member]
            window = _RANK.sub("", basename(item.path))
            for count, (time_us, error_us) in enumerate(item.scan.barriers()):
                found = _Barrier(
                    (window, count), number, 1000 * time_us + domain.shifts[member], 1000 * (error_us + _ROUNDED_US)
                )
                ranks.setdefault(item.rank, []).append(found)
    if len(ranks) < 2:
        return [], {}
    # The rank that comes last to the barriers waits least, so its bound is the smallest.
    hub = min(ranks, key=lambda rank: (-len(ranks[rank]), sum(one.error_ns for one in ranks[rank]), rank))
    points: dict[tuple[int, int], list[SyncPoint]] = {}
    refused: dict[int, str] = {}
    for rank, own in sorted(ranks.items()):
        pairs = _same_barriers(own, ranks[hub])
        if not pairs:
            reason = f"nothing tells which barriers of Composer ranks {min(rank, hub)} and {max(rank, hub)} share"
            refused.update((one.domain, reason) for one in (*own, *ranks[hub]))
        for one, other in pairs:
            if one.domain != other.domain:
                point = SyncPoint(one.time_ns, other.time_ns - one.time_ns, min(one.error_ns, other.error_ns))
                points.setdefault((one.domain, other.domain), []).append(point)
    links = [Link(*pair, estimate_from_sync(found), Evidence.SYNC) for pair, found in sorted(points.items())]
    return links, refused


def _same_barriers(own: list[_Barrier], others: list[_Barrier]) -> list[tuple[_Barrier, _Barrier]]:
    """Pair the barriers by the names of the files; by their order where the names differ, and both have all."""
    by_window = {one.window: one for one in others}
    pairs = [(one, by_window[one.window]) for one in own if one.window in by_window]
    if len({one.window for one in own}) == len(own) and len(by_window) == len(others) and pairs:
        return pairs
    by_time = [sorted(ones, key=lambda one: one.time_ns) for ones in (own, others)]
    return list(zip(*by_time, strict=True)) if len(own) == len(others) else []


def _is_sync(measured: dict[str, Any]) -> bool:
    numbers = [measured.get(key) for key in _SYNC_KEYS]
    return (
        all(type(number) is int and abs(number) < _MOST for number in numbers)
        and measured["round_trips"] > 0
        and measured["error_ns"] >= 0
    )


def earlier_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> list[Link]:
    """Return how the clocks of inputs were placed by an earlier merge that is an input as well."""
    links = []
    for number, domain in enumerate(domains):
        item = items[domain.members[0]]
        if item.scan.kind != "merged":
            continue
        for placed in stated_clocks(item):
            for other, candidate in enumerate(domains):
                if candidate.boot_id is None or candidate.boot_id != placed.get("boot_id"):
                    continue
                then_ns, now_ns = placed.get("monotonic_base_ns"), candidate.monotonic_base_ns
                moved_ns = then_ns - now_ns if isinstance(then_ns, int) and isinstance(now_ns, int) else 0
                knots = tuple((time - moved_ns, offset + moved_ns) for time, offset in placed["knots"])
                known = ClockEstimate(ClockMap(knots), knots[0][0], knots[-1][0], 0, 0, 1)
                links.append(Link(other, number, known, Evidence.EARLIER_MERGE))
    return links


def stated_clocks(item: Input) -> list[dict[str, Any]]:
    """Return the clocks that an earlier merge states, those of them that can be read."""
    clocks = item.scan.head().header.get("tracekit", {}).get("clocks")
    found = clocks.get("domains") if isinstance(clocks, dict) else None
    return (
        [one for one in found if isinstance(one, dict) and _is_map(one.get("knots"))] if isinstance(found, list) else []
    )


def _is_map(knots: Any) -> bool:
    return (
        isinstance(knots, list)
        and bool(knots)
        and all(
            isinstance(knot, list)
            and len(knot) == 2
            and all(type(value) is int and abs(value) < _MOST for value in knot)
            for knot in knots
        )
        and all(first[0] < second[0] for first, second in pairwise(knots))
    )


def collective_links(logs: Sequence[CollectiveLog]) -> tuple[list[Link], dict[int, str]]:
    """Return what matched collectives say, and for each domain why some of it could not be used.

    In each process group, one rank of each domain is compared with the lowest rank; where that fails, with the next ones.
    """
    groups = members_of_groups(logs)
    links: list[Link] = []
    refused: dict[int, str] = {}
    for _, members in sorted(groups.items()):
        waiting = list(members)
        for _ in range(_MOST_HUBS):
            if len({log.domain for log, _ in waiting}) < 2:
                break
            hub, place = waiting.pop(0)
            ours = hub.collectives.at(place)
            linked = set()
            for log, place in waiting:
                if log.domain == hub.domain or log.domain in linked:
                    continue
                estimate = _compare(hub, ours, log, log.collectives.at(place))
                if isinstance(estimate, str):
                    refused[log.domain] = f"{estimate} (ranks {hub.rank} and {log.rank})"
                else:
                    linked.add(log.domain)
                    links.append(Link(log.domain, hub.domain, estimate, Evidence.COLLECTIVES))
            waiting = [(log, place) for log, place in waiting if log.domain not in linked]
    return links, refused


def members_of_groups(logs: Iterable[CollectiveLog]) -> dict[Group, list[tuple[CollectiveLog, int]]]:
    """Return for each process group who synchronised in it, by rank, and the place of what is known of that."""
    groups: dict[Group, list[tuple[CollectiveLog, int]]] = {}
    for log in sorted(logs, key=lambda log: (log.rank, log.number)):
        for group, place in log.collectives.groups:
            groups.setdefault(group, []).append((log, place))
    return groups


def _compare(
    hub: CollectiveLog, ours: list[Collective], log: CollectiveLog, theirs: list[Collective]
) -> ClockEstimate | str:
    pairs = match(ours, theirs)
    if isinstance(pairs, str):
        return pairs
    return estimate_from_ends(
        [(their.end_ns + log.to_domain_ns, own.end_ns + hub.to_domain_ns) for own, their in pairs]
    )
