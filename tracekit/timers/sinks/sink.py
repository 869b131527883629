"""Sink: what takes a table of timers; and the one flat form of a table that services for metrics take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tracekit.statistics import DurationStatistics
    from tracekit.timers.table import TimerTable

__all__ = ["Sink", "metrics", "records"]


class Sink(Protocol):
    """Takes the same table as any other sink; give one `TimerTable` to as many as you like."""

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table.

        Args:
            table: From `Timers.snapshot`, `Timers.gather` or `read_timers`.
            step: The training step that it belongs to.
        """


def numbers(statistics: DurationStatistics) -> dict[str, float]:
    """Return the numbers of a row by name; every name of a time ends with its unit, ``_s``."""
    return {
        "count": statistics.count,
        "total_s": statistics.total_ns / 1e9,
        "mean_s": statistics.mean_ns / 1e9,
        "stdev_s": statistics.stdev_ns / 1e9,
        "min_s": statistics.min_ns / 1e9,
        "p50_s": statistics.quantile_ns(0.5) / 1e9,
        "p95_s": statistics.quantile_ns(0.95) / 1e9,
        "p99_s": statistics.quantile_ns(0.99) / 1e9,
        "max_s": statistics.max_ns / 1e9,
    }


def metrics(table: TimerTable, prefix: str = "timer") -> dict[str, float]:
    """Return a table as numbers by name, such as ``timer/forward/mean_s``.

    Of several ranks they are those of all calls together, and besides the totals of the fastest and the slowest rank and which
    one the slowest is: ``rank_total_min_s``, ``rank_total_max_s``, ``slowest_rank``.
    """
    found: dict[str, float] = {}
    for row in table.rows():
        if row.rank is not None:
            continue
        values = numbers(row.statistics)
        fastest, slowest = table.fastest(row.timer), table.slowest(row.timer)
        if len(table.ranks) > 1 and fastest is not None and slowest is not None:
            by_rank = table.of(row.timer)
            values["rank_total_min_s"] = by_rank[fastest].total_ns / 1e9
            values["rank_total_max_s"] = by_rank[slowest].total_ns / 1e9
            values["slowest_rank"] = slowest
        found.update({f"{prefix}/{row.timer}/{name}": value for name, value in values.items()})
    return found


def records(table: TimerTable, step: int) -> list[dict[str, Any]]:
    """Return a table as flat records: the step, the timer, the rank ("all", or its number) and the numbers."""
    return [
        {
            "step": step,
            "timer": row.timer,
            "rank": "all" if row.rank is None else row.rank,
            **numbers(row.statistics),
        }
        for row in table.rows()
    ]
