"""A summary as lines of up to 80 columns. Names are those of the trace; who prints them makes them printable."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from tracekit.explain.cells import (
    DEVICE_TIMES,
    ENDS,
    NAME_HEAD,
    device_cells,
    device_lines,
    name_rows,
    range_cells,
    step_cells,
    telling_names,
)
from tracekit.explain.text import duration, section, share, shortened, shortened_apart
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.explain.summary_results import RankSummary, TraceSummary

_MAX_RANKS: Final = 64
_MAX_GAPS: Final = 5
_WHERE_WIDTH: Final = 15
_DEVICE_SHARES: Final = {"busy": "busy_ns", **DEVICE_TIMES}


def summary_lines(summary: TraceSummary, top: int, *, per_rank: bool = False) -> Iterator[str]:
    """Yield the lines of a summary: the verdict, then tables."""
    yield from summary.verdict.sentences
    yield ""
    events = sum(file.events for file in summary.files)
    ranks = counted(len(summary.ranks), "rank")
    yield f"{counted(len(summary.files), 'file')}, {counted(events, 'event')}, {ranks}"
    if summary.timed:
        yield from _steps(summary, per_rank=per_rank)
        yield from _stages(summary.timed, top, per_rank=per_rank)
    yield from _devices(summary.ranks, per_rank=per_rank)
    yield from _markers(summary, top, per_rank=per_rank)
    threads = {(rank.rank, rank.training_thread) for rank in summary.ranks}
    rows = []
    for gap in summary.gaps[: None if per_rank else _MAX_GAPS]:
        is_long = len(gap.where) > _WHERE_WIDTH and (gap.rank, gap.where) in threads
        where = "training thread" if is_long else shortened(gap.where, _WHERE_WIDTH)
        step = "-" if gap.step is None else str(gap.step)
        around = shortened(gap.after, 17), shortened(gap.before, 17)
        rows.append((duration(gap.length_ns), str(gap.rank), where, step, *around))
    title = "longest gaps: nothing on the training thread, or nothing on a device"
    yield from section(title, ("length", "rank", "where", "step", "after", "before"), rows, 6)
    for note in summary.notes:
        yield f"note: {note}"


def _steps(summary: TraceSummary, *, per_rank: bool) -> Iterator[str]:
    timed = summary.timed
    if per_rank or len(timed) == 1:
        rows = [
            (str(rank.rank), *step_cells(rank), share(rank.loading_share), share(rank.unrecorded_share))
            for rank in summary.longest_timed(_MAX_RANKS)
        ]
        head = ("rank", "steps", "mean", "p50", "p95", "p99", "longest", "loading", "unrecorded")
        left = len(timed) - len(rows)
        return section("steps", head, rows, 0, [f"  and {counted(left, 'rank')} with shorter steps"] if left else ())
    rows = [
        (name, *range_cells([(getattr(rank.steps, f"{name}_ns"), rank.rank) for rank in timed], duration))
        for name in ("mean", "p50", "p95", "p99", "longest")
    ]
    waits = [(rank.loading_share or 0.0, rank.rank) for rank in timed if rank.loading is not None]
    if waits:
        rows.append(("waiting for data", *range_cells(waits, share)))
    rows.append(("in no marker", *range_cells([(rank.unrecorded_share or 0.0, rank.rank) for rank in timed], share)))
    return section(f"steps of {len(timed):,} ranks", ("", *ENDS), rows)


def _stages(timed: list[RankSummary], top: int, *, per_rank: bool) -> Iterator[str]:
    names = dict.fromkeys(stage.name for rank in timed for stage in rank.stages)
    each = [(rank.stage_means_ns, rank.rank) for rank in timed]
    means = {name: [(own.get(name, 0.0), rank) for own, rank in each] for name in names}
    whole = fmean(rank.steps.mean_ns for rank in timed)
    # In the order within a step; the longest ones if there are many.
    shown = set(sorted(means, key=lambda name: -fmean(mean for mean, _ in means[name]))[:top])
    wide = len(timed) > 1 and not per_rank
    short = shortened_apart(shown, 32 if wide else 40)

    def of_step(mean: float) -> str:
        return share(mean / whole if whole else None)

    rows: list[tuple[str, ...]] = []
    for name in (name for name in names if name in shown):
        if wide:
            mean = fmean(value for value, _ in means[name])
            rows.append((short[name], of_step(mean), *range_cells(means[name], duration)))
        else:
            rows += [(short[name], str(rank), duration(value), of_step(value)) for value, rank in means[name]]
    head = ("stage", "of step", *ENDS) if wide else ("stage", "rank", "mean", "of step")
    left = len(names) - len(shown)
    after = [f"  and {counted(left, 'shorter stage')}"] if left else []
    return section("stages of a step (training thread)", head, rows, after=after)


def _devices(ranks: list[RankSummary], *, per_rank: bool) -> Iterator[str]:
    devices = [(rank.rank, device) for rank in ranks for device in rank.devices]
    if per_rank:
        head = ("rank", "device", "span", "busy", "idle", "compute", "comm.", "hidden", "copies")
        rows = [(str(rank), shortened(device.name, 12), *device_cells(device)) for rank, device in devices]
        title = "devices (hidden: the part of communication during which kernels compute)"
        left = len(rows) - 2 * _MAX_RANKS
        after = [f"  and {counted(left, 'device')} more; --json has all"] if left > 0 else []
        yield from section(title, head, rows[: 2 * _MAX_RANKS], 2, after)
    elif devices:
        yield ""
        yield f"{counted(len(devices), 'device')}, as a share of the time from its first activity to its last"
        yield from device_lines([device for _, device in devices], _DEVICE_SHARES)


def _markers(summary: TraceSummary, top: int, *, per_rank: bool) -> Iterator[str]:
    if per_rank or len(summary.ranks) == 1:
        markers = summary.named_markers
        one_rank = len(summary.ranks) == 1
        names = telling_names(markers[:top])
        short = shortened_apart(names.values(), 26 if one_rank else 20)
        rows = []
        for marker in markers[:top]:
            times = map(duration, (marker.total_ns, marker.self_ns, marker.p50_ns, marker.p95_ns))
            of = () if one_rank else (str(marker.rank),)
            cells = (*of, f"{marker.count:,}", *times, share(marker.share_of_steps))
            rows.append((short[names[marker.name, marker.category]], *cells))
        head: tuple[str, ...] = ("count", "total", "self", "p50", "p95", "of steps")
        head, title = ("name", *head) if one_rank else ("name", "rank", *head), "markers by total time"
        left = len(markers) - len(rows)
    else:
        found = name_rows(summary)
        names = telling_names(found[:top])
        short = shortened_apart(names.values(), 28)
        rows = [(short[names[row.name, row.category]], *row.cells) for row in found[:top]]
        head, title = ("name", *NAME_HEAD), "markers by total time, and the total time of a rank"
        left = len(found) - len(rows)
    return section(title, head, rows, after=[f"  and {left:,} more; --top N shows N, --json all"] if left else ())
