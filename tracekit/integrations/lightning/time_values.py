"""The values that the time profiler logs, in seconds: their keys, definitions, reduction over ranks, and tables.

The keys, and which of them are always on, are those of Thunder's ``TimeProfiler``.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError
from tracekit.integrations.lightning.actions import PARTS
from tracekit.integrations.lightning.loop_timer import BETWEEN_EPOCHS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.integrations.lightning.loop_timer import StageTimes

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
