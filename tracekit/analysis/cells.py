"""Cells that are alike wherever a table of them stands: on the terminal, in the report, on the pages of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analysis.summary_report import percentile
from tracekit.analysis.text import duration, share
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.analysis.stragglers_report import CollectiveReport, Member
    from tracekit.analysis.summary_report import DeviceSummary, MarkerSummary, RankSummary

__all__ = ["device_cells", "marker_cells", "member_cells", "spread_words", "step_cells"]


def step_cells(rank: RankSummary) -> tuple[str, ...]:
    """Return of the steps of a rank, which has some: count, mean, p50, p95, p99, longest."""
    durations = rank.step_durations_ns
    return (
        f"{len(durations):,}",
        duration(rank.step_mean_ns),
        *(duration(percentile(durations, percent)) for percent in (50, 95, 99)),
        duration(max(durations)),
    )


def device_cells(device: DeviceSummary) -> tuple[str, ...]:
    """Return of a device: span, and of it busy, idle, compute, communication, how much of that is hidden, copies."""
    time = device.time
    whole = time.span_ns or 1
    return (
        duration(time.span_ns),
        *(share(part / whole) for part in (time.busy_ns, time.idle_ns, time.compute_ns, time.communication_ns)),
        share(time.hidden_ns / time.communication_ns if time.communication_ns else None),
        share(time.memory_ns / whole),
    )


def marker_cells(marker: MarkerSummary) -> tuple[str, ...]:
    """Return of a marker: count, total, self, mean, p50, p95, p99, share of the steps."""
    times = (marker.total_ns, marker.self_ns, marker.mean_ns, marker.p50_ns, marker.p95_ns, marker.p99_ns)
    return (f"{marker.count:,}", *map(duration, times), share(marker.share_of_steps))


def member_cells(member: Member) -> tuple[str, ...]:
    """Return of a member of collectives: how many, mean wait, mean transfer, how often it came last, how late on average."""
    return (
        f"{member.count:,}",
        duration(member.wait_ns / member.count),
        duration(member.transfer_ns / member.count),
        share(member.last / member.count),
        duration(member.mean_late_ns),
    )


def spread_words(found: CollectiveReport) -> str:
    """Return how far apart the members of collectives come."""
    return (
        f"{counted(found.count, 'collective')}: first and last member come {duration(found.spread_median_ns)} apart in the "
        f"median, {duration(found.spread_longest_ns)} at most"
    )
