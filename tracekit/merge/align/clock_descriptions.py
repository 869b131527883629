"""Describe the clocks of a merge: each rank in the report, each boot for a later merge, and warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.merged_head import RankClock, stated_ranks
from tracekit.merge.align.clock_map import ClockMap
from tracekit.merge.align.domains import Evidence
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.merge.align.domains import ClockDomain, ClockPath
    from tracekit.merge.input import Input

_MAX_NS: Final = 2**62
_WORST_LAST: Final = (
    "reference",
    "shared",
    "earlier_merge",
    "sync",
    "collectives",
    "by_hand",
    "wall",
    "none",
    "unknown",
)


@dataclass(slots=True)
class ClockDescriber:
    """Says for each rank what places it."""

    items: list[Input]
    domains: list[ClockDomain]
    reference: int
    align: str
    by_hand: Mapping[int, int]

    def clocks(self, domain_of: dict[int, int], maps: list[ClockMap]) -> dict[int, RankClock]:
        """Return the clock of each rank; of several, as after a restart on another host, the least certain one."""
        clocks: dict[int, RankClock] = {}
        readings = self._reading_errors_ns()
        named = [any(self.items[member].names_hosts for member in domain.members) for domain in self.domains]
        walls = [
            _by_wall(domain.relation, several=at != self.reference, hosts_known=named[at] and named[self.reference])
            for at, domain in enumerate(self.domains)
        ]
        for number, item in enumerate(self.items):
            domain = self.domains[domain_of[number]]
            start_ns = (item.span_ns or (0, 0))[0]
            offset_ns = maps[number].offset_at(start_ns)
            found = self._of(number, domain, offset_ns, maps[number], walls[domain_of[number]])
            profile = item.profile
            if profile is not None and profile.start_ns is not None and found.error_ns is not None:
                # It uses the wall clock; the rank trace has one reading of it.
                error_ns = profile.error_ns + readings.get(item.rank, 0)
                words = f"{found.words}; the XLA profile ± {duration(error_ns)}, from {profile.source}"
                found = replace(found, error_ns=found.error_ns + error_ns, words=words)
            for clock in self._stated(item, domain, found) if item.kind == "merged" else [found]:
                clocks[clock.rank] = max(clocks.get(clock.rank, clock), clock, key=_uncertainty)
        return clocks

    def _reading_errors_ns(self) -> dict[int, int]:
        """Return how far apart the two clocks were read at most when the rank traces of each rank began."""
        found: dict[int, int] = {}
        for item in self.items:
            clock = item.identity.get("clock") if item.kind == "tracekit" else None
            error_ns = clock.get("error_ns") if isinstance(clock, dict) else None
            if type(error_ns) is int and error_ns < 2**62:
                found[item.rank] = max(found.get(item.rank, 0), error_ns)
        return found

    def _of(self, number: int, domain: ClockDomain, offset_ns: int, placed: ClockMap, wall: str) -> RankClock:
        item = self.items[number]
        drift_ppm = round(placed.drift_ppm(), 6)
        clock = RankClock(rank=item.rank, source="unknown", aligned=True, offset_ns=offset_ns, drift_ppm=drift_ppm)
        if item.rank in self.by_hand and item.kind != "merged":
            words = f"{duration(offset_ns, sign=True)}, given by hand: error unknown"
            return replace(clock, source="by_hand", words=words)
        if domain.aligned and domain.path.links:
            source, words = _by_path(domain.path, offset_ns, drift_ppm, domain.error_ns)
            return replace(clock, source=source, error_ns=domain.error_ns, words=words)
        if not domain.known:
            return replace(clock, aligned=False, words="unknown")
        if self.align == "none":
            return replace(clock, source="none", words=wall)
        if domain is self.domains[self.reference]:
            own = item.rank == self.items[domain.members[0]].rank
            set_by = domain.shifts[number]
            after = f"; {duration(set_by, sign=True)}: the wall clock was set in between" if set_by else ""
            return replace(clock, source="reference" if own else "shared", error_ns=0, words=wall + after)
        return replace(clock, source="wall", aligned=self.align == "wall", words=wall)

    @staticmethod
    def _stated(item: Input, domain: ClockDomain, found: RankClock) -> list[RankClock]:
        """Return what an earlier merge says of its ranks, and what this one has added."""
        before = {clock.rank: clock for clock in stated_ranks(item.head().header)}
        clocks = []
        for rank in sorted(item.ranks):
            known = before.get(rank)
            if known is None:
                known = RankClock(
                    rank=rank, source="earlier_merge", aligned=True, words="as placed by an earlier merge"
                )
            elif found.offset_ns or domain.path.links or not found.aligned:
                both = (known.error_ns, found.error_ns)
                known = replace(
                    known,
                    source=found.source if known.aligned else known.source,
                    aligned=known.aligned and found.aligned,
                    offset_ns=known.offset_ns + found.offset_ns,
                    drift_ppm=known.drift_ppm + found.drift_ppm,
                    error_ns=None if None in both else sum(both),  # type: ignore[arg-type]
                    words=f"{known.words}; then the earlier merge by {found.words}",
                )
            clocks.append(known)
        return clocks


def flags(clocks: Mapping[int, RankClock], domains: list[ClockDomain], items: list[Input]) -> list[str]:
    """Return a warning for the ranks that could not be aligned, by reason."""
    reasons: dict[str, list[int]] = {}
    told: set[int] = set()
    for domain in domains:
        ranks = {rank for member in domain.members for rank in items[member].ranks}
        if domain.aligned or not domain.absolute:
            told |= ranks if not domain.absolute else set()
            continue
        reason = domain.reason or "no clock exchange with them and no collectives of both"
        if domain.among:
            reason += f"; only {rank_spans(domain.among)} are aligned with each other"
        told |= ranks
        reasons.setdefault(reason, []).extend(rank for rank in ranks if not clocks[rank].aligned)
    before = [rank for rank, clock in clocks.items() if not clock.aligned and rank not in told]
    if before:
        reasons["as the earlier merge says"] = before
    return [
        f"{rank_spans(ranks)} {'is' if len(set(ranks)) == 1 else 'are'} not aligned with the others, their wall clock places "
        f"them: {reason}; give --offset RANK=NS, or --align wall to trust the clocks"
        for reason, ranks in reasons.items()
        if ranks
    ]


def unstated_clocks(items: Sequence[Input], clocks: Mapping[int, RankClock]) -> dict[int, list[RankClock]]:
    """Return the clocks that no earlier merge among the inputs shows yet, by input.

    A merge of a single rank shows no clock.
    """
    merges = [stated_ranks(item.head().header) for item in items if item.kind == "merged"]
    stated = {clock for ranks in merges if len(ranks) > 1 for clock in ranks}
    found: dict[int, list[RankClock]] = {}
    if len(clocks) > 1:
        holders: dict[int, int] = {}
        # An input of the rank alone goes before an earlier merge that holds it.
        for number, item in sorted(enumerate(items), key=lambda numbered: (numbered[1].kind == "merged", numbered[0])):
            for rank in item.ranks:
                holders.setdefault(rank, number)
        for rank, clock in sorted(clocks.items()):
            if clock not in stated and rank in holders:
                found.setdefault(holders[rank], []).append(clock)
    return found


def domain_metadata(items: list[Input], domains: list[ClockDomain], maps: list[ClockMap]) -> list[dict[str, Any]]:
    """Return how each boot's clock was placed, for a later merge."""
    stated: list[dict[str, Any]] = []
    for domain in domains:
        first = domain.members[0]
        if items[first].kind == "merged":
            for earlier in stated_clocks(items[first]):
                before, now = ClockMap(tuple((time, offset) for time, offset in earlier["knots"])), maps[first]
                times = {time for time, _ in before.knots}
                if not now.is_constant:
                    times |= {time + before.inverse().offset_at(time) for time, _ in now.knots}
                offsets = {time: before.offset_at(time) for time in sorted(times)}
                knots = [[time, offset + now.offset_at(time + offset)] for time, offset in offsets.items()]
                stated.append({**earlier, "knots": knots})
        elif domain.boot_id is not None and domain.aligned:
            shift_ns = domain.shifts[first]
            knots = [[time + shift_ns, offset - shift_ns] for time, offset in maps[first].knots]
            stated.append({"boot_id": domain.boot_id, "monotonic_base_ns": domain.monotonic_base_ns, "knots": knots})
    return stated


