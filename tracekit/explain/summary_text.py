"""A summary as lines of up to 80 columns. Names are those of the trace; who prints them makes them printable."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.explain.cells import (
    DEVICE_TIMES,
    NAME_HEAD,
    device_cells,
    name_rows,
    range_cells,
    step_cells,
    telling_names,
)
from tracekit.explain.text import duration, share, shortened, shortened_apart, table
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.explain.gpu import GPUTime
    from tracekit.explain.summary_results import MarkerSummary, RankSummary, TraceSummary

_MAX_RANKS: Final = 64
_MAX_GAPS: Final = 5
_WHERE_WIDTH: Final = 15
_ENDS: Final = ("least", "median", "most", "on rank")
_DEVICE_SHARES: Final = {"busy": "busy_ns", **DEVICE_TIMES}


def summary_lines(summary: TraceSummary, top: int, *, per_rank: bool = False) -> Iterator[str]:
    """Yield the lines of a summary: the verdict, then tables.

    Args:
        summary: The summary.
        top: The number of markers, and of stages, to show.
        per_rank: Show each rank instead of the least, the median and the most of all ranks.
    """
    yield from summary.verdict.sentences
    yield ""
    events = sum(file.events for file in summary.files)
    ranks = counted(len(summary.ranks), "rank")
    yield f"{counted(len(summary.files), 'file')}, {counted(events, 'event')}, {ranks}"
    timed = summary.timed
    if timed:
        yield ""
        yield from _steps(summary, per_rank=per_rank)
        yield from _stages(timed, top, per_rank=per_rank)
    yield from _devices(summary.ranks, per_rank=per_rank)
    yield from _markers(summary, top, per_rank=per_rank)
    if summary.gaps:
        yield ""
        yield "longest gaps: nothing on the training thread, or nothing on a device"
        threads = {(rank.rank, rank.training_thread) for rank in summary.ranks}
        rows = [
            (
                duration(gap.length_ns),
                str(gap.rank),
                "training thread"
                if len(gap.where) > _WHERE_WIDTH and (gap.rank, gap.where) in threads
                else shortened(gap.where, _WHERE_WIDTH),
                "-" if gap.step is None else str(gap.step),
                shortened(gap.after, 17),
                shortened(gap.before, 17),
            )
            for gap in summary.gaps[: len(summary.gaps) if per_rank else _MAX_GAPS]
        ]
        yield from table(("length", "rank", "where", "step", "after", "before"), rows, left=6)
    for note in summary.notes:
        yield f"note: {note}"


def _steps(summary: TraceSummary, *, per_rank: bool) -> Iterator[str]:
    timed = summary.timed
    if per_rank or len(timed) == 1:
        yield "steps"
        rows = [
            (
                str(rank.rank),
                *step_cells(rank),
                "-" if rank.loading is None else share(rank.loading.share_of_steps),
                share(rank.unrecorded_share),
            )
            for rank in summary.longest_timed(_MAX_RANKS)
        ]
        yield from table(
            ("rank", "steps", "mean", "p50", "p95", "p99", "longest", "loading", "unrecorded"), rows, left=0
        )
        if len(timed) > len(rows):
            yield f"  and {counted(len(timed) - len(rows), 'rank')} with shorter steps"
        return
    yield f"steps of {len(timed):,} ranks"
    figures: dict[str, Callable[[RankSummary], float]] = {
        "mean": lambda rank: rank.steps.mean_ns,
        "p50": lambda rank: rank.steps.p50_ns,
        "p95": lambda rank: rank.steps.p95_ns,
        "p99": lambda rank: rank.steps.p99_ns,
        "longest": lambda rank: rank.steps.longest_ns,
    }
    rows = [(name, *range_cells([(own(rank), rank.rank) for rank in timed], duration)) for name, own in figures.items()]
    waits = [(rank.loading.share_of_steps or 0.0, rank.rank) for rank in timed if rank.loading is not None]
    if waits:
        rows.append(("waiting for data", *range_cells(waits, share)))
    rows.append(("in no marker", *range_cells([(rank.unrecorded_share or 0.0, rank.rank) for rank in timed], share)))
    yield from table(("", *_ENDS), rows)


def _stages(timed: list[RankSummary], top: int, *, per_rank: bool) -> Iterator[str]:
    names = dict.fromkeys(stage.name for rank in timed for stage in rank.stages)
    each = [(rank.stage_means_ns, rank.rank) for rank in timed]
    means = {name: [(own.get(name, 0.0), rank) for own, rank in each] for name in names}
    whole = fmean(rank.steps.mean_ns for rank in timed)
    # In the order within a step; the longest ones if there are many.
    shown = set(sorted(means, key=lambda name: -fmean(mean for mean, _ in means[name]))[:top])
    if not shown:
        return
    several = len(timed) > 1
    yield ""
    yield "stages of a step (training thread)"
    rows = []
    wide = several and not per_rank
    short = shortened_apart(shown, 32 if wide else 40)
    for name in names:
        if name not in shown:
            continue
        mean = fmean(value for value, _ in means[name])
        of_step = share(mean / whole if whole else None)
        if wide:
            rows.append((short[name], of_step, *range_cells(means[name], duration)))
        else:
            rows += [
                (short[name], str(rank), duration(value), share(value / whole if whole else None))
                for value, rank in means[name]
            ]
    yield from table(("stage", "of step", *_ENDS) if wide else ("stage", "rank", "mean", "of step"), rows)
    if len(names) > len(shown):
        yield f"  and {counted(len(names) - len(shown), 'shorter stage')}"


def _devices(ranks: list[RankSummary], *, per_rank: bool) -> Iterator[str]:
    devices = [(rank.rank, device) for rank in ranks for device in rank.devices]
    if not devices:
        return
    yield ""
    if per_rank:
        yield "devices (hidden: the part of communication during which kernels compute)"
        head = ("rank", "device", "span", "busy", "idle", "compute", "comm.", "hidden", "copies")
        rows = [(str(rank), shortened(device.name, 12), *device_cells(device)) for rank, device in devices]
        yield from table(head, rows[: 2 * _MAX_RANKS], left=2)
        if len(rows) > 2 * _MAX_RANKS:
            yield f"  and {counted(len(rows) - 2 * _MAX_RANKS, 'device')} more; --json has all"
        return
    yield f"{counted(len(devices), 'device')}, as a share of the time from its first activity to its last"

    def shares(key: str) -> list[tuple[float, int]]:
        return [(_part(device, key), rank) for rank, device in devices]

    if len(devices) == 1:
        yield from table(("", "share"), [(name, share(shares(key)[0][0])) for name, key in _DEVICE_SHARES.items()])
    else:
        yield from table(
            ("", *_ENDS), [(name, *range_cells(shares(key), share)) for name, key in _DEVICE_SHARES.items()]
        )


def _part(device: GPUTime, key: str) -> float:
    return float(getattr(device, key)) / (device.span_ns or 1)


def _markers(summary: TraceSummary, top: int, *, per_rank: bool) -> Iterator[str]:
    markers = summary.named_markers
    if not markers:
        return
    yield ""
    if per_rank or len(summary.ranks) == 1:
        yield "markers by total time"
        one_rank = len(summary.ranks) == 1
        names = telling_names(markers[:top])
        short = shortened_apart(names.values(), 26 if one_rank else 20)
        rows = [
            (short[names[marker.name, marker.category]], *_marker_cells(marker, one_rank=one_rank))
            for marker in markers[:top]
        ]
        head = (
            "name",
            *(() if one_rank else ("rank",)),
            "count",
            "total",
            "self",
            "p50",
            "p95",
            "of steps",
        )
        yield from table(head, rows)
        left = len(markers) - len(rows)
    else:
        yield "markers by total time, and the total time of a rank"
        found = name_rows(summary)
        names = telling_names(found[:top])
        short = shortened_apart(names.values(), 28)
        rows = [(short[names[row.name, row.category]], *row.cells) for row in found[:top]]
        yield from table(("name", *NAME_HEAD), rows)
        left = len(found) - min(top, len(found))
    if left:
        yield f"  and {left:,} more; --top N shows N, --json all"


def _marker_cells(marker: MarkerSummary, *, one_rank: bool) -> tuple[str, ...]:
    times = (marker.total_ns, marker.self_ns, marker.p50_ns, marker.p95_ns)
    cells = (f"{marker.count:,}", *map(duration, times), share(marker.share_of_steps))
    return cells if one_rank else (str(marker.rank), *cells)
