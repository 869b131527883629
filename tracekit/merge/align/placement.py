"""Place each input on the merged timeline, and state the error.

Inputs of one clock are a domain (`tracekit.merge.align.domains`). The reference is the domain of the lowest rank with a
known clock. The best evidence places the other domains on its clock. A domain without evidence is placed by its wall clock,
and flagged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.decimal_time import EXACT_NS
from tracekit.formats.rank_trace import base_time_ns
from tracekit.merge.align.clock_descriptions import ClockDescriber, domain_metadata, flags
from tracekit.merge.align.clock_map import ClockMap
from tracekit.merge.align.domains import find_domains, solve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.formats.merged_head import RankClock
    from tracekit.merge.align.collective_logs import CollectiveLog
    from tracekit.merge.align.domains import ClockDomain, Link
    from tracekit.merge.input import Input

ALIGN: Final = ("auto", "sync", "collectives", "wall", "none")
"""What ``align`` may be."""

_MEASURED: Final = ("auto", "sync", "collectives")
_DAY_NS: Final = 86_400_000_000_000
_NO_BASE: Final = "no baseTimeNanoseconds, no epoch times"
_MISSING: Final = {"xprof": "no reading of the clock by tracekit, no xplane.pb beside it that tells when it began"}


@dataclass(slots=True)
class Placement:
    """The place of each input on the merged timeline.

    Attributes:
        base_ns: The base of the merged trace in ns since the epoch; 0 if no clock is known.
        shifts_ns: The constant part of each input's offset.
        warps: The varying part of each input's offset, in the file's time; None for clocks without drift.
        domains: The clock of each boot, for a later merge, as JSON values.
    """

    base_ns: int
    shifts_ns: list[int]
    warps: list[ClockMap | None]
    clocks: dict[int, RankClock]
    domains: list[dict[str, Any]]
    warnings: list[str]
    logs: list[CollectiveLog] = field(default_factory=list)

    def time_ns(self, number: int, time_ns: int) -> int:
        """Return the merged time of a time in an input."""
        warp = self.warps[number]
        return time_ns + self.shifts_ns[number] + (0 if warp is None else warp.offset_at(time_ns))

    def file_ns(self, number: int, merged_ns: int) -> int:
        """Return which of the times of an input a merged time is."""
        warp, time_ns = self.warps[number], merged_ns - self.shifts_ns[number]
        return time_ns if warp is None else time_ns + warp.inverse().offset_at(time_ns)


def place(
    items: list[Input], *, align: str = "auto", offsets_ns: Mapping[int, int] | None = None, read_all: bool = False
) -> Placement:
    """Find the base of the merged trace and what to add to the times of each input.

    The base is the point of Kineto's grid before the earliest event, so that numbers stay small enough to be exact as
    doubles and traces of one quarter of a year need no shift. Inputs that do not tell their clock, and that no collective
    places, begin with the earliest of those that do, and a warning says so; when none tells it, their times stay as they are.
    """
    by_hand = dict(offsets_ns or {})
    _check(items, align, by_hand)
    domains = find_domains(items)
    reference = next((number for number, domain in enumerate(domains) if domain.known), 0)
    links: list[Link] = []
    refused: dict[int, str] = {}
    logs: list[CollectiveLog] = []
    if align in _MEASURED and (len(domains) > 1 or any(len(item.ranks) > 1 for item in items)):
        from tracekit.merge.align.measure import measure  # files that share a clock need none of it

        links, refused, logs = measure(items, domains, reference, align)
    if len(domains) > 1 and align in _MEASURED:
        for item in items:
            item.read_end()  # a drift, and so the error, is taken over the whole span
    solve(items, domains, reference, links, refused)
    domain_of = {member: number for number, domain in enumerate(domains) for member in domain.members}
    maps: list[ClockMap] = []
    known: list[bool] = []
    for number, item in enumerate(items):
        domain = domains[domain_of[number]]
        if item.rank in by_hand and item.kind != "merged":
            maps.append(ClockMap.constant(by_hand[item.rank]))
            known.append(True)
        else:
            maps.append(ClockMap.constant(0) if align == "none" else _map_of(domain, number))
            known.append(domain.absolute)
    base_ns, shifts, warps, warnings = _put(items, maps, known)
    clocks = ClockDescriber(items, domains, reference, align, by_hand).clocks(domain_of, maps)
    if align in _MEASURED:
        warnings += flags(clocks, domains, items)
    if read_all:
        from tracekit.merge.align.collective_logs import CollectiveReader

        logs = CollectiveReader(items, domains).every_collective()
    return Placement(base_ns, shifts, warps, clocks, domain_metadata(items, domains, maps), warnings, logs)


def _check(items: list[Input], align: str, by_hand: dict[int, int]) -> None:
    if align not in ALIGN:
        raise ConfigError(f"align must be one of {', '.join(ALIGN)}, not {align!r}")
    for rank, offset in by_hand.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or abs(offset) >= 2**62:
            raise ConfigError(f"the offset of rank {rank} must be a whole number of nanoseconds, not {offset!r}")
        if not any(item.rank == rank and item.kind != "merged" for item in items):
            if any(rank in item.ranks for item in items):
                raise ConfigError(
                    f"rank {rank} comes from an earlier merge, which has placed it; give its own trace instead"
                )
            raise ConfigError(f"an offset is given for rank {rank}, but no input is of that rank")


def _map_of(domain: ClockDomain, number: int) -> ClockMap:
    """Return what to add to the times of an input, in the time of `Input.span_ns`."""
    shift_ns = domain.shifts[number]
    return ClockMap(tuple((time - shift_ns, offset + shift_ns) for time, offset in domain.map.knots))


def _put(
    items: list[Input], maps: list[ClockMap], known: list[bool]
) -> tuple[int, list[int], list[ClockMap | None], list[str]]:
    """Find the base, and split what is to be added into a constant and what varies."""
    spans = [item.span_ns for item in items]
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
        own = item.base_ns or 0
        constant = placed.knots[0][1]
        varying = ClockMap(tuple((time - own, offset - constant) for time, offset in placed.knots))
        warps.append(None if placed.is_constant else varying)
        shifts.append(own - base_ns + constant)
        span = moved[number]
        if first is not None and not known[number]:
            shifts[number] += first - (0 if span is None else span[0])
            warnings.append(
                f"{item.shown} does not tell its clock ({_MISSING.get(item.kind, _NO_BASE)}): "
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
