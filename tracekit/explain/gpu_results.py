"""The time of the GPUs, as values and as lines of up to 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from tracekit.explain.results import Result
from tracekit.explain.text import ENDS, duration, range_cells, section, share, shortened, shortened_apart, table
from tracekit.wording import counted, size_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEVICE_TIMES: Final = {
    "compute": "compute_ns",
    "communication": "communication_ns",
    "  during compute": "hidden_ns",
    "copies and fills": "memory_ns",
    "idle": "idle_ns",
    "  waiting for launches": "host_bound_ns",
    "    while CPU exchanges": "host_communication_ns",
    "    while CPU runs no operator": "host_free_ns",
}
"""The times of a device that tables show, by their names there."""

_Row = TypeVar("_Row")
_NAME_WIDTH: Final = 34
_NOISE: Final = re.compile(r"^void |at::native::|at::cuda::|\(anonymous namespace\)::|\((?!anonymous)[^(){}]*\)$")


class GPUTime(Result, frozen=True, kw_only=True):
    """The time of one GPU from its first activity to the end of its last, without pauses of the profiler.

    ``compute_ns`` and ``communication_ns`` overlap by ``hidden_ns``; copies and fills may overlap both.
    """

    rank: int | None  # its rank
    device: int  # its index
    name: str  # the name of its process in the trace, such as "GPU 0"
    span_ns: int  # from the start of the first activity to the end of the last, without pauses
    busy_ns: int  # time with any activity
    compute_ns: int  # time with a kernel that computes
    communication_ns: int  # time with a kernel that communicates
    hidden_ns: int  # time with both
    memory_ns: int  # time with a copy or a fill
    idle_ns: int  # time without any activity
    host_bound_ns: int  # the part of ``idle_ns`` that ends with an activity launched after the GPU went idle
    host_communication_ns: int  # the part of ``host_bound_ns`` in which a CPU thread of the rank is in a collective
    host_free_ns: int | None  # the part of ``host_bound_ns`` without operator, CUDA call or collective; null if unknown


class Stream(Result, frozen=True, kw_only=True):
    """The idle time of one stream, between its first activity and its last, without pauses of the profiler.

    A gap before an activity has one cause. HolisticTraceAnalysis calls the last two kinds together "kernel wait" and "other".

    Attributes:
        other_ns: The rest: short delays between activities, waits for another GPU, and activities without a known launch.
    """

    rank: int | None  # the rank
    device: int  # the index of the GPU
    stream: int  # the number of the stream
    activities: int  # the number of its kernels, copies and fills
    busy_ns: int  # time with an activity
    host_bound_ns: int  # gaps before activities that the CPU launched after the one before had ended
    dependency_ns: int  # the part of the other gaps in which another stream of the GPU was busy
    other_ns: int
    mean_queued: float  # the number of launched activities that wait for their start, averaged over time
    max_queued: int  # the largest number that waits at a time


class Kernel(Result, frozen=True, kw_only=True):
    """The activities with one name on all GPUs."""

    name: str  # the name
    type: str  # "compute", "communication" or "memory"
    ranks: int  # the number of ranks that ran it
    count: int  # the number of its activities
    total_ns: int  # the sum of all durations
    min_rank_ns: int  # the sum of the rank with the least
    max_rank_ns: int  # the sum of the rank with the most
    max_rank: int | None  # the rank with the most; of equal ones, the first
    longest_ns: int  # the longest of all


class Launches(Result, frozen=True, kw_only=True):
    """The launches of a CPU on a GPU of its rank.

    Attributes:
        calls_ns: The time of the launching calls. One call that launches many activities, as a CUDA graph does, counts once.
    """

    rank: int | None  # the rank
    device: int  # the index of the GPU
    count: int  # the number of activities with a known launch
    calls_ns: int
    median_latency_ns: int  # from the end of the call to the start of the activity; 0 where it starts earlier
    p99_latency_ns: int  # the same, 99th percentile
    max_latency_ns: int  # the same, the longest
    short: int  # the number of kernels that take less time than the call that launches them


class Copies(Result, frozen=True, kw_only=True):
    """Copies and fills of one direction."""

    rank: int | None  # the rank
    device: int  # the index of the GPU
    direction: str  # such as "HtoD", or "fill"
    count: int  # the number of copies
    size_bytes: int  # the sum of their sizes, as far as the trace states them
    total_ns: int  # the sum of their durations


class Memory(Result, frozen=True, kw_only=True):
    """The memory of a device, from the events of torch's allocator."""

    rank: int | None  # the rank
    device: int  # the index of the GPU; -1 for the memory of the CPU
    allocations: int  # the number of allocations
    allocated_bytes: int  # the sum of their sizes
    max_allocated_bytes: int  # the most that was in use
    max_reserved_bytes: int | None  # the most that was taken from the driver; None if the trace does not state it
    max_at_ns: int  # the time with the most in use


class Collectives(Result, frozen=True, kw_only=True):
    """The collectives of one kind and size in one process group.

    Attributes:
        size_bytes: The size by NCCL's convention: of the larger buffer for all-gather and reduce-scatter, else of the input.
        algbw_bytes_per_s: Size by duration. With known ranks and sequence numbers, the duration is that of the last
            rank, which does not wait.
    """

    group: str  # the name of the process group, and its description where it has one
    group_size: int  # the number of its ranks
    name: str  # such as "allreduce"
    size_bytes: int
    count: int  # the number of kernels of all ranks
    median_ns: int  # the median of their durations, waiting included
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float  # the same, times NCCL's factor for what each link carries


class GPUReport(Result, frozen=True, kw_only=True):
    """The time of the GPUs of a run. Lists are empty where the traces have no such events.

    Attributes:
        gpus: The time of each GPU.
        streams: The idle time of each stream.
        kernels: The activities by name, those that take longest first.
        launches: The launches on each GPU.
        copies: Copies and fills by direction.
        memory: The memory of each device.
        collectives: The collectives by process group, kind and size, those that take longest first.
    """

    format_version: int = 1
    gpus: list[GPUTime]
    streams: list[Stream]
    kernels: list[Kernel]
    launches: list[Launches]
    copies: list[Copies]
    memory: list[Memory]
    collectives: list[Collectives]


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


def device_lines(devices: Sequence[GPUTime], times: Mapping[str, str]) -> list[str]:
    """Return a table of times of devices as shares of their spans."""
    shares = {
        name: [(part, -1 if one.rank is None else one.rank) for one in devices if (part := _part(one, key)) is not None]
        for name, key in times.items()
    }
    if len(devices) == 1:
        return table(("", "share"), [(name, share(own[0][0])) for name, own in shares.items() if own])
    return table(("", *ENDS), [(name, *range_cells(own, share)) for name, own in shares.items() if own])


def _part(device: GPUTime, key: str) -> float | None:
    """Return a time of a device as a share of its span; None if it is unknown."""
    time_ns: int | None = getattr(device, key)
    return None if time_ns is None else time_ns / (device.span_ns or 1)


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
        head = ("rank", "GPU", "compute", "comm.", "during", "copies", "idle", "launch", "exchange", "no op.")
        rows = [
            (_rank(gpu.rank), str(gpu.device), *(share(_part(gpu, key)) for key in DEVICE_TIMES.values()))
            for gpu in gpus
        ]
        yield from table(head, rows, left=0)
        yield "  (during: communication during compute; launch: idle, waiting for launches; of"
        yield "   that, exchange: the CPU exchanges data; no op.: the CPU runs no operator)"
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
