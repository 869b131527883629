"""Compares the cost of two loops that take turns in one process, so that other work of the machine hits both alike.

The unit of the table is two readings of the clock: no recorder of slices can cost less.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Loop = Callable[[int], object]
    """Runs one operation so many times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Amounts to measure."""

    rounds: int = 151  # both sides of a comparison run in each
    round_ns: int = 1_000_000  # about how long one turn of a marker takes
    file_slices: int = 100_000  # of a trace that is written and timed
    streamed_slices: int = 10_000_000  # written while the memory is watched
    watched_slices: int = 1_000_000  # recorded while the garbage collector is watched
    block_steps: int = 50  # training steps of one turn
    blocks: int = 40  # turns of the training loop
    imports: int = 25  # runs of each import
    merge_bytes: int = 1_000_000_000  # of the traces that are merged, unpacked
    merge_files: int = 8
    merge_rounds: int = 9
    peer_bytes: int = 64_000_000  # of what peers merge, which hold all of it in memory
    peer_files: int = 2
    growth: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)  # shares of merge_bytes, to see how time and memory grow
    small_ranks: tuple[int, ...] = (10, 30, 100, 300, 1000)  # numbers of small ranks, for the same
    small_rank_bytes: int = 100_000
    hta: str = sys.executable  # the Python that has HolisticTraceAnalysis


FULL = Effort()
QUICK = Effort(
    rounds=2, round_ns=20_000, file_slices=500, streamed_slices=5_000, watched_slices=2_000, block_steps=3, blocks=2, imports=2,
    merge_bytes=1_500_000, merge_files=2, merge_rounds=1, peer_bytes=300_000, growth=(0.1, 1.0), small_ranks=(2, 4, 8),
    small_rank_bytes=40_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of many measurements, the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise measurements."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost of one loop in units of another.

    Attributes:
        ratio: Time of one operation in those of the reference, by rounds.
        operation_ns: Median time of one operation.
    """

    ratio: Spread
    operation_ns: float


def two_clock_reads(count: int) -> None:
    """Read the clock twice, so many times."""
    read = time.time_ns
    for _ in repeat(None, count):
        read()
        read()


def time_of(loop: Loop, count: int) -> float:
    """Return the CPU time that one operation takes on this thread in ns, of ``count`` in a row.

    CPU time, since other programs of the machine would show in the time of day.
    """
    start = time.thread_time_ns()
    loop(count)
    return (time.thread_time_ns() - start) / count


def count_for(loop: Loop, round_ns: int) -> int:
    """Return how many operations take about ``round_ns``, after warming up the loop."""
    count = 16
    while (taken := time_of(loop, count) * count) < round_ns / 4 and count < 1 << 24:
        count *= 2
    return max(1, int(count * round_ns / max(taken, 1)))


def compare(loop: Loop, reference: Loop, effort: Effort, reset: Callable[[], object] | None = None) -> Comparison:
    """Time two loops in turns.

    Args:
        loop: The loop to measure.
        reference: The unit.
        effort: Number and length of the rounds.
        reset: Called after every turn of ``loop``, outside the time, to empty buffers.
    """
    count, reference_count = count_for(loop, effort.round_ns), count_for(reference, effort.round_ns)
    ratios, times = [], []
    for _ in range(effort.rounds):
        unit_ns = time_of(reference, reference_count)
        operation_ns = time_of(loop, count)
        if reset is not None:
            reset()
        ratios.append(operation_ns / unit_ns)
        times.append(operation_ns)
    return Comparison(Spread.of(ratios), statistics.median(times))


@contextlib.contextmanager
def on_one_cpu() -> Iterator[None]:
    """Keep this thread, and those it starts, on one CPU, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
