"""TimerTable: the statistics of the timers of one or more ranks, for any number of sinks; and Megatron's report of sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.statistics import DurationStatistics
from tracekit.wording import align_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Sums = Mapping[int, Mapping[str, int]]

_TITLES: Final = {
    "max": "max time across ranks",
    "minmax": "(min, max) time across ranks",
    "all": "times across ranks",
}
LOG_OPTIONS: Final = tuple(_TITLES)

_NAME_WIDTH: Final = 48
_MS: Final = 1e6
_COLUMNS: Final = ("calls", "total ms", "mean ms", "stdev ms", "min ms", "p50 ms", "p95 ms", "p99 ms", "max ms")


def names_of(sums: Mapping[int, Mapping[str, object]], names: Sequence[str] | None = None) -> list[str]:
    """Return the names asked for, or, for None, those of the lowest rank and then those that only others have."""
    if names is None:
        names = [name for rank in sorted(sums) for name in sums[rank]]
    return list(dict.fromkeys(names))


def min_max(sums: Sums, name: str) -> tuple[int, int] | None:
    """Return the smallest and the largest sum of a timer, ns, of the ranks that have used it; None where nobody has."""
    found = [timers[name] for timers in sums.values() if timers.get(name, 0) > 0]
    return (min(found), max(found)) if found else None


def sums_text(sums: Sums, names: Sequence[str], option: str, normalizer: float = 1.0) -> str | None:
    """Return Megatron's report of sums in ns by rank and name, without a newline at its end; None for an empty one.

    The lines are Megatron's, but for one thing: the header gives the unit of the values, so with a normalizer N, such
    as the number of iterations, it is "(ms / N)" instead of "(ms)". The option is "max" (the slowest rank's),
    "minmax", or "all".
    """
    scale = _MS * normalizer
    lines = []
    for name in names:
        extremes = min_max(sums, name)
        if extremes is None:
            continue
        low, high = extremes[0] / scale, extremes[1] / scale
        if option == "all":
            used = {rank: sums[rank][name] for rank in sorted(sums) if sums[rank].get(name, 0) > 0}
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {sum_ns / scale:.2f}" for rank, sum_ns in used.items()]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {name + ' ':.<{_NAME_WIDTH}}: {value}")
    unit = "ms" if normalizer == 1 else f"ms / {normalizer:g}"
    return "\n".join([f"{_TITLES[option]} ({unit}):", *lines]) if lines else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        timer: Name of the timer.
        rank: The rank; None is all ranks together.
        statistics: Of the calls that have ended.
    """

    timer: str
    rank: int | None
    statistics: DurationStatistics


@dataclass(frozen=True, slots=True)
class TimerTable:
    """Statistics by rank and by name of the timer. Timers are matched by name; a rank may have none of them.

    Attributes:
        ranks: The statistics of each rank's timers, in the order of their creation.
        missing: Ranks that should have reported and did not.
    """

    ranks: Mapping[int, Mapping[str, DurationStatistics]]
    missing: tuple[int, ...] = ()

    @property
    def names(self) -> list[str]:
        """Every timer's name: those of the lowest rank in its order, then those that only others have."""
        return names_of(self.ranks)

    def of(self, name: str) -> dict[int, DurationStatistics]:
        """Return the statistics of the ranks that have used a timer, by rank."""
        return {
            rank: self.ranks[rank][name]
            for rank in sorted(self.ranks)
            if name in self.ranks[rank] and self.ranks[rank][name].count
        }

    def across(self, name: str) -> DurationStatistics:
        """Return the statistics of all ranks' calls of a timer together."""
        return DurationStatistics.merged(self.of(name).values())

    def slowest(self, name: str) -> int | None:
        """Return the rank with the largest total of a timer, the lowest such rank; None where nobody has used it."""
        found = self.of(name)
        return max(found, key=lambda rank: (found[rank].total_ns, -rank)) if found else None

    def fastest(self, name: str) -> int | None:
        """Return the rank with the smallest total of a timer, the lowest such rank; None where nobody has used it."""
        found = self.of(name)
        return min(found, key=lambda rank: (found[rank].total_ns, rank)) if found else None

    def text(self) -> str:
        """Return the statistics of all timers as a table in milliseconds, one line a timer.

        With several ranks a line is of all their calls together, and names the rank with the largest total. Quantiles are
        exact to 0.8 % (see `tracekit.statistics`).
        """
        has_ranks = len(self.ranks) > 1
        rows = [["timer", *_COLUMNS, *(["slowest rank", "its total ms"] if has_ranks else [])]]
        for name in self.names:
            if (slowest := self.slowest(name)) is not None:
                count, *times = numbers(self.across(name)).values()
                last = [str(slowest), f"{self.of(name)[slowest].total_ns / _MS:.3f}"] if has_ranks else []
                rows.append([name, str(count), *(f"{seconds * 1e3:.3f}" for seconds in times), *last])
        text = align_columns(rows)
        if len(rows) == 1:
            text.append("(no timer has been used)")
        if self.missing:
            text.append(f"without rank {', '.join(map(str, self.missing))}, which did not report")
        return "\n".join(text)

    def rows(self) -> Iterator[Row]:
        """Yield each timer's row of all ranks together, and, where there are several ranks, one for each that has used it."""
        for name in self.names:
            found = self.of(name)
            if not found:
                continue
            yield Row(name, None, self.across(name))
            if len(self.ranks) > 1:
                for rank, statistics in found.items():
                    yield Row(name, rank, statistics)

    def merged_with(self, other: TimerTable) -> TimerTable:
        """Return the table of the calls of both: those of one rank and name are put together."""
        ranks: dict[int, dict[str, DurationStatistics]] = {}
        for table in (self, other):
            for rank, timers in table.ranks.items():
                own = ranks.setdefault(rank, {})
                for name, statistics in timers.items():
                    own[name] = DurationStatistics.merged([own.get(name, DurationStatistics()), statistics])
        missing = (set(self.missing) | set(other.missing)) - set(ranks)
        return TimerTable(ranks, tuple(sorted(missing)))


def numbers(statistics: DurationStatistics) -> dict[str, float]:
    """Return the numbers of a row by name; every name of a time ends with its unit, ``_s``."""
    times_ns = {
        "total_s": statistics.total_ns,
        "mean_s": statistics.mean_ns,
        "stdev_s": statistics.stdev_ns,
        "min_s": statistics.min_ns,
        **{f"p{percent}_s": statistics.quantile_ns(percent / 100) for percent in (50, 95, 99)},
        "max_s": statistics.max_ns,
    }
    return {"count": statistics.count, **{name: time_ns / 1e9 for name, time_ns in times_ns.items()}}
