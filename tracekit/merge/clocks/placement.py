"""Which clock places each input on the merged timeline, and what that is worth.

Inputs of one clock are a domain (`tracekit.merge.clocks.domains`). The reference is the domain of the lowest rank whose
clock is known; the others are placed on its clock by the best evidence there is, and a domain without any is placed by its
wall clock, and flagged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.collectives.parts import read_collectives
from tracekit.errors import ConfigError
from tracekit.formats.late_times import EXACT_NS
from tracekit.formats.rank_trace import base_time_ns
from tracekit.merge.clocks.clock_map import ClockMap
from tracekit.merge.clocks.domains import find_domains
from tracekit.merge.clocks.links import (
    CollectiveLog,
    barrier_links,
    collective_links,
    earlier_links,
    sync_links,
)
from tracekit.merge.clocks.report import ClockDescriber, domain_metadata, flags
from tracekit.merge.clocks.solution import solve, span_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.formats.rank_clock import RankClock
    from tracekit.merge.clocks.domains import ClockDomain
    from tracekit.merge.clocks.graph import Link
    from tracekit.merge.clocks.kept_collectives import KeptByRank
    from tracekit.merge.clocks.solution import PlacedDomain
    from tracekit.merge.input import Input

__all__ = ["ALIGN", "Placement", "place"]

ALIGN: Final = ("auto", "sync", "collectives", "wall", "none")
"""What ``align`` may be."""

_MEASURED: Final = ("auto", "sync", "collectives")
_DAY_NS: Final = 86_400_000_000_000
_NO_BASE: Final = "no baseTimeNanoseconds, no epoch times"
_MISSING: Final = {"xprof": "no reading of the clock by tracekit, no xplane.pb beside it that tells when it began"}


@dataclass(slots=True)
class Placement:
    """Where every input goes on the merged timeline.

    Attributes:
        base_ns: The base of the merged trace in ns since the epoch, 0 when no input tells its clock.
        shifts_ns: What to add to the times of each input.
        warps: What to add before that, in the file's own time, where a clock drifts; None where none does.
        clocks: For each rank, the clock that places it.
        domains: What a later merge must know, ready for JSON.
        warnings: What a reader of the merged trace must know.
        logs: The collectives that were read.
    """

    base_ns: int
    shifts_ns: list[int]
    warps: list[ClockMap | None]
    clocks: dict[int, RankClock]
    domains: list[dict[str, Any]]
    warnings: list[str]
    logs: list[CollectiveLog] = field(default_factory=list)

    def metadata(self) -> Iterator[dict[str, Any]]:
        """Yield what the merged trace says of the clock of each rank, ready for JSON."""
        for _, clock in sorted(self.clocks.items()):
            yield clock.to_json()

    def time_ns(self, number: int, time_ns: int) -> int:
        """Return the merged time of a time in an input."""
        warp = self.warps[number]
        return time_ns + self.shifts_ns[number] + (0 if warp is None else warp.offset_at(time_ns))


def place(
    items: list[Input],
    *,
    align: str = "auto",
    offsets_ns: Mapping[int, int] | None = None,
    read_all: bool = False,
) -> Placement:
    """Find the base of the merged trace and what to add to the times of each input.

    The base is the point of Kineto's grid before the earliest event, so that numbers stay small enough to be exact as
    doubles and traces of one quarter of a year need no shift. Inputs that do not tell their clock, and that no collective
    places, begin with the earliest of those that do, and a warning says so; when none tells it, their times stay as they are.

    Args:
        items: In the order of the output.
        align: One of `ALIGN`: what may say how clocks stand to each other.
        offsets_ns: What to add to the times of a rank, by hand; nothing else is added to them.
        read_all: Whether all collectives are wanted, for which the inputs are read again, or as many as alignment needs.

    Raises:
        ConfigError: ``align`` is unknown, or a rank of ``offsets_ns`` is no input.
        StorageError: An input cannot be read again.
    """
    by_hand = dict(offsets_ns or {})
    _check(items, align, by_hand)
    domains = find_domains(items)
    reference = next((number for number, domain in enumerate(domains) if domain.known), 0)
    logs = _logs(items, domains, [item.scan.collectives for item in items])
    links, refused = _evidence(items, domains, align, logs)
    placed = solve(items, domains, reference, links, refused)
    domain_of = {member: number for number, domain in enumerate(domains) for member in domain.members}
    maps: list[ClockMap] = []
    known: list[bool] = []
    for number, item in enumerate(items):
        domain = placed[domain_of[number]]
        if item.rank in by_hand and item.scan.kind != "merged":
            maps.append(ClockMap.constant(by_hand[item.rank]))
            known.append(True)
        else:
            maps.append(ClockMap.constant(0) if align == "none" else _map_of(domain, number))
            known.append(domain.absolute)
    base_ns, shifts, warps, warnings = _put(items, maps, known)
    clocks = ClockDescriber(items, placed, reference, align, by_hand).clocks(domain_of, maps)
    if align in _MEASURED:
        warnings += flags(clocks, placed, items)
    if read_all:
        logs = _logs(items, domains, [_read_all(item) for item in items])
    return Placement(base_ns, shifts, warps, clocks, domain_metadata(items, placed, maps), warnings, logs)


def _check(items: list[Input], align: str, by_hand: dict[int, int]) -> None:
    if align not in ALIGN:
        raise ConfigError(f"align must be one of {', '.join(ALIGN)}, not {align!r}")
    for rank, offset in by_hand.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or abs(offset) >= 2**62:
            raise ConfigError(f"the offset of rank {rank} must be a whole number of nanoseconds, not {offset!r}")
        if not any(item.rank == rank and item.scan.kind != "merged" for item in items):
            if any(rank in item.ranks for item in items):
                raise ConfigError(
                    f"rank {rank} comes from an earlier merge, which has placed it; give its own trace instead"
                )
            raise ConfigError(f"an offset is given for rank {rank}, but no input is of that rank")


def _evidence(
    items: list[Input], domains: list[ClockDomain], align: str, logs: list[CollectiveLog]
) -> tuple[list[Link], dict[int, str]]:
    """Gather what says how the clocks stand to each other, and why some of it does not."""
    if align not in _MEASURED or len(domains) == 1:
        return [], {}
    links = earlier_links(items, domains)
    refused: dict[int, str] = {}
    if align != "collectives":
        links += sync_links(items, domains)
        found, refused = barrier_links(items, domains)
        links += found
    if align != "sync":
        found, unused = collective_links(logs)
        links += found
        refused |= unused
    return links, refused


def _logs(items: list[Input], domains: list[ClockDomain], collectives: list[KeptByRank]) -> list[CollectiveLog]:
    domain_of = {member: number for number, domain in enumerate(domains) for member in domain.members}
    logs = []
    for number, (item, by_rank) in enumerate(zip(items, collectives, strict=True)):
        domain = domain_of[number]
        to_domain_ns = (item.scan.base_ns or 0) + domains[domain].shifts[number]
        logs += [
            CollectiveLog(number, item.rank if rank is None else rank, domain, to_domain_ns, found)
            for rank, found in by_rank
            if rank is None or rank in item.ranks  # of an earlier merge, some ranks may not be selected
        ]
    return logs


def _read_all(item: Input) -> KeptByRank:
    """Read all collectives of an input, of which its scan has kept some."""
    if not item.scan.collectives:
        return ()
    ranks = {pid: rank for pid, (rank, _, _) in item.merged_processes.items()} or None
    return item.scan.put_collectives(read_collectives(item.path, item.scan.events, ranks))


def _map_of(domain: PlacedDomain, number: int) -> ClockMap:
    """Return what to add to the times of an input, in the time of `span_of`."""
    shift_ns = domain.own.shifts[number]
    return ClockMap(tuple((time - shift_ns, offset + shift_ns) for time, offset in domain.map.knots))


def _put(
    items: list[Input], maps: list[ClockMap], known: list[bool]
) -> tuple[int, list[int], list[ClockMap | None], list[str]]:
    """Find the base, and split what is to be added into a constant and what varies."""
    spans = [span_of(item) for item in items]
    moved = [
        None if span is None else tuple(time + placed.offset_at(time) for time in span)
        for span, placed in zip(spans, maps, strict=True)
    ]
    certain = [span for span, sure in zip(moved, known, strict=True) if span is not None and sure]
    warnings: list[str] = []
    first = min((span[0] for span in certain), default=None)
    base_ns = 0 if first is None else base_time_ns(first)
    shifts: list[int] = []
    warps: list[ClockMap | None] = []
    for number, (item, placed) in enumerate(zip(items, maps, strict=True)):
        own = item.scan.base_ns or 0
        constant = placed.knots[0][1]
        varying = ClockMap(tuple((time - own, offset - constant) for time, offset in placed.knots))
        warps.append(None if placed.is_constant else varying)
        shifts.append(own - base_ns + constant)
        span = moved[number]
        if first is not None and not known[number]:
            shifts[number] += first - (0 if span is None else span[0])
            warnings.append(
                f"{item.scan.path} does not tell its clock ({_MISSING.get(item.scan.kind, _NO_BASE)}): "
                f"its first event is placed at the start of the others; rank {item.rank} is not aligned"
            )
    if first is None:
        lowest = min((span[0] for span in moved if span is not None), default=0)
        shifts = [shift + max(0, -lowest) for shift in shifts]
        if len(items) > 1:
            warnings.append("no input tells its clock: all times are taken to count from one common start")
    elif max(span[1] for span in certain) - base_ns > EXACT_NS:
        days = (max(span[1] for span in certain) - first) // _DAY_NS
        warnings.append(
            f"the inputs span {days} days: viewers show times that late less exactly than to the nanosecond"
        )
    return base_ns, shifts, warps, warnings
