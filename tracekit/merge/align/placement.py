"""Place each input on the merged timeline, and state the error.

Inputs of one clock are a domain (`tracekit.merge.align.domains`). The reference is the domain of the lowest rank with a
known clock. The best evidence places the other domains on its clock. A domain without evidence is placed by its wall clock,
and flagged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.decimal_time import EXACT_NS
from tracekit.formats.merged_head import RankClock, stated_ranks
from tracekit.formats.rank_trace import base_time_ns
from tracekit.merge.align.domains import ClockMap, Evidence, find_domains, solve
from tracekit.merge.scan.merged_tables import stated_clocks
from tracekit.structs import Struct, field
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.merge.align.domains import ClockDomain, ClockPath, Link
    from tracekit.merge.align.measure import CollectiveLog
    from tracekit.merge.scan.input import Input

ALIGN: Final = ("auto", "sync", "collectives", "wall", "none")  # what ``align`` may be

_MEASURED: Final = ("auto", "sync", "collectives")
_DAY_NS: Final = 86_400_000_000_000
_NO_BASE: Final = "no baseTimeNanoseconds, no epoch times"
_MISSING: Final = {"xprof": "no reading of the clock by tracekit, no xplane.pb beside it that tells when it began"}


class Placement(Struct):
    """The place of each input on the merged timeline."""

    base_ns: int  # the base of the merged trace in ns since the epoch; 0 if no clock is known
    shifts_ns: list[int]  # the constant part of each input's offset
    # The varying part of each input's offset, in the file's time; None for clocks without drift.
    warps: list[ClockMap | None]
    clocks: dict[int, RankClock]
    domains: list[dict[str, Any]]  # the clock of each boot, for a later merge, as JSON values
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
    doubles and traces of one quarter of a year need no shift. Inputs without a stated clock, and that no collective
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
    domain_of = {member: domain for domain in domains for member in domain.members}
    maps: list[ClockMap] = []
    known: list[bool] = []
    for number, item in enumerate(items):
        is_by_hand = item.rank in by_hand and item.kind != "merged"
        shift_ns = domain_of[number].shifts[number]
        knots = [(time - shift_ns, offset + shift_ns) for time, offset in domain_of[number].map.knots]
        if is_by_hand or align == "none":
            knots = [(0, by_hand[item.rank] if is_by_hand else 0)]
        maps.append(ClockMap(tuple(knots)))  # in the time of `Input.span_ns`
        known.append(is_by_hand or domain_of[number].absolute)
    base_ns, shifts, warps, warnings = _put(items, maps, known)
    clocks = _rank_clocks(items, domains, domains[reference], align, by_hand, maps)
    if align in _MEASURED:
        warnings += _flags(clocks, domains, items)
    if read_all:
        from tracekit.merge.align.measure import CollectiveReader

        logs = CollectiveReader(items, domains).every_collective()
    return Placement(base_ns, shifts, warps, clocks, _domain_metadata(items, domains, maps), warnings, logs)


def _check(items: list[Input], align: str, by_hand: dict[int, int]) -> None:
    if align not in ALIGN:
        raise ConfigError(f"align must be one of {', '.join(ALIGN)}, not {align!r}")
    for rank, offset in by_hand.items():
        if type(offset) is not int or abs(offset) >= 2**62:
            raise ConfigError(f"the offset of rank {rank} must be a whole number of nanoseconds, not {offset!r}")
        kinds = {item.kind for item in items if rank in item.ranks}
        if kinds == {"merged"}:
            raise ConfigError(
                f"rank {rank} comes from an earlier merge, which has placed it; give its own trace instead"
            )
        if not kinds:
            raise ConfigError(f"an offset is given for rank {rank}, but no input is of that rank")


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
    latest = max((span[1] for span in certain), default=0)
    if first is None:
        lowest = min((span[0] for span in moved if span is not None), default=0)
        shifts = [shift + max(0, -lowest) for shift in shifts]
        if len(items) > 1:
            warnings.append("no input tells its clock: all times are taken to count from one common start")
    elif latest - base_ns > EXACT_NS:
        days = (latest - first) // _DAY_NS
        warnings.append(
            f"the inputs span {days} days: viewers show times that late less exactly than to the nanosecond"
        )
    return base_ns, shifts, warps, warnings


_SOURCES: Final = ["reference", "shared", "earlier_merge", "sync", "collectives", "by_hand", "wall", "none", "unknown"]
"""The sources of a clock, the most certain first."""


def _rank_clocks(
    items: list[Input],
    domains: list[ClockDomain],
    reference: ClockDomain,
    align: str,
    by_hand: Mapping[int, int],
    maps: list[ClockMap],
) -> dict[int, RankClock]:
    """Return the clock of each rank; of several, as after a restart on another host, the least certain one."""
    readings_ns: dict[int, int] = {}
    """The distance between the readings of the two clocks when the rank traces of each rank began."""
    for item in items:
        clock = item.identity.get("clock") if item.kind == "tracekit" else None
        error_ns = clock.get("error_ns") if isinstance(clock, dict) else None
        if type(error_ns) is int and error_ns < 2**62:
            readings_ns[item.rank] = max(readings_ns.get(item.rank, 0), error_ns)
    of_item: dict[int, tuple[ClockDomain, str]] = {}
    hosts_known = _names_hosts(items, reference)
    for domain in domains:
        wall = domain.relation or "host unknown"
        if domain is not reference:
            both_known = hosts_known and _names_hosts(items, domain)
            wall = "different hosts: error unknown" if both_known else "host unknown"
        of_item.update(dict.fromkeys(domain.members, (domain, f"wall clock; {wall}")))
    clocks: dict[int, RankClock] = {}
    for number, item in enumerate(items):
        domain, wall = of_item[number]
        start_ns, end_ns = item.span_ns or (0, 0)
        offset_ns = maps[number].offset_at(start_ns)
        drift_ppm = round(maps[number].drift_ppm(start_ns, end_ns), 6)
        found = RankClock(item.rank, "wall", align == "wall", offset_ns, drift_ppm, None, wall)
        if item.rank in by_hand and item.kind != "merged":
            words = f"{duration(offset_ns, sign=True)}, given by hand: error unknown"
            found = found._replace(source="by_hand", aligned=True, words=words)
        elif domain.aligned and domain.path.links:
            source, words = _by_path(domain.path, offset_ns, drift_ppm, domain.error_ns)
            found = found._replace(source=source, aligned=True, error_ns=domain.error_ns, words=words)
        elif not domain.known:
            found = found._replace(source="unknown", aligned=False, words="unknown")
        elif align == "none":
            found = found._replace(source="none", aligned=True)
        elif domain is reference:
            source = "reference" if item.rank == items[domain.members[0]].rank else "shared"
            if set_by := domain.shifts[number]:
                wall += f"; {duration(set_by, sign=True)}: the wall clock was set in between"
            found = found._replace(source=source, aligned=True, error_ns=0, words=wall)
        profile = item.profile
        if profile is not None and profile.start_ns is not None and found.error_ns is not None:
            # It uses the wall clock; the rank trace has one reading of it.
            error_ns = profile.error_ns + readings_ns.get(item.rank, 0)
            words = f"{found.words}; the XLA profile ± {duration(error_ns)}, from {profile.source}"
            found = found._replace(error_ns=found.error_ns + error_ns, words=words)
        for clock in _after_earlier_merge(item, domain, found) if item.kind == "merged" else [found]:
            clocks[clock.rank] = max(clocks.get(clock.rank, clock), clock, key=_uncertainty)
    return clocks


def _names_hosts(items: list[Input], domain: ClockDomain) -> bool:
    return any(items[member].names_hosts for member in domain.members)


def _after_earlier_merge(item: Input, domain: ClockDomain, found: RankClock) -> list[RankClock]:
    """Return what an earlier merge says of its ranks, and what this one has added."""
    before = {clock.rank: clock for clock in stated_ranks(item.head().header)}
    moved = found.offset_ns or domain.path.links or not found.aligned
    clocks = []
    for rank in sorted(item.ranks):
        known = before.get(rank)
        if known is None:
            known = RankClock(rank=rank, source="earlier_merge", aligned=True, words="as placed by an earlier merge")
        elif moved:
            known = known._replace(
                source=found.source if known.aligned else known.source,
                aligned=known.aligned and found.aligned,
                offset_ns=known.offset_ns + found.offset_ns,
                drift_ppm=known.drift_ppm + found.drift_ppm,
                error_ns=None if known.error_ns is None or found.error_ns is None else known.error_ns + found.error_ns,
                words=f"{known.words}; then the earlier merge by {found.words}",
            )
        clocks.append(known)
    return clocks


def _flags(clocks: Mapping[int, RankClock], domains: list[ClockDomain], items: list[Input]) -> list[str]:
    """Return a warning for the ranks that could not be aligned, by reason."""
    reasons: dict[str, list[int]] = {}
    told: set[int] = set()
    for domain in domains:
        if domain.aligned and domain.absolute:
            continue
        ranks = {rank for member in domain.members for rank in items[member].ranks}
        told |= ranks
        if not domain.aligned and domain.absolute:
            reason = domain.reason or "no clock exchange with them and no collectives of both"
            if domain.among:
                reason += f"; only {rank_spans(domain.among)} are aligned with each other"
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


def _domain_metadata(items: list[Input], domains: list[ClockDomain], maps: list[ClockMap]) -> list[dict[str, Any]]:
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


def _uncertainty(clock: RankClock) -> tuple[bool, int, int]:
    place = _SOURCES.index(clock.source) if clock.source in _SOURCES else len(_SOURCES)
    return not clock.aligned, place, clock.error_ns or 0


def duration(ns: int, *, sign: bool = False) -> str:
    """Return a time as people write it: "+137.000 ms"."""
    text = f"{ns:+d} ns" if sign else f"{ns} ns"
    for unit, size, decimals in (("µs", 1_000, 3), ("ms", 1_000_000, 3), ("s", 1_000_000_000, 6)):
        if abs(ns) >= size:
            text = f"{ns / size:+.{decimals}f} {unit}" if sign else f"{ns / size:.1f} {unit}"
    return text
