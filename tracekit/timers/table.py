"""TimerTable: what the timers of one or more ranks have measured, as a value that any number of sinks may read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Row", "TimerTable"]

_MS: Final = 1e6
_COLUMNS: Final = ("calls", "total ms", "mean ms", "stdev ms", "min ms", "p50 ms", "p95 ms", "p99 ms", "max ms")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        timer: Its name.
        rank: Whose it is; None is all ranks together.
        statistics: Of the calls that have ended.
    """

    timer: str
    rank: int | None
    statistics: DurationStatistics


@dataclass(frozen=True, slots=True)
class TimerTable:
    """Statistics by rank and by name of the timer. Timers are matched by name; a rank may have none of them.

    Attributes:
        ranks: The statistics of each rank's timers, in the order in which they were made.
        missing: Ranks that should have reported and did not.
    """

    ranks: Mapping[int, Mapping[str, DurationStatistics]]
    missing: tuple[int, ...] = ()

    @property
    def names(self) -> list[str]:
        """Every timer's name: those of the lowest rank in its order, then what the others have besides."""
        return list(dict.fromkeys(name for rank in sorted(self.ranks) for name in self.ranks[rank]))

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
        """Return the statistics of all timers as a table, in milliseconds as its head says; one line a timer.

        With several ranks the line is of all their calls together, and says which rank has the largest total. Quantiles are
        exact to 0.8 % (see `tracekit.statistics`).
        """
        several = len(self.ranks) > 1
        head = ["timer", *_COLUMNS, *(["slowest rank", "its total ms"] if several else [])]
        lines = [head]
        for name in self.names:
            statistics = self.across(name)
            if not statistics.count:
                continue
            line = [name, str(statistics.count), *_cells(statistics)]
            slowest = self.slowest(name)
            if several and slowest is not None:
                line += [str(slowest), _ms(self.of(name)[slowest].total_ns)]
            lines.append(line)
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
                ]
            )
            for line in lines
        ]
        if len(lines) == 1:
            text.append("(no timer has been used)")
        if self.missing:
            text.append(f"without rank {', '.join(map(str, self.missing))}, which did not report")
        return "\n".join(line.rstrip() for line in text)

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


def encode_timers(timers: Mapping[str, DurationStatistics]) -> bytes:
    """Return one rank's timers as bytes that `decode_timers` reads."""
    return json.dumps({name: statistics.to_dict() for name, statistics in timers.items()}).encode()


def decode_timers(text: bytes) -> dict[str, DurationStatistics]:
    """Return what `encode_timers` has written."""
    stored: dict[str, Any] = json.loads(text)
    return {name: DurationStatistics.from_dict(found) for name, found in stored.items()}


def _cells(statistics: DurationStatistics) -> list[str]:
    quantiles = [statistics.quantile_ns(quantile) for quantile in (0.5, 0.95, 0.99)]
    values = [
        statistics.total_ns,
        statistics.mean_ns,
        statistics.stdev_ns,
        statistics.min_ns,
        *quantiles,
        statistics.max_ns,
    ]
    return [_ms(value) for value in values]


def _ms(value_ns: float) -> str:
    return f"{value_ns / _MS:.3f}"
