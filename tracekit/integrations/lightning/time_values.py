"""The values that the time profiler logs, in seconds: their keys, definitions, reduction over ranks, and tables.

The keys, and which of them are always on, are those of Thunder's ``TimeProfiler``.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Final, TypeAlias

from tracekit.errors import ConfigError
from tracekit.integrations.lightning.actions import PARTS
from tracekit.integrations.lightning.loop_timer import BETWEEN_EPOCHS
from tracekit.wording import align_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.integrations.lightning.loop_timer import StageTimes
    from tracekit.statistics import DurationStatistics

    Durations: TypeAlias = Mapping[str, DurationStatistics]

DEFAULT_KEYS: Final = (
    "train batch",
    "validation batch",
    "train epoch",
    "validation epoch",
    "avg train downtime",
    "avg val downtime",
)
OPTIONAL_KEYS: Final = ("backward", "optimizer step", "total train downtime", "total val downtime")
# Keys that Thunder's does not have: downtime for each step, its parts, and the time between two epochs
DETAIL_KEYS: Final = (
    "train downtime per step",
    "val downtime per step",
    *(f"{stage} downtime {part}" for stage in ("train", "val") for part in PARTS),
    BETWEEN_EPOCHS,
)
ALL_KEYS: Final = DEFAULT_KEYS + OPTIONAL_KEYS + DETAIL_KEYS
_NS: Final = 1_000_000_000
_ABSENT: Final = -1
# Functions that make one value of those of several ranks
REDUCTIONS: Final[Mapping[str, Callable[[Sequence[int]], float]]] = {"mean": mean, "max": max, "min": min}
_HEADER: Final = ("Calls", "Total (s)", "Mean (s)", "p50 (s)", "p95 (s)", "Max (s)", "Percentage %")
_SHORT: Final = (0, 2, 3)  # columns of a table that is not extended: name, total and mean


def epoch_values(epoch: Mapping[str, StageTimes]) -> dict[str, float]:
    """Return the values of one epoch by key. Values of things that did not happen have no key: none is NaN or negative."""
    found = stage_values("train", epoch["train"]) | stage_values("validation", epoch["validation"])
    between_ns = epoch[BETWEEN_EPOCHS].total_ns
    return found | ({BETWEEN_EPOCHS: between_ns / _NS} if between_ns else {})


def stage_values(stage: str, times: StageTimes) -> dict[str, float]:
    """Return the values of all runs of one stage together; ``<stage> epoch`` is the mean of the runs."""
    if not times.runs:
        return {}
    short = "val" if stage == "validation" else stage
    downtime_ns = times.downtime_ns.total()
    found = {f"{stage} epoch": times.total_ns / times.runs, f"total {short} downtime": downtime_ns}
    found |= {f"{short} downtime {part}": times.downtime_ns[part] for part in PARTS}
    found |= {name: durations.mean_ns for name, durations in times.within.items()}
    if times.batches.count:
        found[f"{stage} batch"] = times.batches.mean_ns
        found[f"{short} downtime per step"] = downtime_ns / times.batches.count
    if times.samples:
        found[f"avg {short} downtime"] = downtime_ns / times.samples
    return {key: value / _NS for key, value in found.items()}


def chosen_keys(keys: Sequence[object], *, details: bool) -> list[str]:
    """Return the keys to log, sorted: the default ones, those named, all of Thunder's for ``True``.

    Raises:
        ConfigError: A key is unknown.
    """
    unknown = [key for key in keys if key is not True and key not in ALL_KEYS]
    if unknown:
        raise ConfigError(
            f"TimeProfiler has no key {', '.join(map(repr, unknown))}; its keys are {', '.join(map(repr, ALL_KEYS))}, of "
            f"which the first {len(DEFAULT_KEYS)} are always on, and True stands for the {len(OPTIONAL_KEYS)} after them"
        )
    chosen = {*DEFAULT_KEYS, *(key for key in keys if isinstance(key, str))}
    chosen.update(OPTIONAL_KEYS if any(key is True for key in keys) else (), DETAIL_KEYS if details else ())
    return sorted(chosen)


def keys_of_stage(keys: Sequence[str], stage: str) -> list[str]:
    """Return the keys of validation renamed for another stage: "test batch", "avg test downtime" ..."""
    return [key.replace("validation", stage).replace("val ", f"{stage} ") for key in keys if "val" in key]


def encode_values(values: Mapping[str, float], keys: Sequence[str]) -> list[int]:
    """Return values as the nanoseconds of all ``keys`` in their order, for sending; `reduce_ranks` reads them."""
    return [round(values[key] * _NS) if key in values else _ABSENT for key in keys]


def reduce_ranks(rows: Sequence[Sequence[int]], keys: Sequence[str], reduce: str) -> dict[str, float]:
    """Return one value for each key that any rank has, of the rows that `encode_values` returned on each rank."""
    columns = zip(keys, zip(*rows, strict=True), strict=True)
    present = {key: [value for value in column if value != _ABSENT] for key, column in columns}
    return {key: REDUCTIONS[reduce](values) / _NS for key, values in present.items() if values}


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
