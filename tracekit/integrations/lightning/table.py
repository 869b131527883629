"""Durations as a table of text, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.integrations.lightning.ledger import StageTimes
    from tracekit.statistics import DurationStatistics

__all__ = ["Row", "stages_table", "table"]

_HEADER: Final = ("Calls", "Total (s)", "Mean (s)", "p50 (s)", "p95 (s)", "Max (s)", "Percentage %")
_SHORT: Final = (0, 2, 3)
"""Columns of a table that is not extended: name, total and mean."""
_NS: Final = 1e9


class Row(NamedTuple):
    """A line of a table.

    Attributes:
        name: What took the time.
        durations: How long it took, each time.
        whole_ns: What 100 % is.
    """

    name: str
    durations: DurationStatistics
    whole_ns: int


def table(title: str, rows: Sequence[Row], *, extended: bool = True) -> str:
    """Return rows as text, the largest total first, with a header that states the units.

    Args:
        title: Header of the names.
        rows: The rows.
        extended: Show all columns, not only total and mean.
    """
    cells: list[tuple[str, ...]] = [(title, *_HEADER)]
    for name, durations, whole_ns in sorted(rows, key=lambda row: (-row.durations.total_ns, row.name)):
        seconds = [durations.total_ns, durations.mean_ns, durations.quantile_ns(0.5), durations.quantile_ns(0.95)]
        texts = [f"{value / _NS:.6f}" for value in (*seconds, durations.max_ns)]
        percent = 100 * durations.total_ns / whole_ns if whole_ns else 0.0
        cells.append((name, str(durations.count), *texts, f"{percent:.2f}"))
    if not extended:
        cells = [tuple(row[column] for column in _SHORT) for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def stages_table(stages: Mapping[str, StageTimes], within: Mapping[str, DurationStatistics]) -> str:
    """Return the batches of all stages as a table, and below it a line for each stage that says what its downtime was.

    Args:
        stages: What was measured, by the stage's name.
        within: Durations of what lies within batches, by name.
    """
    whole_ns = sum(times.total_ns for times in stages.values())
    durations = {f"{stage} batch": times.batches for stage, times in stages.items()} | dict(within)
    rows = [Row(name, found, whole_ns) for name, found in durations.items() if found.count]
    lines = [_downtime(stage, times) for stage, times in stages.items() if times.total_ns]
    return "\n".join([table("Time profiler", rows), "", *lines]) if rows or lines else ""


def _downtime(stage: str, times: StageTimes) -> str:
    percent = 100 * times.total_downtime_ns / times.total_ns
    parts = ", ".join(f"{part} {value / _NS:.6f} s" for part, value in times.downtime_ns.most_common() if value)
    found = f"{stage}: {times.total_ns / _NS:.6f} s, of which {times.total_downtime_ns / _NS:.6f} s downtime ({percent:.2f} %)"
    return f"{found}: {parts}" if parts else found
