"""Which inputs were stamped by one clock: the files of a process, the ranks of a host and boot, an earlier merge.

Within a domain nothing has to be estimated. tracekit stamps with the monotonic clock, which all processes of a boot share,
and its files say how that stood to the wall clock when they began; so ranks that began before and after the wall clock was
set still fit together, and so do torch's traces, which go by the wall clock all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard

if TYPE_CHECKING:
    from tracekit.merge.input import Input

_NO_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain"})
"""Names that every host may have."""


@dataclass(slots=True)
class ClockDomain:
    """Inputs with one clock.

    Attributes:
        members: Their places among all inputs.
        shifts: The offset from each member's time to the domain's; 0 unless the wall clock was set.
        boot_id: The boot that the clock belongs to, or None.
        monotonic_base_ns: The offset from the boot's monotonic clock to the domain's time, or None.
        known: True if its times count from the epoch.
        relation: In words, why these inputs have one clock.
    """

    members: list[int]
    shifts: dict[int, int] = field(default_factory=dict)
    boot_id: str | None = None
    monotonic_base_ns: int | None = None
    known: bool = True
    relation: str = ""


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

    Args:
        item: The file.
        recordings: Rank traces of its rank, else of its boot, and what to add to the monotonic clock to get their times.
        items: All inputs.
    """
    start_ns = item.start_ns
    if start_ns is None or not recordings:
        return None
    base, number = min((abs(start_ns - (items[number].start_ns or 0)), base, number) for number, base in recordings)[1:]
    for step_ns, monotonic_ns in items[number].clock_events.steps:
        if start_ns - base - step_ns >= monotonic_ns:
            base += step_ns
    return base
