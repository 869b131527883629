"""What counters tell over time, of all ranks on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracekit.analysis.counters import CounterSeries
    from tracekit.analysis.reading import Reading

__all__ = ["Counter", "CounterReport", "CounterTime", "counters_of"]

TIMES: Final = 96
"""How many points a counter has at most."""

MOST_COUNTERS: Final = 200


@dataclass(frozen=True, slots=True)
class CounterTime:
    """A counter at a time.

    Attributes:
        time_ns: When, since the first value of any counter.
        low: The least value of any rank.
        median: The median of the ranks' means; that of a rank is over all of its processes.
        high: The largest value of any rank.
    """

    time_ns: int
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Counter:
    """A number of a counter, of all processes that have it.

    Attributes:
        name: Of the counter.
        key: Of the number.
        ranks: The ranks that have it.
        values: How many values there are.
        last: The last value of each rank: of its process that comes last.
        low: The least value.
        high: The largest value.
        times: In order.
    """

    name: str
    key: str
    ranks: list[int]
    values: int
    last: list[float]
    low: float
    high: float
    times: list[CounterTime]


@dataclass(frozen=True, slots=True)
class CounterReport:
    """The counters.

    Attributes:
        counters: Those with the most values, by name.
        others: How many there are beyond them.
    """

    counters: list[Counter]
    others: int


def counters_of(reading: Reading) -> CounterReport:
    """Return what the counters of all files tell."""
    found: dict[tuple[str, str], list[tuple[int, int, CounterSeries]]] = {}
    for file in reading.files:
        for (pid, name, key), series in ({} if file.counters is None else file.counters.series).items():
            rank = file.rank if file.ranks is None else file.ranks.get(pid)
            found.setdefault((name, key), []).append((rank or 0, file.base_ns, series))
    kept = sorted(found, key=lambda key: (-sum(series.count for _, _, series in found[key]), key))[:MOST_COUNTERS]
    bounds = [
        (min(point.start_ns for point in points), max(point.end_ns for point in points))
        for key in kept
        for _, base_ns, series in found[key]
        for points in (list(series.points(base_ns)),)
    ]
    start_ns, end_ns = min((start for start, _ in bounds), default=0), max((end for _, end in bounds), default=1)
    width_ns = max(1, -(-(end_ns - start_ns) // TIMES))
    return CounterReport(
        [_counter(*key, found[key], start_ns, width_ns) for key in sorted(kept)], len(found) - len(kept)
    )


def _counter(name: str, key: str, own: list[tuple[int, int, CounterSeries]], start_ns: int, width_ns: int) -> Counter:
    cells: dict[int, dict[int, list[float]]] = {}
    lows: dict[int, float] = {}
    highs: dict[int, float] = {}
    for rank, base_ns, series in own:
        for point in series.points(base_ns):
            at = ((point.start_ns + point.end_ns) // 2 - start_ns) // width_ns
            cells.setdefault(at, {}).setdefault(rank, []).append(point.mean)
            lows[at], highs[at] = min(point.low, lows.get(at, point.low)), max(point.high, highs.get(at, point.high))
    times = [
        CounterTime(
            at * width_ns,
            lows[at],
            median(sum(means) / len(means) for means in cells[at].values()),
            highs[at],
        )
        for at in sorted(cells)
    ]
    last = {rank: series.last for rank, _, series in own}
    return Counter(
        name,
        key,
        sorted(last),
        sum(series.count for _, _, series in own),
        [last[rank] for rank in sorted(last)],
        min(lows.values()),
        max(highs.values()),
        times,
    )
