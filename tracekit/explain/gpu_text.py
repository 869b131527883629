"""The report on the GPUs as text that fits 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from tracekit.explain.cells import DEVICE_TIMES, device_lines
from tracekit.explain.text import duration, section, share, shortened, shortened_apart, table
from tracekit.wording import counted, size_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.explain.gpu import GPUReport, GPUTime

_Row = TypeVar("_Row")
_NAME_WIDTH: Final = 34
_NOISE: Final = re.compile(r"^void |at::native::|at::cuda::|\(anonymous namespace\)::|\((?!anonymous)[^(){}]*\)$")


def gpu_lines(report: GPUReport, top: int = 10, *, per_rank: bool = False) -> Iterator[str]:
    """Yield the lines of the report."""
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
    yield from device_lines(gpus, DEVICE_TIMES)


def _streams(report: GPUReport) -> Iterator[str]:
    rows = [
        (
            *(_rank(one.rank), str(one.device), str(one.stream), f"{one.activities:,}", duration(one.busy_ns)),
            *(duration(one.host_bound_ns), duration(one.dependency_ns), duration(one.other_ns), str(one.max_queued)),
        )
        for one in report.streams
    ]
    head = ("rank", "GPU", "stream", "count", "busy", "launch", "streams", "other", "queue")
    after = ("  (gaps by cause: the CPU launched late; another stream was busy; other)",)
    return section("streams", head, rows, 0, after)


def _kernels(report: GPUReport, top: int) -> Iterator[str]:
    total_ns = sum(kernel.total_ns for kernel in report.kernels) or 1
    by_type = Counter[str]()
    for kernel in report.kernels:
        by_type[kernel.type] += kernel.total_ns
    yield ""
    ordered = sorted(by_type.items(), key=lambda item: (-item[1], item[0]))
    yield "kernels: " + ", ".join(f"{name} {share(ns / total_ns)}" for name, ns in ordered)
    several = len({gpu.rank for gpu in report.gpus}) > 1
    head = ("name", "count", "total", "share", *(("least", "most", "rank") if several else ("longest",)))
    names = [_plain(kernel.name) for kernel in report.kernels[:top]]
    short = shortened_apart(names, _NAME_WIDTH - 10 if several else _NAME_WIDTH)
    rows = []
    for name, kernel in zip(names, report.kernels, strict=False):
        figures = (f"{kernel.count:,}", duration(kernel.total_ns), share(kernel.total_ns / total_ns))
        of_ranks = (duration(kernel.min_rank_ns), duration(kernel.max_rank_ns), _rank(kernel.max_rank))
        rows.append((short[name], *figures, *(of_ranks if several else (duration(kernel.longest_ns),))))
    yield from table(head, rows)
    if len(report.kernels) > top:
        rest = report.kernels[top:]
        rest_ns = sum(kernel.total_ns for kernel in rest)
        yield f"  and {counted(len(rest), 'other name')}: {duration(rest_ns)}, {share(rest_ns / total_ns)}"


def _plain(name: str) -> str:
    """Return the name of a kernel without its parameters, the type of its result and torch's namespaces."""
    return _NOISE.sub("", name.removesuffix(".kd")) or name


def _launches(report: GPUReport, *, per_rank: bool) -> Iterator[str]:
    shown = sorted(report.launches, key=lambda one: -one.median_latency_ns)
    rows = [
        (
            *(_rank(one.rank), f"{one.count:,}", duration(one.calls_ns), duration(one.median_latency_ns)),
            *(duration(one.p99_latency_ns), duration(one.max_latency_ns), share(one.short / one.count)),
        )
        for one in (report.launches if per_rank else _ends(shown))
    ]
    head = ("rank", "count", "calls", "median", "99%", "longest", "short kernels")
    after = ("  (short kernels take less time than the call that launches them)",)
    return section("launches: from the end of the CPU's call to the start on the GPU", head, rows, 0, after)


def _copies(report: GPUReport) -> Iterator[str]:
    directions: dict[str, list[int]] = {}
    for one in report.copies:
        sums = directions.setdefault(one.direction, [0, 0, 0])
        for at, value in enumerate((one.count, one.size_bytes, one.total_ns)):
            sums[at] += value
    rows = [
        (name, f"{count:,}", size_words(size), duration(ns), f"{size / ns:.2f} GB/s" if ns and size else "-")
        for name, (count, size, ns) in sorted(directions.items(), key=lambda item: -item[1][2])
    ]
    return section("copies and fills on all GPUs", ("direction", "count", "size", "time", "rate"), rows)


def _memory(report: GPUReport, *, per_rank: bool) -> Iterator[str]:
    shown = sorted(report.memory, key=lambda one: -one.max_allocated_bytes)
    rows = [
        (
            *(_rank(one.rank), "CPU" if one.device < 0 else f"GPU {one.device}", f"{one.allocations:,}"),
            *(size_words(one.allocated_bytes), size_words(one.max_allocated_bytes)),
            size_words(one.max_reserved_bytes) if one.max_reserved_bytes else "-",
        )
        for one in (report.memory if per_rank else _ends(shown))
    ]
    head = ("rank", "device", "allocations", "size", "most in use", "most reserved")
    return section("memory of torch's allocator", head, rows, 2)


def _collectives(report: GPUReport, top: int) -> Iterator[str]:
    rows = [
        (
            *(shortened(one.group, 20), one.name, str(one.group_size), size_words(one.size_bytes), f"{one.count:,}"),
            *(duration(one.median_ns), f"{one.algbw_bytes_per_s / 1e9:.2f}", f"{one.busbw_bytes_per_s / 1e9:.2f}"),
        )
        for one in report.collectives[:top]
    ]
    head = ("group", "collective", "ranks", "size", "count", "median", "algbw", "busbw")
    return section("collectives by process group and size", head, rows, 2, ("  (rates in GB/s)",))


def _ends(rows: Sequence[_Row]) -> list[_Row]:
    """Return the first three and the last of many rows."""
    return list(rows) if len(rows) <= 4 else [*rows[:3], rows[-1]]


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)
