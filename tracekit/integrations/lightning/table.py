"""Durations as a table of text, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tracekit.wording import align_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.integrations.lightning.loop_timer import StageTimes
    from tracekit.statistics import DurationStatistics

    Durations: TypeAlias = Mapping[str, DurationStatistics]

_HEADER: Final = ("Calls", "Total (s)", "Mean (s)", "p50 (s)", "p95 (s)", "Max (s)", "Percentage %")
_SHORT: Final = (0, 2, 3)  # columns of a table that is not extended: name, total and mean
_NS: Final = 1e9


def durations_table(title: str, durations: Durations, whole_ns: int, *, extended: bool = True) -> str:
    """Return durations by name as text, the largest total first, with a header that states the units.

    ``whole_ns`` is 100 %; without ``extended`` only total and mean are shown.
    """
    rows: list[tuple[str, ...]] = [(title, *_HEADER)]
    for name, found in sorted(durations.items(), key=lambda row: (-row[1].total_ns, row[0])):
        times_ns = (found.total_ns, found.mean_ns, found.quantile_ns(0.5), found.quantile_ns(0.95), found.max_ns)
        percent = 100 * found.total_ns / whole_ns if whole_ns else 0.0
        rows.append((name, str(found.count), *(f"{time_ns / _NS:.6f}" for time_ns in times_ns), f"{percent:.2f}"))
    head, *lines = align_columns(rows if extended else [[row[column] for column in _SHORT] for row in rows])
    return "\n".join([head, "-" * len(head), *lines])


def stages_table(stages: Mapping[str, StageTimes]) -> str:
    """Return the batches of all stages, and the intervals within, as a table, and below it the downtime by stage."""
    durations = {f"{stage} batch": times.batches for stage, times in stages.items() if times.batches.count}
    for times in stages.values():
        durations |= times.within
    whole_ns = sum(times.total_ns for times in stages.values())
    lines = [_downtime(stage, times) for stage, times in stages.items() if times.total_ns]
    return "\n".join([durations_table("Time profiler", durations, whole_ns), "", *lines]) if durations or lines else ""


def _downtime(stage: str, times: StageTimes) -> str:
    downtime_ns = times.downtime_ns.total()
    found = f"{stage}: {times.total_ns / _NS:.6f} s, of which {downtime_ns / _NS:.6f} s downtime"
    parts = ", ".join(f"{part} {value / _NS:.6f} s" for part, value in times.downtime_ns.most_common() if value)
    return f"{found} ({100 * downtime_ns / times.total_ns:.2f} %)" + (f": {parts}" if parts else "")
