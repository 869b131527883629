"""How long something was going on: the union of intervals that come in the order of their starts."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from tracekit.analysis.markers import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.spill import Row

__all__ = ["DeviceTime", "Gap", "Longest", "Union", "device_time"]


class Gap(NamedTuple):
    """A stretch in which nothing was recorded, between two slices.

    Attributes:
        length_ns: How long.
        start_ns: When it began.
        before, after: Numbers of the markers that it lies between.
    """

    length_ns: int
    start_ns: int
    before: int
    after: int


class Longest:
    """The longest of any number of gaps.

    Args:
        most: How many to keep.
        skip: Returns True for a stretch that is no gap, by its start and end.
    """

    def __init__(self, most: int, skip: Callable[[int, int], bool] | None = None) -> None:
        self._most = most
        self._skip = skip
        self._heap: list[Gap] = []

    def take(self, start: int, end: int, before: int, after: int) -> None:
        """Take a gap."""
        length = end - start
        kept = len(self._heap) < self._most or length > self._heap[0].length_ns
        if not kept or (self._skip is not None and self._skip(start, end)):
            return
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, Gap(length, start, before, after))
        else:
            heapq.heapreplace(self._heap, Gap(length, start, before, after))

    @property
    def gaps(self) -> list[Gap]:
        """The longest, longest first."""
        return sorted(self._heap, key=lambda gap: (-gap.length_ns, gap.start_ns))


class Union:
    """Adds up the time that intervals cover together."""

    __slots__ = ("covered_ns", "end")

    def __init__(self) -> None:
        self.covered_ns = 0
        self.end: int | None = None

    def take(self, start: int, end: int) -> None:
        """Take an interval; it begins no earlier than the ones before."""
        if self.end is None or start > self.end:
            self.covered_ns += end - start
            self.end = end
        elif end > self.end:
            self.covered_ns += end - self.end
            self.end = end


class DeviceTime(NamedTuple):
    """What a device did from its first activity to its last. All in ns.

    Attributes:
        span_ns: From the first activity to the end of the last.
        busy_ns: Any activity: kernels, copies, fills.
        compute_ns: Kernels that compute.
        communication_ns: Kernels that communicate.
        hidden_ns: Communication while kernels computed.
        memory_ns: Copies and fills.
    """

    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    memory_ns: int

    @property
    def idle_ns(self) -> int:
        """Time without any activity."""
        return self.span_ns - self.busy_ns


def device_time(windows: Iterable[list[Row]], longest: Longest) -> DeviceTime:
    """Add up the activities of a device.

    Args:
        windows: Rows (start, -end, kind, marker), in order.
        longest: Takes the times in which it did nothing.
    """
    busy, compute, communication, either, memory = (Union() for _ in range(5))
    first = last = 0
    before = -1
    for window in windows:
        for start, minus_end, kind, marker in window:
            end = -minus_end
            if busy.end is None:
                first = start
            elif start > busy.end:
                longest.take(busy.end, start, before, marker)
            if busy.end is None or end > busy.end:
                before = marker
            busy.take(start, end)
            if kind & Kind.MEMORY:
                memory.take(start, end)
                continue
            either.take(start, end)
            (communication if kind & Kind.COMMUNICATION else compute).take(start, end)
    last = first if busy.end is None else busy.end
    hidden = compute.covered_ns + communication.covered_ns - either.covered_ns
    return DeviceTime(
        last - first, busy.covered_ns, compute.covered_ns, communication.covered_ns, hidden, memory.covered_ns
    )
