"""The values that the time profiler logs: their keys, what each of them is, and how those of several ranks become one.

All values are in seconds. The keys, and which of them are always on, are those of Thunder's ``TimeProfiler``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.integrations.lightning.ledger import PARTS, StageTimes
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ALL_KEYS",
    "DEFAULT_KEYS",
    "DETAIL_KEYS",
    "OPTIONAL_KEYS",
    "REDUCTIONS",
    "EpochTimes",
    "chosen_keys",
    "for_stage",
    "from_ranks",
    "in_order",
    "stage_values",
]

DEFAULT_KEYS: Final = (
    "train batch",
    "validation batch",
    "train epoch",
    "validation epoch",
    "avg train downtime",
    "avg val downtime",
)
OPTIONAL_KEYS: Final = ("backward", "optimizer step", "total train downtime", "total val downtime")
DETAIL_KEYS: Final = (
    "train downtime per step",
    "val downtime per step",
    *(f"{stage} downtime {part}" for stage in ("train", "val") for part in PARTS),
    "between epochs",
)
"""What Thunder's does not have: what downtime is for each step, what it is made of, and what lies between two epochs."""

ALL_KEYS: Final = DEFAULT_KEYS + OPTIONAL_KEYS + DETAIL_KEYS
_NS: Final = 1_000_000_000
_ABSENT: Final = -1

REDUCTIONS: Final[Mapping[str, Callable[[Sequence[int]], float]]] = {"mean": mean, "max": max, "min": min}
"""How one value is made of those of several ranks."""


@dataclass
class EpochTimes:
    """The times of one training epoch.

    Attributes:
        train: Training, without the validation in its middle.
        validation: All runs of validation.
        between: What passed between the end of an epoch and the start of the next.
        backward: The durations of the backward passes.
        optimizer_step: The durations of the optimizer's steps.
    """

    train: StageTimes = field(default_factory=StageTimes)
    validation: StageTimes = field(default_factory=StageTimes)
    between: StageTimes = field(default_factory=StageTimes)
    backward: DurationStatistics = field(default_factory=DurationStatistics)
    optimizer_step: DurationStatistics = field(default_factory=DurationStatistics)

    def values(self) -> dict[str, float]:
        """Return the values of one epoch by key, in seconds. What there is nothing of has no key: nothing is NaN or negative."""
        found = stage_values("train", "train", self.train)
        found |= stage_values("validation", "val", self.validation)
        for key, durations in (("backward", self.backward), ("optimizer step", self.optimizer_step)):
            if durations.count:
                found[key] = durations.mean_ns / _NS
        if self.between.total_ns:
            found["between epochs"] = self.between.total_ns / _NS
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for a checkpoint."""
        return {name: value.to_dict() for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EpochTimes:
        """Return what `to_dict` has stored."""
        return cls(
            train=StageTimes.from_dict(stored["train"]),
            validation=StageTimes.from_dict(stored["validation"]),
            between=StageTimes.from_dict(stored["between"]),
            backward=DurationStatistics.from_dict(stored["backward"]),
            optimizer_step=DurationStatistics.from_dict(stored["optimizer_step"]),
        )


def stage_values(stage: str, short: str, times: StageTimes) -> dict[str, float]:
    """Return the values of all runs of one stage together, in seconds; ``<stage> epoch`` is the mean of the runs.

    Args:
        stage: Its name in the keys of its batches and epochs.
        short: Its name in those of its downtime.
        times: What was measured.
    """
    if not times.runs:
        return {}
    found = {f"{stage} epoch": times.total_ns / times.runs / _NS}
    total_ns, batches, samples = times.total_downtime_ns, times.batches.count, times.samples
    found[f"total {short} downtime"] = total_ns / _NS
    found |= {f"{short} downtime {part}": times.downtime_ns[part] / _NS for part in PARTS}
    if batches:
        found[f"{stage} batch"] = times.batches.mean_ns / _NS
        found[f"{short} downtime per step"] = total_ns / batches / _NS
    if samples:
        found[f"avg {short} downtime"] = total_ns / samples / _NS
    return found


def chosen_keys(keys: Sequence[object], *, details: bool) -> list[str]:
    """Return which keys are logged, sorted: the default ones, those named, all of Thunder's for ``True``.

    Raises:
        ConfigError: A key is unknown.
    """
    named = OPTIONAL_KEYS if True in [key for key in keys if isinstance(key, bool)] else ()
    unknown = [key for key in keys if key is not True and key not in ALL_KEYS]
    if unknown:
        raise ConfigError(
            f"TimeProfiler has no key {', '.join(map(repr, unknown))}; its keys are {', '.join(map(repr, ALL_KEYS))}, of "
            f"which the first {len(DEFAULT_KEYS)} are always on, and True stands for the {len(OPTIONAL_KEYS)} after them"
        )
    texts = [key for key in keys if isinstance(key, str)]
    return sorted({*DEFAULT_KEYS, *named, *texts, *(DETAIL_KEYS if details else ())})


def for_stage(keys: Sequence[str], stage: str) -> list[str]:
    """Return what the keys of validation are for another stage: "test batch", "avg test downtime" ..."""
    return [key.replace("validation", stage).replace("val ", f"{stage} ") for key in keys if "val" in key]


def in_order(values: Mapping[str, float], keys: Sequence[str]) -> list[int]:
    """Return values as the nanoseconds of all ``keys`` in their order, for sending; `from_ranks` reads them."""
    return [round(values[key] * _NS) if key in values else _ABSENT for key in keys]


def from_ranks(rows: Sequence[Sequence[int]], keys: Sequence[str], reduce: str) -> dict[str, float]:
    """Return one value for each key that any rank has, of the ranks that have it.

    Args:
        rows: What `in_order` gave on each rank.
        keys: The keys that it was given.
        reduce: One of `REDUCTIONS`.
    """
    found = {}
    for key, column in zip(keys, zip(*rows, strict=True), strict=True):
        present = [value for value in column if value != _ABSENT]
        if present:
            found[key] = REDUCTIONS[reduce](present) / _NS
    return found
