"""Measure how the clocks of a merge stand to each other, by the evidence that is cheapest to read.

Collectives are packed by process group: alignment looks at one group of thousands of ranks at a time.
"""

from __future__ import annotations

import pickle
import re
import zlib
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.merge.align.domains import ClockEstimate, ClockMap, Evidence, Link, find_paths, monotonic_base_ns
from tracekit.merge.align.estimate import (
    CPU_END_NS,
    END_NS,
    MANY,
    SyncPoint,
    estimate_from_ends,
    estimate_from_stays,
    estimate_from_sync,
)
from tracekit.merge.scan.merged_tables import stated_clocks
from tracekit.storage import basename
from tracekit.structs import Struct
from tracekit.traces.collectives.collector import by_group, read_collectives, thinned
from tracekit.traces.collectives.matching import match

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tracekit.merge.align.domains import ClockDomain
    from tracekit.merge.scan.input import Input
    from tracekit.traces.collectives.collector import Collective

Group = tuple[str, str]  # name and members of a process group

_MAX_READ: Final = 20_000
_MAX_OF_GROUP: Final = 300
"""How many collectives of a process group are kept: enough for the clocks, and little for thousands of ranks."""


class CollectiveLog(Struct, frozen=True):
    """The collectives of one rank in one input."""

    number: int
    rank: int
    domain: int
    to_domain_ns: int  # the offset from the time of the file to that of the domain
    groups: dict[Group, bytes]  # the synchronising collectives of each process group, packed, sorted by group
    sent: bytes  # sends and receives with known partners, packed

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
        self.sampled: set[int] = set()  # the inputs of which only a sample was read

    def logs(self, numbers: Iterable[int], *, sampled: bool = True) -> list[CollectiveLog]:
        """Read what alignment needs of these inputs, where ``sampled`` a sample of large ones. Return all logs so far."""
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
    for log in sorted(logs, key=attrgetter("rank", "number")):
        for group in log.groups:
            groups.setdefault(group, []).append(log)
    return groups


