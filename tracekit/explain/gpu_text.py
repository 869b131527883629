"""The report on the GPUs as text that fits 80 columns."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Final, TypeVar

from tracekit.explain.cells import DEVICE_TIMES
from tracekit.explain.text import duration, share, shortened, shortened_apart, table
from tracekit.wording import counted, size_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.explain.gpu import GPUReport, GPUTime, Kernel

_Row = TypeVar("_Row")
_NAME_WIDTH: Final = 34
_NOISE: Final = re.compile(r"^void |at::native::|at::cuda::|\(anonymous namespace\)::|\((?!anonymous)[^(){}]*\)$")


def gpu_lines(report: GPUReport, top: int = 10, *, per_rank: bool = False) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        report: The report.
        top: How many kernels, and rows of collectives, to show.
        per_rank: Show each GPU and each stream instead of the least, the median and the most.
    """
    if not report.gpus:
        yield "no kernel, copy or fill of a GPU is in these traces"
    else:
        yield from _gpus(report.gpus, per_rank=per_rank)
        if per_rank:
            yield from _streams(report)
        yield from _kernels(report, top)
        yield from _launches(report, per_rank=per_rank)
        yield from _copies(report)
        yield from _collectives(report, top)
    yield from _memory(report, per_rank=per_rank)


def _gpus(gpus: Sequence[GPUTime], *, per_rank: bool) -> Iterator[str]:
    spans = sorted(gpu.span_ns for gpu in gpus)
    span = " to ".join(dict.fromkeys(map(duration, (spans[0], spans[-1]))))
    yield f"{counted(len(gpus), 'GPU')}, {span} from the first activity to the last"
    yield ""
    yield "time of the GPUs, as a share of that"
    if per_rank:
        head = ("rank", "GPU", "compute", "comm.", "during", "copies", "idle", "launch", "exchange")
        rows = [
            (
                _rank(gpu.rank),
                str(gpu.device),
                *(share(getattr(gpu, key) / (gpu.span_ns or 1)) for key in DEVICE_TIMES.values()),
            )
            for gpu in gpus
        ]
        yield from table(head, rows, left=0)
        yield "  (during: communication during compute; launch: idle, waiting for launches;"
        yield "   exchange: the part of that in which the CPU exchanges data)"
        return
    rows = []
    for name, key in DEVICE_TIMES.items():
        shares = sorted((getattr(gpu, key) / (gpu.span_ns or 1), _rank(gpu.rank)) for gpu in gpus)
        most, rank = shares[-1]
        rows.append((name, share(shares[0][0]), share(median(value for value, _ in shares)), share(most), rank))
    if len(gpus) > 1:
        yield from table(("", "least", "median", "most", "on rank"), rows)
    else:
        yield from table(("", "share"), [row[:2] for row in rows])


def _streams(report: GPUReport) -> Iterator[str]:
    yield ""
    yield "streams"
    head = ("rank", "GPU", "stream", "count", "busy", "launch", "streams", "other", "queue")
    rows = [
        (
            *(_rank(one.rank), str(one.device), str(one.stream), f"{one.activities:,}", duration(one.busy_ns)),
            *(duration(one.host_bound_ns), duration(one.dependency_ns), duration(one.other_ns), str(one.max_queued)),
        )
        for one in report.streams
    ]
    yield from table(head, rows, left=0)
    yield "  (gaps by cause: the CPU launched late; another stream was busy; other)"


def _kernels(report: GPUReport, top: int) -> Iterator[str]:
    total_ns = sum(kernel.total_ns for kernel in report.kernels) or 1
    by_type: dict[str, int] = {}
    for kernel in report.kernels:
        by_type[kernel.type] = by_type.get(kernel.type, 0) + kernel.total_ns
    yield ""
    yield "kernels: " + ", ".join(
        f"{name} {share(ns / total_ns)}" for name, ns in sorted(by_type.items(), key=_least_last)
    )
    several = len({gpu.rank for gpu in report.gpus}) > 1
    head = ("name", "count", "total", "share", *(("least", "most", "rank") if several else ("longest",)))
    names = [_plain(kernel.name) for kernel in report.kernels[:top]]
    short = shortened_apart(names, _NAME_WIDTH - 10 if several else _NAME_WIDTH)
    rows = [
        (short[name], *_kernel_cells(kernel, total_ns, several=several))
        for name, kernel in zip(names, report.kernels, strict=False)
    ]
    yield from table(head, rows)
    if len(report.kernels) > top:
        rest = report.kernels[top:]
        rest_ns = sum(kernel.total_ns for kernel in rest)
        yield f"  and {counted(len(rest), 'other name')}: {duration(rest_ns)}, {share(rest_ns / total_ns)}"


