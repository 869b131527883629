"""Timers as text: Megatron's report of sums, line by line as it writes it, and tracekit's table of statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.statistics import DurationStatistics
    from tracekit.timers.table import TimerTable

__all__ = ["LOG_OPTIONS", "min_max", "sums_text", "table_text"]

LOG_OPTIONS = ("max", "minmax", "all")

_NAME_WIDTH = 48
_MS = 1e6

_COLUMNS = ("calls", "total ms", "mean ms", "stdev ms", "min ms", "p50 ms", "p95 ms", "p99 ms", "max ms")


def min_max(sums: Mapping[int, Mapping[str, int]], name: str) -> tuple[int, int] | None:
    """Return the smallest and the largest sum of a timer, ns, of the ranks that have used it; None where nobody has."""
    found = [timers[name] for timers in sums.values() if timers.get(name, 0) > 0]
    return (min(found), max(found)) if found else None


def sums_text(
    sums: Mapping[int, Mapping[str, int]], names: Sequence[str], option: str, normalizer: float = 1.0
) -> str | None:
    """Return Megatron's report.

    The lines are Megatron's, but for one thing: the header says the unit of what stands below it, so with a normalizer N it
    says "(ms / N)" instead of "(ms)".

    Args:
        sums: For each rank, ns by name.
        names: Which timers, in this order.
        option: "max" (the slowest rank's), "minmax", or "all" (every rank's).
        normalizer: What to divide by, such as the number of iterations.

    Returns:
        The text, without a newline at its end; None where there is nothing to report.
    """
    unit = "ms" if normalizer == 1 else f"ms / {normalizer:g}"
    scale = _MS * normalizer
    lines = []
    for name in names:
        extremes = min_max(sums, name)
        if extremes is None:
            continue
        low, high = extremes[0] / scale, extremes[1] / scale
        if option == "all":
            lines.append(f"  {name}:")
            lines += [
                f"     rank {rank:2d}: {sums[rank][name] / scale:.2f}"
                for rank in sorted(sums)
                if sums[rank].get(name, 0) > 0
            ]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {name + ' ':.<{_NAME_WIDTH}}: {value}")
    if not lines:
        return None
    title = {"max": "max time across ranks", "minmax": "(min, max) time across ranks", "all": "times across ranks"}
    return "\n".join([f"{title[option]} ({unit}):", *lines])


def table_text(table: TimerTable) -> str:
    """Return the statistics of all timers as a table, in milliseconds as its head says; one line a timer.

    With several ranks the line is of all their calls together, and says which rank has the largest total. Quantiles are exact
    to 0.8 % (see `tracekit.statistics`).
    """
    several = len(table.ranks) > 1
    head = ["timer", *_COLUMNS, *(["slowest rank", "its total ms"] if several else [])]
    lines = [head]
    for name in table.names:
        statistics = table.across(name)
        if not statistics.count:
            continue
        line = [name, str(statistics.count), *_cells(statistics)]
        slowest = table.slowest(name)
        if several and slowest is not None:
            line += [str(slowest), _ms(table.of(name)[slowest].total_ns)]
        lines.append(line)
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    if len(lines) == 1:
        text.append("(no timer has been used)")
    if table.missing:
        text.append(f"without rank {', '.join(map(str, table.missing))}, which did not report")
    return "\n".join(line.rstrip() for line in text)


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