def _packed(collectives: list[Collective]) -> bytes:
    return zlib.compress(pickle.dumps(collectives, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(data: bytes) -> list[Collective]:
    found: list[Collective] = pickle.loads(zlib.decompress(data))  # noqa: S301 - packed by this process
    return found


_MOST_HUBS: Final = 8
_NO_EVIDENCE: Final = "no clock exchange with them and no collectives of both"
_MOST: Final = 2**62
_RANK: Final = re.compile(r"rank[-_=]?\d+", re.IGNORECASE)
_ROUNDED_US: Final = 2  # Composer writes whole microseconds: the bound, and the readings that it bounds
_SYNC_KEYS: Final = ("monotonic_ns", "offset_ns", "monotonic_offset_ns", "error_ns", "round_trips", "reference_rank")


def measure(
    items: list[Input], domains: list[ClockDomain], reference: int, align: str
) -> tuple[list[Link], dict[int, str], list[CollectiveLog]]:
    """Return the measured offsets between clocks, why others are refused, by domain, and the collectives that were read.

    Reading collectives costs most. Samples of one input of each clock come first, then samples of all inputs, until every
    clock is tied to the reference. Only ``align="collectives"`` reads whole inputs in the end.
    """
    reader = CollectiveReader(items, domains)
    logs = reader.logs(number for number, item in enumerate(items) if len(item.ranks) > 1)
    if len(domains) == 1:
        return [], {}, logs
    links = _earlier_links(items, domains)
    refused: dict[int, str] = {}
    if align != "collectives":
        found, refused = barrier_links(items, domains)
        links += sync_links(items, domains) + found
    if align == "sync":
        return links, refused, logs
    everyone = range(len(items))
    first = [next((n for n in domain.members if items[n].kind != "tracekit"), -1) for domain in domains]
    stages = [([n for n in first if n >= 0], True), (everyone, True)]
    stages += [(everyone, False)] if align == "collectives" else []
    compared: list[CollectiveLog] = []
    for numbers, sampled in stages:
        if not _apart(domains, reference, links):
            break
        logs = reader.logs(numbers, sampled=sampled)
        if logs != compared:
            found, unused = _collective_links(logs)
            compared = logs
            links = [link for link in links if link.evidence is not Evidence.COLLECTIVES] + found
            refused |= unused
    for domain in _apart(domains, reference, links):
        if reader.sampled.intersection(domains[domain].members):
            reason = refused.get(domain, _NO_EVIDENCE)
            refused[domain] = f"{reason}, in the samples that were read; --align collectives reads all of them"
    return links, refused, logs


def _apart(domains: Sequence[ClockDomain], reference: int, links: list[Link]) -> set[int]:
    return set(range(len(domains))) - find_paths(reference, links).keys()


def _earlier_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> list[Link]:
    """Return the offsets that an earlier merge among the inputs states for the clocks of others."""
    links = []
    for number, domain in enumerate(domains):
        item = items[domain.members[0]]
        if item.kind != "merged":
            continue
        for placed in stated_clocks(item):
            for other, candidate in enumerate(domains):
                if candidate.boot_id is not None and candidate.boot_id == placed.get("boot_id"):
                    then_ns, now_ns = placed.get("monotonic_base_ns"), candidate.monotonic_base_ns
                    moved_ns = then_ns - now_ns if isinstance(then_ns, int) and isinstance(now_ns, int) else 0
                    knots = tuple((time - moved_ns, offset + moved_ns) for time, offset in placed["knots"])
                    known = ClockEstimate(ClockMap(knots), knots[0][0], knots[-1][0], 0, 0, 1)
                    links.append(Link(other, number, known, Evidence.EARLIER_MERGE))
    return links


def _collective_links(logs: Sequence[CollectiveLog]) -> tuple[list[Link], dict[int, str]]:
    """Return the offsets that matched collectives measured, and the reasons for refusals by domain.

    Compare one rank of each domain with the lowest rank of a process group, or with the next ones where that fails.
    """
    links: list[Link] = []
    refused: dict[int, str] = {}
    for group, members in sorted(members_of_groups(logs).items()):
        waiting = list(members)
        for _ in range(_MOST_HUBS):
            if len({log.domain for log in waiting}) < 2:
                break
            hub = waiting.pop(0)
            ours = hub.of_group(group)
            linked = set()
            for log in waiting:
                if log.domain == hub.domain or log.domain in linked:
                    continue
                estimate = _compare(hub, ours, log, log.of_group(group))
                if isinstance(estimate, str):
                    refused[log.domain] = f"{estimate} (ranks {hub.rank} and {log.rank})"
                else:
                    linked.add(log.domain)
                    links.append(Link(log.domain, hub.domain, estimate, Evidence.COLLECTIVES))
            waiting = [log for log in waiting if log.domain not in linked]
    return links, refused


def _compare(
    hub: CollectiveLog, ours: list[Collective], log: CollectiveLog, theirs: list[Collective]
) -> ClockEstimate | str:
    """Return the offset from the clock of ``log`` to that of ``hub``, or the reason for a refusal."""

    def stay(one: Collective, in_log: CollectiveLog) -> tuple[int, int]:
        return one.start_ns + in_log.to_domain_ns, one.end_ns + in_log.to_domain_ns

    pairs = match(ours, theirs, min_numbered=1)
    if isinstance(pairs, str):
        return pairs
    stays = [(stay(their, log), stay(own, hub)) for own, their in pairs]
    numbered = all(own.sequence is not None and own.sequence == their.sequence for own, their in pairs)
    found: ClockEstimate | str = "the flight recorder notices their ends late, and they have no sequence numbers"
    if all(one.ends_on_time for pair in pairs for one in pair):
        end_ns = END_NS if all(one.on_gpu for pair in pairs for one in pair) else CPU_END_NS
        found = estimate_from_ends([(their_end, own_end) for (_, their_end), (_, own_end) in stays], end_ns)
    # A few ends may agree by chance, and ends far apart prove little. The order of starts and ends is certain.
    if (numbered and isinstance(found, str)) or (not isinstance(found, str) and len(pairs) < MANY):
        return estimate_from_stays(stays, None if isinstance(found, str) else found.map.knots[0][1])
    return found


def sync_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> list[Link]:
    """Return the offsets that clock exchanges measured. A reference that is not an input becomes a further clock."""
    boots = {domain.boot_id: number for number, domain in enumerate(domains) if domain.monotonic_base_ns is not None}
    recorders: dict[int, set[int]] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            if items[member].kind == "tracekit":
                recorders.setdefault(items[member].rank, set()).add(number)
    points: dict[tuple[int, Hashable], list[SyncPoint]] = {}
    outside: dict[Hashable, int] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            own_ns = monotonic_base_ns(items[member])
            if own_ns is None:
                continue
            base_ns = domain.monotonic_base_ns if domain.monotonic_base_ns is not None else own_ns
            for measured in items[member].clock_events.offsets:
                if not _is_sync(measured):
                    continue
                boot, rank = measured.get("reference_boot_id"), measured["reference_rank"]
                boot = boot if isinstance(boot, str) else None
                target: Hashable = ("reference", rank, boot)
                target_ns = own_ns + measured["offset_ns"] - measured["monotonic_offset_ns"]
                if boot is not None and boot in boots:
                    target = boots[boot]
                    target_ns = domains[boots[boot]].monotonic_base_ns or 0
                elif boot is None and len(recorders.get(rank, ())) == 1:
                    (target,) = recorders[rank]
                else:
                    target_ns = outside.setdefault(target, target_ns)
                if target != number:
                    at_ns = measured["monotonic_ns"] + base_ns
                    offset_ns = measured["monotonic_offset_ns"] + target_ns - base_ns
                    points.setdefault((number, target), []).append(SyncPoint(at_ns, offset_ns, measured["error_ns"]))
    return [
        Link(first, second, estimate_from_sync(found), Evidence.SYNC)
        for (first, second), found in sorted(points.items(), key=str)
    ]


class _Barrier(NamedTuple):
    """One reading of the clock after a barrier of Composer."""

    window: tuple[str, int]  # the file without its rank, and which barrier of the file: the same for all ranks
    domain: int  # the index of the clock domain
    time_ns: int  # the reading, in the time of the domain
    error_ns: int  # all ranks left the barrier within this time


def barrier_links(items: Sequence[Input], domains: Sequence[ClockDomain]) -> tuple[list[Link], dict[int, str]]:
    """Return the offsets that Composer's barriers measured, and the reasons for refusals by domain.

    Each rank reads its clock between two barriers, so all of these readings lie within the two barriers of every rank.
    """
    ranks: dict[int, list[_Barrier]] = {}
    for number, domain in enumerate(domains):
        for member in domain.members:
            item = items[member]
            window = _RANK.sub("", basename(item.path))
            for count, (time_us, error_us) in enumerate(item.clock_events.barriers):
                time_ns, error_ns = 1000 * time_us + domain.shifts[member], 1000 * (error_us + _ROUNDED_US)
                ranks.setdefault(item.rank, []).append(_Barrier((window, count), number, time_ns, error_ns))
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
    by_time = [sorted(ones, key=attrgetter("time_ns")) for ones in (own, others)]
    return list(zip(*by_time, strict=True)) if len(own) == len(others) else []


def _is_sync(measured: dict[str, Any]) -> bool:
    are_numbers = all(type(number) is int and abs(number) < _MOST for number in map(measured.get, _SYNC_KEYS))
    return are_numbers and measured["round_trips"] > 0 and measured["error_ns"] >= 0
