"""Cells of tables that are the same on the terminal, in the report and on the pages of the service."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from tracekit.explain.text import duration, share, table
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracekit.explain.gpu import GPUTime
    from tracekit.explain.stragglers_results import CollectiveReport, Member
    from tracekit.explain.summary_results import MarkerSummary, RankSummary, TraceSummary

DEVICE_TIMES: Final = {
    "compute": "compute_ns",
    "communication": "communication_ns",
    "  during compute": "hidden_ns",
    "copies and fills": "memory_ns",
    "idle": "idle_ns",
    "  waiting for launches": "host_bound_ns",
    "    while CPU exchanges": "host_communication_ns",
}
"""The times of a device that tables show, by their names there."""

ENDS: Final = ("least", "median", "most", "on rank")  # the headings of `range_cells`


def step_cells(rank: RankSummary) -> tuple[str, ...]:
    """Return the count, mean, p50, p95, p99 and longest of the steps of a rank."""
    steps = rank.steps
    times = (steps.mean_ns, steps.p50_ns, steps.p95_ns, steps.p99_ns, steps.longest_ns)
    return (f"{steps.count:,}", *map(duration, times))


def device_cells(device: GPUTime) -> tuple[str, ...]:
    """Return the span of a device and its shares: busy, idle, compute, communication, how much of that is hidden, copies."""
    whole = device.span_ns or 1
    parts = (device.busy_ns, device.idle_ns, device.compute_ns, device.communication_ns)
    return (
        duration(device.span_ns),
        *(share(part / whole) for part in parts),
        share(device.hidden_ns / device.communication_ns if device.communication_ns else None),
        share(device.memory_ns / whole),
    )


@dataclass(frozen=True, slots=True)
class NameRow:
    """All slices of one name and category on all ranks.

    Attributes:
        cells: Count; least, median and most of the ranks' total times; the rank with the most; median share of the steps.
    """

    name: str  # the name
    category: str  # the category; empty if it is missing
    cells: tuple[str, ...]


def telling_names(markers: Iterable[MarkerSummary | NameRow]) -> dict[tuple[str, str], str]:
    """Return a text for each name and category: the name, with the category where several categories have the name."""
    categories: dict[str, set[str]] = {}
    for one in markers:
        categories.setdefault(one.name, set()).add(one.category)
    return {
        (name, category): f"{name} ({category or 'no category'})" if len(own) > 1 else name
        for name, own in categories.items()
        for category in own
    }


NAME_HEAD: Final = ("count", "least", "median", "most", "rank", "of steps")  # the headings of `NameRow.cells`


def name_rows(summary: TraceSummary) -> list[NameRow]:
    """Return a row for each name that is not a frame, those of the longest total time first."""
    by_name: dict[tuple[str, str], list[MarkerSummary]] = {}
    for marker in summary.markers:
        if not marker.frame:
            by_name.setdefault((marker.name, marker.category), []).append(marker)
    ranks = dict.fromkeys((rank.rank for rank in summary.ranks), 0)
    rows = []
    for (name, category), own in sorted(
        by_name.items(), key=lambda item: (-sum(marker.total_ns for marker in item[1]), item[0])
    ):
        totals = [(total, rank) for rank, total in (ranks | {marker.rank: marker.total_ns for marker in own}).items()]
        of_steps = share(median(marker.share_of_steps or 0.0 for marker in own))
        cells = (f"{sum(marker.count for marker in own):,}", *range_cells(totals, duration), of_steps)
        rows.append(NameRow(name, category, cells))
    return rows


def range_cells(values: Sequence[tuple[float, int]], text: Callable[[float], str]) -> tuple[str, ...]:
    """Return the least, the median and the most of values with their ranks, and the rank with the most."""
    most, rank = max(values, key=lambda pair: (pair[0], -pair[1]))
    return text(min(values)[0]), text(median(value for value, _ in values)), text(most), "-" if rank < 0 else str(rank)


def device_lines(devices: Sequence[GPUTime], times: Mapping[str, str]) -> list[str]:
    """Return a table of times of devices as shares of their spans."""
    shares = {
        name: [(getattr(one, key) / (one.span_ns or 1), -1 if one.rank is None else one.rank) for one in devices]
        for name, key in times.items()
    }
    if len(devices) == 1:
        return table(("", "share"), [(name, share(own[0][0])) for name, own in shares.items()])
    return table(("", *ENDS), [(name, *range_cells(own, share)) for name, own in shares.items()])


def member_cells(member: Member) -> tuple[str, ...]:
    """Return the count of a member's collectives, mean wait, mean transfer, how often it came last, and its mean delay."""
    return (
        f"{member.count:,}",
        duration(member.wait_ns / member.count),
        duration(member.transfer_ns / member.count),
        share(member.last / member.count),
        duration(member.mean_late_ns),
    )


def spread_words(found: CollectiveReport) -> str:
    """Return the time between the first and the last member of collectives."""
    return (
        f"{counted(found.count, 'collective')}: first and last member come {duration(found.spread_median_ns)} apart in the "
        f"median, {duration(found.spread_longest_ns)} at most"
    )
