"""Clock domains: the inputs with one clock (the files of a process, the ranks of a host and boot, an earlier merge).

Within a domain nothing has to be estimated. tracekit stamps with the monotonic clock, which all processes of a boot share,
and its files say how that stood to the wall clock when they began; so ranks that began before and after the wall clock was
set still fit together, and so do torch's traces, which go by the wall clock all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from tracekit.merge.align.alignment import ClockPath, find_paths
from tracekit.merge.align.clock_map import ClockMap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.merge.align.alignment import Link
    from tracekit.merge.input import Input

_NO_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain"})
"""Names that every host may have."""


@dataclass(slots=True)
class ClockDomain:
    """Inputs with one clock, and its place on the merged timeline, which `solve` finds.

    Attributes:
        members: Their places among all inputs.
        shifts: The offset from each member's time to the domain's; 0 unless the wall clock was set.
        monotonic_base_ns: The offset from the boot's monotonic clock to the domain's time, or None.
        known: True if its times count from the epoch.
        relation: In words, why these inputs have one clock.
        path: The way to the reference's clock; if the domain is not ``aligned``, to that of another domain, or to its own.
        absolute: True if its moved times count from the epoch.
        reason: The reason why it is not aligned, or empty.
        among: The ranks that are aligned with each other.
    """

    members: list[int]
    shifts: dict[int, int] = field(default_factory=dict)
    boot_id: str | None = None
    monotonic_base_ns: int | None = None
    known: bool = True
    relation: str = ""
    path: ClockPath = field(default_factory=ClockPath)
    aligned: bool = False
    absolute: bool = True
    reason: str = ""
    among: list[int] = field(default_factory=list)
    map: ClockMap = field(default_factory=lambda: ClockMap.constant(0))
    error_ns: int = 0


def boot_of(item: Input) -> str | None:
    """Return the id of the boot that an input was recorded in, or None."""
    boot = item.identity.get("boot_id")
    return boot if isinstance(boot, str) and boot else None


def monotonic_base_ns(item: Input) -> int | None:
    """Return what to add to the monotonic clock to get the times of a rank trace; None for other files."""
    anchor = item.identity.get("clock")
    if item.kind != "tracekit" or not isinstance(anchor, dict):
        return None
    wall, monotonic = anchor.get("wall_ns"), anchor.get("monotonic_ns")
    return wall - monotonic if _is_time(wall) and _is_time(monotonic) else None


def _is_time(value: Any) -> TypeGuard[int]:
    return type(value) is int and abs(value) < 2**62


def find_domains(items: list[Input]) -> list[ClockDomain]:
    """Divide the inputs by their clocks; in the order of their first members."""
    keys: list[Any] = [_own_key(number, item) for number, item in enumerate(items)]
    _adopt(items, keys)
    domains: dict[Any, ClockDomain] = {}
    for number, key in enumerate(keys):
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
    boot = boot_of(item)
    if boot is not None:
        return "boot", boot
    host = item.host
    return ("host", host) if host is not None and host not in _NO_NAMES else None


def _adopt(items: list[Input], keys: list[Any]) -> None:
    """Tie inputs without a boot id to inputs of the same process, rank or host."""
    boots: dict[str, set[Any]] = {}
    for item, key in zip(items, keys, strict=True):
        if key is not None and key[0] == "boot" and item.host is not None:
            boots.setdefault(item.host, set()).add(key)
    told = list(keys)
    ranks: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        ranks.setdefault(item.rank, []).append(number)
    for number, item in enumerate(items):
        key = told[number]
        if key is not None and key[0] != "host":
            continue
        same_rank = [
            (items[place], told[place])
            for place in ranks[item.rank]
            if told[place] is not None
            and told[place][0] in ("boot", "host")
            and (key is None or items[place].host in (None, item.host))
        ]
        same_process = {found for other, found in same_rank if found[0] == "boot" and other.pids & item.pids}
        of_rank = {found for _, found in same_rank if found != key}
        of_host = boots.get(key[1], set()) if key is not None else set()
        for candidates in (same_process, of_rank, of_host):
            # Several boots of a host, or several hosts of one name, are ambiguous.
            if len(candidates) == 1:
                key = next(iter(candidates))
                break
        keys[number] = key or ("rank", item.rank)


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
        item = items[number]
        own = monotonic_base_ns(item)
        if own is None:
            own = _base_under(item, by_rank.get(item.rank, recordings), items)
        # Readings of two clocks at one moment are a little apart; what is more was set.
        if own is not None and abs(domain.monotonic_base_ns - own) > STEP_TOLERANCE_NS:
            domain.shifts[number] = domain.monotonic_base_ns - own


def _base_under(item: Input, recordings: list[tuple[int, int]], items: list[Input]) -> int | None:
    """Return how the wall clock stood to the monotonic one when a file that goes by the wall clock began.

    ``recordings`` are rank traces of its rank, else of its boot, with what to add to the monotonic clock.
    """
    start_ns = item.start_ns
    if start_ns is None or not recordings:
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
        ranks = sorted(
            {rank for other, _ in island for member in domains[other].members for rank in items[member].ranks}
        )
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
    # Keep a wall clock that differs from the reference's by less than the error: it may be better than the collectives.
    if domain.known and domain.aligned and path.by_collectives:
        first = path.links[0].estimate
        measured = (low, high, first.from_ns, first.to_ns)
        if all(abs(domain.map.offset_at(time)) <= path.error_at(time) for time in measured):
            domain.map = ClockMap.constant(0)
    domain.error_ns = max(
        path.error_at(time) + abs(path.offset_at(time) - domain.map.offset_at(time)) for time in (low, high)
    )