def stated_clocks(item: Input) -> list[dict[str, Any]]:
    """Return the clocks that an earlier merge states, those of them that can be read."""
    clocks = item.head().header.get("tracekit", {}).get("clocks")
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
            and all(type(value) is int and abs(value) < _MAX_NS for value in knot)
            for knot in knots
        )
        and all(first[0] < second[0] for first, second in pairwise(knots))
    )


def _by_path(path: ClockPath, offset_ns: int, drift_ppm: float, error_ns: int) -> tuple[str, str]:
    worst = max(link.evidence for link in path.links)
    count = min((link.estimate.count for link in path.links if link.evidence is worst), default=0)
    source, evidence = {
        Evidence.EARLIER_MERGE: ("earlier_merge", "as an earlier merge placed that clock"),
        Evidence.SYNC: ("sync", f"from {counted(count, 'clock exchange')}"),
        Evidence.COLLECTIVES: ("collectives", f"from the ends of {counted(count, 'collective')}"),
    }[worst]
    if worst is Evidence.COLLECTIVES and not offset_ns:
        return source, f"wall clock, within {duration(error_ns)} by the ends of {counted(count, 'collective')}"
    drift = f", drift {drift_ppm:+.3f} ppm" if drift_ppm else ""
    through = f", through {counted(len(path.links) - 1, 'other clock')}" if len(path.links) > 1 else ""
    return source, f"{duration(offset_ns, sign=True)} ± {duration(error_ns)}{drift}, {evidence}{through}"


def _by_wall(relation: str, *, several: bool, hosts_known: bool) -> str:
    if several:
        relation = "different hosts: error unknown" if hosts_known else "host unknown"
    return f"wall clock; {relation or 'host unknown'}"


def _uncertainty(clock: RankClock) -> tuple[bool, int, int]:
    place = _WORST_LAST.index(clock.source) if clock.source in _WORST_LAST else len(_WORST_LAST)
    return not clock.aligned, place, clock.error_ns or 0


def duration(ns: int, *, sign: bool = False) -> str:
    """Return a time as people write it: "+137.000 ms"."""
    text = f"{ns:+d} ns" if sign else f"{ns} ns"
    for unit, size, decimals in (("µs", 1_000, 3), ("ms", 1_000_000, 3), ("s", 1_000_000_000, 6)):
        if abs(ns) >= size:
            text = f"{ns / size:+.{decimals}f} {unit}" if sign else f"{ns / size:.1f} {unit}"
    return text
