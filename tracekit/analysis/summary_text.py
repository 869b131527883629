"""A summary as lines for a terminal. Names stand in them as they are in the trace: whoever prints them must clean them."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.analysis.cells import device_cells, marker_cells, step_cells
from tracekit.analysis.text import duration, share, shortened, table
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analysis.summary_report import RankSummary, TraceSummary

__all__ = ["summary_lines"]

_SAME: Final = 0.02
_MOST_RANKS: Final = 16


def summary_lines(summary: TraceSummary, top: int) -> Iterator[str]:
    """Yield the lines of a summary.

    Args:
        summary: What to show.
        top: How many markers, and how many stages.
    """
    events = sum(count for _, count in summary.files)
    ranks = counted(len(summary.ranks), "rank")
    yield f"{counted(len(summary.files), 'file')}, {counted(events, 'event')}, {ranks}"
    timed = summary.timed
    if timed:
        yield from _steps(summary)
        yield from _slowest(summary)
        yield from _stages(timed, top)
    elif summary.ranks:
        yield "no steps: the traces hold neither batches of tracekit nor ProfilerStep#N of torch.profiler"
    yield from _devices(summary.ranks)
    yield from _markers(summary, top)
    if summary.gaps:
        yield ""
        yield "longest gaps: nothing recorded on the training thread, or a device without work"
        rows = [
            (
                duration(gap.length_ns),
                str(gap.rank),
                shortened(gap.where, 24),
                "-" if gap.step is None else str(gap.step),
                shortened(gap.after, 32),
                shortened(gap.before, 32),
            )
            for gap in summary.gaps
        ]
        yield from table(("length", "rank", "where", "step", "after", "before"), rows, left=6)
    for note in summary.notes:
        yield f"note: {note}"


def _steps(summary: TraceSummary) -> Iterator[str]:
    yield ""
    yield "steps"
    rows = [
        (
            str(rank.rank),
            *step_cells(rank),
            "-" if rank.loading is None else share(rank.loading.share_of_steps),
            share(rank.unrecorded_ns / rank.steps_ns if rank.steps_ns else None),
        )
        for rank in summary.longest_timed(_MOST_RANKS)
    ]
    head = ("rank", "steps", "mean", "p50", "p95", "p99", "longest", "loading", "unrecorded")
    yield from table(head, rows)
    left = len(summary.timed) - len(rows)
    if left:
        yield f"  and {counted(left, 'rank')} with shorter steps"


def _slowest(summary: TraceSummary) -> Iterator[str]:
    slowest = summary.slowest
    if slowest is None:
        return
    more = slowest.step_mean_ns - slowest.median_ns
    if summary.stragglers:
        worst = summary.stragglers[0]
        yield (
            f"slowest rank: {worst.rank}, which is behind the others in {worst.stage} by {duration(worst.mean_ns)} a step "
            f"({share(worst.share_of_step)} of it): see tracekit stragglers"
        )
    elif more >= _SAME * slowest.median_ns:
        yield (
            f"slowest rank: {slowest.rank}, {duration(slowest.step_mean_ns)} a step, {duration(more)} more than the median "
            "of the ranks"
        )
    else:
        yield (
            f"slowest rank: {slowest.rank}, but all take about the same time: {duration(slowest.step_mean_ns)} a step, "
            f"{duration(more)} more than the median of the ranks"
        )


def _stages(timed: list[RankSummary], top: int) -> Iterator[str]:
    names = dict.fromkeys(stage.name for rank in timed for stage in rank.stages)
    each = [(rank.stage_means_ns, rank.rank) for rank in timed]
    means = {name: [(own.get(name, 0.0), rank) for own, rank in each] for name in names}
    whole = fmean(rank.step_mean_ns for rank in timed)
    # In the order within a step; of many, those that take longest.
    shown = set(sorted(means, key=lambda name: -fmean(mean for mean, _ in means[name]))[:top])
    if not shown:
        return
    yield ""
    yield "stages of a step (training thread, mean of all ranks)"
    rows = []
    for name in names:
        if name in shown:
            mean = fmean(value for value, _ in means[name])
            longest, rank = max(means[name], key=lambda pair: (pair[0], -pair[1]))
            rows.append(
                (shortened(name), duration(mean), share(mean / whole if whole else None), duration(longest), str(rank))
            )
    yield from table(("stage", "mean", "share", "longest", "on rank"), rows)
    if len(names) > len(rows):
        yield f"  and {counted(len(names) - len(rows), 'shorter stage')}"


def _devices(ranks: list[RankSummary]) -> Iterator[str]:
    rows = [
        (str(rank.rank), shortened(device.name, 24), *device_cells(device)) for rank in ranks for device in rank.devices
    ]
    if rows:
        yield ""
        yield "devices (hidden: the part of communication during which kernels compute)"
        head = ("rank", "device", "span", "busy", "idle", "compute", "communication", "hidden", "copies")
        yield from table(head, rows[: 2 * _MOST_RANKS], left=2)
        if len(rows) > 2 * _MOST_RANKS:
            yield f"  and {counted(len(rows) - 2 * _MOST_RANKS, 'device')} more; --json has all"


def _markers(summary: TraceSummary, top: int) -> Iterator[str]:
    markers = summary.named_markers
    if not markers:
        return
    yield ""
    yield "markers (by total time)"
    rows = [
        (shortened(marker.name), shortened(marker.category, 16), str(marker.rank), *marker_cells(marker))
        for marker in markers[:top]
    ]
    head = ("name", "category", "rank", "count", "total", "self", "mean", "p50", "p95", "p99", "of steps")
    yield from table(head, rows, left=2)
    if len(markers) > len(rows):
        yield f"  and {len(markers) - len(rows):,} more; --top N shows N, --json all"
