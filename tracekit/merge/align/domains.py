"""Clock domains: the inputs with one clock (the files of a process, the ranks of a host and boot, an earlier merge).

Within a domain nothing has to be estimated. tracekit stamps with the monotonic clock, which all processes of a boot share,
and its files say how that stood to the wall clock when they began; so ranks that began before and after the wall clock was
set still fit together, and so do torch's traces, which go by the wall clock all the time.

Pairs of domains with a known offset are the links of a graph. The best path through it places a domain on the reference's clock.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from enum import IntEnum
from itertools import count
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.structs import Struct, field

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from tracekit.merge.scan.input import Input

_NO_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain"})  # names that every host may have

_BEYOND_NS: Final = 1_000_000_000_000
"""How far the outer knots of a map lie from its span: a drift between two near ones would be lost in whole nanoseconds."""


class ClockMap(Struct, frozen=True):
    """An offset as a function of time: linear between knots, and beyond them as between the last two.

    A later time never becomes an earlier one, and times that are equal stay so: slices nest as before.
    """

    # At least one pair of a time and what to add to it, ns, sorted by time; one pair is a constant.
    knots: tuple[tuple[int, int], ...]

    @staticmethod
    def constant(offset_ns: int) -> ClockMap:
        """Return the map that adds the same to all times."""
        return ClockMap(((0, offset_ns),))

    @property
    def is_constant(self) -> bool:
        """True if the offset never changes."""
        return len({offset for _, offset in self.knots}) == 1

    def offset_at(self, time_ns: int) -> int:
        """Return what to add to a time."""
        knots = self.knots
        if len(knots) == 1:
            return knots[0][1]
        after = min(max(bisect_right(knots, time_ns, key=itemgetter(0)), 1), len(knots) - 1)
        (from_ns, first), (to_ns, last) = knots[after - 1], knots[after]
        return first + (last - first) * (time_ns - from_ns) // (to_ns - from_ns)

    def drift_ppm(self, from_ns: int | None = None, to_ns: int | None = None) -> float:
        """Return by how many µs a second the offset grows between two times: by default the first and the last knot."""
        from_ns = self.knots[0][0] if from_ns is None else from_ns
        to_ns = self.knots[-1][0] if to_ns is None else to_ns
        grown_ns = self.offset_at(to_ns) - self.offset_at(from_ns)
        return 0.0 if from_ns == to_ns else grown_ns / (to_ns - from_ns) * 1e6

    def inverse(self) -> ClockMap:
        """Return the way back; to the nanosecond where this map is constant, to one more where it is not."""
        return ClockMap(tuple((time + offset, -offset) for time, offset in self.knots))


class ClockEstimate(Struct, frozen=True):
    """The offset from one clock to another."""

    map: ClockMap  # the offset as a function of the first clock's time
    from_ns: int  # the time of the first and the last measurement, on the first clock
    to_ns: int
    error_ns: int  # the error between these times
    wander_ppb: int  # the growth of the error with each second before or after them, in ns
    count: int

    def error_at(self, time_ns: int) -> int:
        """Return how far the offset can be off at a time."""
        away_ns = max(self.from_ns - time_ns, time_ns - self.to_ns, 0)
        return self.error_ns + -(-self.wander_ppb * away_ns // 1_000_000_000)

    def inverse(self) -> ClockEstimate:
        """Return what the second clock says of the first."""
        start, end = (time + self.map.offset_at(time) for time in (self.from_ns, self.to_ns))
        return ClockEstimate(self.map.inverse(), start, end, self.error_ns, self.wander_ppb, self.count)


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
        """Return what to add to the times of a span, as one map.

        The span may be that of the first and the last event of a file without an order, so the map holds far beyond it.
        """
        if all(link.estimate.map.is_constant for link in self.links):
            return ClockMap.constant(self.offset_at(from_ns))
        from_ns, to_ns = from_ns - _BEYOND_NS, to_ns + _BEYOND_NS
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
    ties = count()  # paths have no order
    queue: list[tuple[tuple[int, ...], int, Hashable, ClockPath]] = [((0, 0, 0), next(ties), reference, ClockPath())]
    while queue:
        cost, _, node, path = heapq.heappop(queue)
        if node in found:
            continue
        found[node] = path
        for link in neighbours.get(node, ()):
            if link.first not in found:
                kinds = link.evidence is Evidence.COLLECTIVES, link.evidence is Evidence.SYNC
                longer = tuple(map(add, cost, (*kinds, link.estimate.error_ns)))
                heapq.heappush(queue, (longer, next(ties), link.first, ClockPath((link, *path.links))))
    return found


class ClockDomain(Struct):
    """Inputs with one clock, and its place on the merged timeline, which `solve` finds."""

    members: list[int]  # their places among all inputs
    # The offset from each member's time to the domain's; 0 unless the wall clock was set.
    shifts: dict[int, int] = field(default_factory=dict)
    boot_id: str | None = None
    monotonic_base_ns: int | None = None  # the offset from the boot's monotonic clock to the domain's time, or None
    known: bool = True  # True if its times count from the epoch
    relation: str = ""  # in words, why these inputs have one clock
    # The way to the reference's clock; if the domain is not ``aligned``, to that of another domain, or to its own.
    path: ClockPath = field(default_factory=ClockPath)
    aligned: bool = False
    absolute: bool = True  # True if its moved times count from the epoch
    reason: str = ""  # the reason why it is not aligned, or empty
    among: list[int] = field(default_factory=list)  # the ranks that are aligned with each other
    map: ClockMap = field(default_factory=lambda: ClockMap.constant(0))
    error_ns: int = 0


def monotonic_base_ns(item: Input) -> int | None:
    """Return what to add to the monotonic clock to get the times of a rank trace; None for other files."""
    anchor = item.identity.get("clock")
    if item.kind != "tracekit" or not isinstance(anchor, dict):
        return None
    times: list[Any] = [anchor.get("wall_ns"), anchor.get("monotonic_ns")]
    are_valid = all(type(time) is int and abs(time) < 2**62 for time in times)
    return times[0] - times[1] if are_valid else None


def find_domains(items: list[Input]) -> list[ClockDomain]:
    """Divide the inputs by their clocks; in the order of their first members."""
    domains: dict[Any, ClockDomain] = {}
    for number, key in enumerate(_keys(items)):
        domains.setdefault(key, ClockDomain([])).members.append(number)
    for key, domain in domains.items():
        _describe(domain, key, items)
    return list(domains.values())


def _own_key(number: int, item: Input) -> tuple[str, Any] | None:
    """Return what an input itself says about its clock; None where it says nothing."""
    if item.kind == "merged":
        return "merge", number
    if item.base_ns is None:
        return "unknown", number
    boot = item.identity.get("boot_id")
    if isinstance(boot, str) and boot:
        return "boot", boot
    host = item.host
    return ("host", host) if host is not None and host not in _NO_NAMES else None


def _keys(items: list[Input]) -> list[tuple[str, Any]]:
    """Return the clock of each input. Tie inputs without a boot id to inputs of the same process, rank or host."""
    stated = [_own_key(number, item) for number, item in enumerate(items)]
    boots: dict[str | None, set[Any]] = {}
    ranks: dict[int, list[tuple[Input, tuple[str, Any]]]] = {}
    for item, own in zip(items, stated, strict=True):
        if own is not None and own[0] in ("boot", "host"):
            ranks.setdefault(item.rank, []).append((item, own))
            if own[0] == "boot":
                boots.setdefault(item.host, set()).add(own)
    keys = []
    for item, own in zip(items, stated, strict=True):
        key = own
        if own is None or own[0] == "host":
            of_rank = [
                (other, found)
                for other, found in ranks.get(item.rank, ())
                if own is None or other.host in (None, item.host)
            ]
            same_process = {found for other, found in of_rank if found[0] == "boot" and other.pids & item.pids}
            of_host = set() if own is None else boots.get(own[1], set())
            for candidates in (same_process, {found for _, found in of_rank if found != own}, of_host):
                # Several boots of a host, or several hosts of one name, are ambiguous.
                if len(candidates) == 1:
                    (key,) = candidates
                    break
        keys.append(key or ("rank", item.rank))
    return keys


def _describe(domain: ClockDomain, key: tuple[str, Any], items: list[Input]) -> None:
    domain.known = key[0] != "unknown"
    domain.relation = {"boot": "same host and boot", "host": "same host"}.get(key[0], "")
    domain.shifts = dict.fromkeys(domain.members, 0)
    if key[0] != "boot":
        return
    domain.boot_id = key[1]
    recordings = [(number, base) for number in domain.members if (base := monotonic_base_ns(items[number])) is not None]
    if not recordings:
        return
    from tracekit.clock import STEP_TOLERANCE_NS  # torch's traces need none of it

    domain.monotonic_base_ns = recordings[0][1]
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for recording in recordings:
        by_rank.setdefault(items[recording[0]].rank, []).append(recording)
    for number in domain.members:
        own = monotonic_base_ns(items[number])
        if own is None:
            own = _base_under(items[number], by_rank.get(items[number].rank, recordings), items)
        # Readings of two clocks at one moment are a little apart; what is more was set.
        if own is not None and abs(domain.monotonic_base_ns - own) > STEP_TOLERANCE_NS:
            domain.shifts[number] = domain.monotonic_base_ns - own


def _base_under(item: Input, recordings: list[tuple[int, int]], items: list[Input]) -> int | None:
    """Return how the wall clock stood to the monotonic one when a file that goes by the wall clock began.

    ``recordings`` are rank traces of its rank, else of its boot, with what to add to the monotonic clock.
    """
    start_ns = item.start_ns
    if start_ns is None:
        return None
    base, number = min((abs(start_ns - (items[number].start_ns or 0)), base, number) for number, base in recordings)[1:]
    for step_ns, monotonic_ns in items[number].clock_events.steps:
        if start_ns - base - step_ns >= monotonic_ns:
            base += step_ns
    return base


def solve(
    items: Sequence[Input],
    domains: Sequence[ClockDomain],
    reference: int,
    links: Sequence[Link],
    refused: Mapping[int, str],
) -> None:
    """Place every domain: on the clock of the reference if a path leads there, otherwise by its own wall clock."""
    settled: set[int] = set()
    # Domains that are tied to each other, but not to the reference, stay so: by the clock of one that counts from the epoch.
    roots = [reference, *sorted(range(len(domains)), key=lambda number: (not domains[number].known, number))]
    for root in roots:
        if root in settled:
            continue
        island = [(other, path) for other, path in find_paths(root, links).items() if isinstance(other, int)]
        settled.update(other for other, _ in island)
        members = [member for other, _ in island for member in domains[other].members]
        ranks = sorted({rank for member in members for rank in items[member].ranks})
        for other, path in island:
            domain = domains[other]
            domain.path, domain.aligned, domain.absolute = path, root == reference, domains[root].known
            if not domain.aligned:
                domain.reason = refused.get(other, "")
                domain.among = ranks if len(island) > 1 else []
            _settle(items, domain)


def _settle(items: Sequence[Input], domain: ClockDomain) -> None:
    """Find what to add to the times of a domain: one map for all its inputs, so that they stay together."""
    times = [time + domain.shifts[member] for member in domain.members for time in items[member].span_ns or ()]
    low, high = min(times, default=0), max(times, default=0)
    path = domain.path
    domain.map = path.map_for(low, high)
    # Keep a wall clock that differs from the reference's by less than the error: it may be better than the collectives,
    # which give an estimate and not a bound.
    by_collectives = any(link.evidence is Evidence.COLLECTIVES for link in path.links)
    if domain.known and domain.aligned and by_collectives:
        first = path.links[0].estimate
        measured = (low, high, first.from_ns, first.to_ns)
        if all(abs(domain.map.offset_at(time)) <= path.error_at(time) for time in measured):
            domain.map = ClockMap.constant(0)
    domain.error_ns = max(
        path.error_at(time) + abs(path.offset_at(time) - domain.map.offset_at(time)) for time in (low, high)
    )
