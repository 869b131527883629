"""TimerTable: the statistics of the timers of one or more ranks, for any number of sinks; and Megatron's report of sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.statistics import DurationStatistics
from tracekit.wording import align_columns, rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Sums = Mapping[int, Mapping[str, int]]

TITLES: Final = {"max": "max time across ranks", "minmax": "(min, max) time across ranks", "all": "times across ranks"}
_NAME_WIDTH: Final = 48
_MS: Final = 1e6


def names_of(ranks: Mapping[int, Mapping[str, object]], names: Sequence[str] | None = None) -> list[str]:
    """Return the names asked for, or, for None, those of the lowest rank and then those that only others have."""
    return list(dict.fromkeys([name for rank in sorted(ranks) for name in ranks[rank]] if names is None else names))


def used_sums(sums: Sums, names: Sequence[str] | None) -> dict[str, dict[int, int]]:
    """Return the sums in ns by name, and by rank in order, of the ranks that have used a timer."""
    used = {
        name: {rank: sums[rank][name] for rank in sorted(sums) if sums[rank].get(name, 0) > 0}
        for name in names_of(sums, names)
    }
    return {name: found for name, found in used.items() if found}


def sums_text(sums: Sums, names: Sequence[str] | None, option: str, normalizer: float = 1.0) -> str | None:
    """Return Megatron's report of sums in ns by rank and name, without a newline at its end; None for an empty one.

    The lines are Megatron's, but for one thing: the header gives the unit of the values, so with a normalizer N, such
    as the number of iterations, it is "(ms / N)" instead of "(ms)". The option is a key of `TITLES`.
    """
    lines = []
    for name, found in used_sums(sums, names).items():
        values = {rank: f"{sum_ns / (_MS * normalizer):.2f}" for rank, sum_ns in found.items()}
        low, high = (values[extreme(found, key=found.__getitem__)] for extreme in (min, max))
        if option == "all":
            lines += [f"  {name}:", *(f"     rank {rank:2d}: {values[rank]}" for rank in found)]
        else:
            lines.append(f"    {name + ' ':.<{_NAME_WIDTH}}: {high if option == 'max' else f'({low}, {high})'}")
    unit = "ms" if normalizer == 1 else f"ms / {normalizer:g}"
    return "\n".join([f"{TITLES[option]} ({unit}):", *lines]) if lines else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a timer, its rank (None is all ranks together), and the statistics of its calls."""

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
        found = {rank: self.ranks[rank].get(name) for rank in sorted(self.ranks)}
        return {rank: statistics for rank, statistics in found.items() if statistics is not None and statistics.count}

    def across(self, name: str) -> DurationStatistics:
        """Return the statistics of all ranks' calls of a timer together."""
        return DurationStatistics.merged(self.of(name).values())

    def slowest(self, name: str) -> int | None:
        """Return the rank with the largest total of a timer, the lowest such rank; None where nobody has used it."""
        found = self.of(name)
        return max(found, key=lambda rank: found[rank].total_ns, default=None)

    def fastest(self, name: str) -> int | None:
        """Return the rank with the smallest total of a timer, the lowest such rank; None where nobody has used it."""
        found = self.of(name)
        return min(found, key=lambda rank: found[rank].total_ns, default=None)

    def text(self) -> str:
        """Return the statistics of all timers as a table in milliseconds, one line a timer.

        With several ranks a line is of all their calls together, and names the rank with the largest total. Quantiles are
        exact to 0.8 % (see `tracekit.statistics`).
        """
        has_ranks = len(self.ranks) > 1
        titles = [name.replace("_s", " ms") for name in NUMBERS[1:]]
        rows = [["timer", "calls", *titles, *(["slowest rank", "its total ms"] if has_ranks else [])]]
        for name in self.names:
            if (slowest := self.slowest(name)) is not None:
                count, *times = numbers(self.across(name)).values()
                last = [str(slowest), f"{self.of(name)[slowest].total_ns / _MS:.3f}"] if has_ranks else []
                rows.append([name, str(count), *(f"{seconds * 1e3:.3f}" for seconds in times), *last])
        text = align_columns(rows)
        if len(rows) == 1:
            text.append("(no timer has been used)")
        if self.missing:
            text.append(f"without {rank_spans(self.missing)}, which did not report")
        return "\n".join(text)

    def rows(self) -> Iterator[Row]:
        """Yield each timer's row of all ranks together, and, where there are several ranks, one for each that has used it."""
        for name in self.names:
            if found := self.of(name):
                yield Row(name, None, self.across(name))
                if len(self.ranks) > 1:
                    yield from (Row(name, rank, statistics) for rank, statistics in found.items())

    def merged_with(self, other: TimerTable) -> TimerTable:
        """Return the table of the calls of both: those of one rank and name are put together."""
        ranks: dict[int, dict[str, DurationStatistics]] = {}
        for table in (self, other):
            for rank, timers in table.ranks.items():
                own = ranks.setdefault(rank, {})
                for name, statistics in timers.items():
                    own.setdefault(name, DurationStatistics()).merge(statistics)
        return TimerTable(ranks, tuple(sorted({*self.missing, *other.missing} - set(ranks))))


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


NUMBERS: Final = tuple(numbers(DurationStatistics()))
