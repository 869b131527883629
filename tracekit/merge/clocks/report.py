"""What is said of the clocks of a merge: of each rank in the report, of each boot for a later merge, and what to be warned of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tracekit.formats.rank_clock import RankClock, stated_ranks
from tracekit.merge.clocks.clock_map import ClockMap
from tracekit.merge.clocks.links import stated_clocks
from tracekit.merge.clocks.solution import span_of
from tracekit.merge.clocks.words import by_path, by_wall, duration, worse
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.merge.clocks.solution import PlacedDomain
    from tracekit.merge.input import Input

__all__ = ["ClockDescriber", "domain_metadata", "flags"]


@dataclass(slots=True)
class ClockDescriber:
    """Says for each rank what places it."""

    items: list[Input]
    placed: list[PlacedDomain]
    reference: int
    align: str
    by_hand: Mapping[int, int]

    def clocks(self, domain_of: dict[int, int], maps: list[ClockMap]) -> dict[int, RankClock]:
        """Return the clock of each rank; of several, as after a restart on another host, the least certain one."""
        clocks: dict[int, RankClock] = {}
        readings = self._reading_errors_ns()
        named = [
            any(self.items[member].host or self.items[member].merged_hosts for member in domain.own.members)
            for domain in self.placed
        ]
        walls = [
            by_wall(domain.own.relation, several=at != self.reference, hosts_known=named[at] and named[self.reference])
            for at, domain in enumerate(self.placed)
        ]
        for number, item in enumerate(self.items):
            domain = self.placed[domain_of[number]]
            start_ns = (span_of(item) or (0, 0))[0]
            offset_ns = maps[number].offset_at(start_ns)
            found = self._of(number, domain, offset_ns, maps[number], walls[domain_of[number]])
            profile = item.scan.profile
            if profile is not None and profile.start_ns is not None and found.error_ns is not None:
                # It goes by the wall clock, of which the rank trace has had one reading.
                error_ns = profile.error_ns + readings.get(item.rank, 0)
                words = f"{found.words}; the XLA profile ± {duration(error_ns)}, from {profile.source}"
                found = replace(found, error_ns=found.error_ns + error_ns, words=words)
            for clock in self._stated(item, domain, found) if item.scan.kind == "merged" else [found]:
                clocks[clock.rank] = worse(clocks.get(clock.rank), clock)
        return clocks

    def _reading_errors_ns(self) -> dict[int, int]:
        """Return how far apart the two clocks were read at most when the rank traces of each rank began."""
        found: dict[int, int] = {}
        for item in self.items:
            clock = item.scan.identity.get("clock") if item.scan.kind == "tracekit" else None
            error_ns = clock.get("error_ns") if isinstance(clock, dict) else None
            if type(error_ns) is int and error_ns < 2**62:
                found[item.rank] = max(found.get(item.rank, 0), error_ns)
        return found

    def _of(self, number: int, domain: PlacedDomain, offset_ns: int, placed: ClockMap, wall: str) -> RankClock:
        item = self.items[number]
        drift_ppm = round(placed.drift_ppm(), 6)
        clock = RankClock(rank=item.rank, source="unknown", aligned=True, offset_ns=offset_ns, drift_ppm=drift_ppm)
        if item.rank in self.by_hand and item.scan.kind != "merged":
            words = f"{duration(offset_ns, sign=True)}, given by hand: error unknown"
            return replace(clock, source="by_hand", words=words)
        if domain.aligned and domain.path.links:
            source, words = by_path(domain.path, offset_ns, drift_ppm, domain.error_ns)
            return replace(clock, source=source, error_ns=domain.error_ns, words=words)
        if not domain.own.known:
            return replace(clock, aligned=False, words="unknown")
        if self.align == "none":
            return replace(clock, source="none", words=wall)
        if domain is self.placed[self.reference]:
            own = item.rank == self.items[domain.own.members[0]].rank
            set_by = domain.own.shifts[number]
            after = f"; {duration(set_by, sign=True)}: the wall clock was set in between" if set_by else ""
            return replace(clock, source="reference" if own else "shared", error_ns=0, words=wall + after)
        return replace(clock, source="wall", aligned=self.align == "wall", words=wall)

    @staticmethod
    def _stated(item: Input, domain: PlacedDomain, found: RankClock) -> list[RankClock]:
        """Return what an earlier merge says of its ranks, and what this one has added."""
        before = {clock.rank: clock for clock in stated_ranks(item.scan.head().header)}
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


def flags(clocks: Mapping[int, RankClock], placed: list[PlacedDomain], items: list[Input]) -> list[str]:
    """Return a warning for the ranks that could not be aligned, by reason."""
    reasons: dict[str, list[int]] = {}
    told: set[int] = set()
    for domain in placed:
        ranks = {rank for member in domain.own.members for rank in items[member].ranks}
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


def domain_metadata(items: list[Input], placed: list[PlacedDomain], maps: list[ClockMap]) -> list[dict[str, Any]]:
    """Return how each boot's clock was placed, for a later merge."""
    stated: list[dict[str, Any]] = []
    for domain in placed:
        first = domain.own.members[0]
        if items[first].scan.kind == "merged":
            for earlier in stated_clocks(items[first]):
                before, now = ClockMap(tuple((time, offset) for time, offset in earlier["knots"])), maps[first]
                times = {time for time, _ in before.knots}
                if not now.is_constant:
                    times |= {time + before.inverse().offset_at(time) for time, _ in now.knots}
                offsets = {time: before.offset_at(time) for time in sorted(times)}
                knots = [[time, offset + now.offset_at(time + offset)] for time, offset in offsets.items()]
                stated.append({**earlier, "knots": knots})
        elif domain.own.boot_id is not None and domain.aligned:
            shift_ns = domain.own.shifts[first]
            knots = [[time + shift_ns, offset - shift_ns] for time, offset in maps[first].knots]
            stated.append(
                {
                    "boot_id": domain.own.boot_id,
                    "monotonic_base_ns": domain.own.monotonic_base_ns,
                    "knots": knots,
                }
            )
    return stated