def _kernel_cells(kernel: Kernel, total_ns: int, *, several: bool) -> tuple[str, ...]:
    figures = (f"{kernel.count:,}", duration(kernel.total_ns), share(kernel.total_ns / total_ns))
    if several:
        of_ranks = (duration(kernel.min_rank_ns), duration(kernel.max_rank_ns), _rank(kernel.max_rank))
        return (*figures, *of_ranks)
    return (*figures, duration(kernel.longest_ns))


def _plain(name: str) -> str:
    """Return the name of a kernel without its parameters, the type of its result and torch's namespaces."""
    return _NOISE.sub("", name.removesuffix(".kd")) or name


def _launches(report: GPUReport, *, per_rank: bool) -> Iterator[str]:
    if not report.launches:
        return
    yield ""
    yield "launches: from the end of the CPU's call to the start on the GPU"
    shown = sorted(report.launches, key=lambda one: -one.median_latency_ns)
    rows = [
        (
            *(_rank(one.rank), f"{one.count:,}", duration(one.calls_ns), duration(one.median_latency_ns)),
            *(duration(one.p99_latency_ns), duration(one.max_latency_ns), share(one.short / one.count)),
        )
        for one in (report.launches if per_rank else _ends(shown))
    ]
    yield from table(("rank", "count", "calls", "median", "99%", "longest", "short kernels"), rows, left=0)
    yield "  (short kernels take less time than the call that launches them)"


def _copies(report: GPUReport) -> Iterator[str]:
    if not report.copies:
        return
    directions: dict[str, list[int]] = {}
    for one in report.copies:
        sums = directions.setdefault(one.direction, [0, 0, 0])
        for at, value in enumerate((one.count, one.size_bytes, one.total_ns)):
            sums[at] += value
    yield ""
    yield "copies and fills on all GPUs"
    rows = [
        (name, f"{count:,}", size_words(size), duration(ns), f"{size / ns:.2f} GB/s" if ns and size else "-")
        for name, (count, size, ns) in sorted(directions.items(), key=lambda item: -item[1][2])
    ]
    yield from table(("direction", "count", "size", "time", "rate"), rows)


def _memory(report: GPUReport, *, per_rank: bool) -> Iterator[str]:
    if not report.memory:
        return
    yield ""
    yield "memory of torch's allocator"
    shown = sorted(report.memory, key=lambda one: -one.max_allocated_bytes)
    rows = [
        (
            *(_rank(one.rank), "CPU" if one.device < 0 else f"GPU {one.device}", f"{one.allocations:,}"),
            *(size_words(one.allocated_bytes), size_words(one.max_allocated_bytes)),
            size_words(one.max_reserved_bytes) if one.max_reserved_bytes else "-",
        )
        for one in (report.memory if per_rank else _ends(shown))
    ]
    yield from table(("rank", "device", "allocations", "size", "most in use", "most reserved"), rows, left=2)


def _collectives(report: GPUReport, top: int) -> Iterator[str]:
    if not report.collectives:
        return
    yield ""
    yield "collectives by process group and size"
    rows = [
        (
            *(shortened(one.group, 20), one.name, str(one.group_size), size_words(one.size_bytes), f"{one.count:,}"),
            *(duration(one.median_ns), _rate(one.algbw_bytes_per_s), _rate(one.busbw_bytes_per_s)),
        )
        for one in report.collectives[:top]
    ]
    yield from table(("group", "collective", "ranks", "size", "count", "median", "algbw", "busbw"), rows, left=2)
    yield "  (rates in GB/s)"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f}"


def _ends(rows: Sequence[_Row]) -> list[_Row]:
    """Return the first three and the last of many rows."""
    return list(rows) if len(rows) <= 4 else [*rows[:3], rows[-1]]


def _least_last(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)
