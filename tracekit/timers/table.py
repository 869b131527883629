"""TimerTable: what the timers of one or more ranks have measured, as a value that any number of sinks may read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.statistics import DurationStatistics
from tracekit.timers.text import table_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Row", "TimerTable"]


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
        """Return the table as text, in milliseconds; see `tracekit.timers.text.table_text`."""
        return table_text(self)

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
