"""Which clock places each input on the merged timeline, and what that is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.formats.late_times import EXACT_NS
from tracekit.formats.rank_trace import base_time_ns

if TYPE_CHECKING:
    from tracekit.merge.inputs import Input

__all__ = ["describe_clocks", "place"]


def place(inputs: list[Input]) -> tuple[int, list[int], list[str]]:
    """Find the base of the merged trace and what to add to the times of each input.

    The base is the point of Kineto's grid before the earliest event, so that numbers stay small enough to be exact as
    doubles and traces of one quarter of a year need no shift. Inputs that do not tell their clock are placed at the start
    of those that do, and a warning says so; when none tells it, their times stay as they are.

    Returns:
        The base in ns since the epoch (0 when unknown), the shift of each input in ns, and warnings.
    """
    starts = [item.scan.start_ns for item in inputs if item.scan.start_ns is not None]
    warnings: list[str] = []
    if not starts:
        lowest = min((item.scan.lowest_ns or 0 for item in inputs), default=0)
        if len(inputs) > 1:
            warnings.append("no input tells its clock: all times are taken to count from one common start")
        return 0, [max(0, -lowest)] * len(inputs), warnings
    first = min(starts)
    base = base_time_ns(first)
    shifts = []
    latest = first
    for item in inputs:
        own = item.scan.base_ns
        if own is not None:
            shifts.append(own - base)
            latest = max(latest, own + (item.scan.highest_ns or 0)) if item.scan.start_ns is not None else latest
            continue
        shifts.append(first - base - (item.scan.lowest_ns or 0))
        warnings.append(
            f"{item.scan.path} does not tell its clock (no baseTimeNanoseconds, no epoch times): "
            f"its first event is placed at the start of the others; rank {item.rank} is not aligned"
        )
    if latest - base > EXACT_NS:
        warnings.append(
            f"the inputs span {(latest - first) // 86_400_000_000_000} days: viewers show times that late less exactly "
            "than to the nanosecond"
        )
    return base, shifts, warnings


def describe_clocks(inputs: list[Input]) -> dict[int, str]:
    """Return for each rank, in words, the clock that places it and what is known about its error."""
    # A torch trace names its host at best; the rank trace beside it knows the boot as well.
    hosts: dict[int, set[str]] = {}
    boots: dict[int, set[str]] = {}
    for item in inputs:
        hosts.setdefault(item.rank, set()).update({item.host} if item.host else ())
        boot = item.scan.metadata.get("boot_id")
        boots.setdefault(item.rank, set()).update({boot} if isinstance(boot, str) else ())
    if not all(hosts.values()):
        relation = "host unknown"
    elif len(set().union(*hosts.values())) > 1:
        relation = "different hosts: error unknown"
    elif all(boots.values()) and len(set().union(*boots.values())) == 1:
        relation = "same host and boot"
    else:
        relation = "same host"
    clocks: dict[int, str] = {}
    for item in inputs:
        ranks = {rank for rank, _, _ in item.merged_processes.values()} or {item.rank}
        for rank in ranks:
            if item.scan.kind == "merged":
                clock = "as placed by an earlier merge"
            elif item.scan.base_ns is None:
                clock = "unknown"
            else:
                clock = f"wall clock; {relation}"
            if "unknown" in (clock, clocks.get(rank)):
                clock = "unknown"
            clocks[rank] = clock
    return clocks
