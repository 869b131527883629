"""LoopTimer: books the time of a training loop by stage and cause; and the values that are logged. Works without Lightning.

Every nanosecond goes to exactly one account: the open batch, else a part of the downtime of the innermost stage. No value is a
difference of means, so none is negative, and train epoch = train batches + train downtime. A validation run in the middle of a
training epoch counts only as validation.

The keys of the values, and which of them are always on, are those of Thunder's ``TimeProfiler``.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import ConfigError
from tracekit.integrations.lightning.actions import CALLBACKS, DATA_LOADING, OTHER, PARTS, action_of, durations_table
from tracekit.integrations.slices import NestedMarkers
from tracekit.recording.lifecycle import marker
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from tracekit.clock import Clock

    Epoch: TypeAlias = "dict[str, StageTimes]"

BETWEEN_EPOCHS: Final = "between epochs"
_BATCH: Final = "batch"
_STEP: Final = "optimizer step"
_RUN_EPOCH: Final = "run_training_epoch"
_CATEGORIES: Final = ("time profiler",)
DEFAULT_KEYS: Final = (
    *("train batch", "validation batch", "train epoch", "validation epoch"),
    *("avg train downtime", "avg val downtime"),
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


@dataclass
class StageTimes:
    """The times of one stage (training, validation ...), of one epoch or of several; ``runs`` counts epochs or validations.

    ``within`` has durations within batches by name ("backward", "optimizer step"), ``downtime_ns`` the time between
    them by part.
    """

    runs: int = 0
    samples: int = 0
    batches: DurationStatistics = field(default_factory=DurationStatistics)
    within: dict[str, DurationStatistics] = field(default_factory=lambda: defaultdict(DurationStatistics))
    downtime_ns: Counter[str] = field(default_factory=Counter)

    @property
    def total_ns(self) -> int:
        """Duration of the stage: batches and downtime."""
        return self.batches.total_ns + self.downtime_ns.total()

    def add(self, other: StageTimes) -> None:
        """Add other times, which stay as they are."""
        self.runs += other.runs
        self.samples += other.samples
        self.batches.merge(other.batches)
        self.downtime_ns.update(other.downtime_ns)
        for name, durations in other.within.items():
            self.within[name].merge(durations)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        within = {name: durations.to_dict() for name, durations in self.within.items()}
        downtime_ns = dict(self.downtime_ns)
        return {**vars(self), "batches": self.batches.to_dict(), "within": within, "downtime_ns": downtime_ns}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StageTimes:
        """Return the times that `to_dict` stored."""
        found = cls(stored["runs"], stored["samples"], downtime_ns=Counter(stored["downtime_ns"]))
        found.batches = DurationStatistics.from_dict(stored["batches"])
        found.within.update({name: DurationStatistics.from_dict(kept) for name, kept in stored["within"].items()})
        return found


def _no_wait() -> None:
    """Return immediately; can be pickled, as Lightning sends callbacks to the processes that it spawns."""


class LoopTimer:
    """Times one run by its hooks and by the actions of Lightning, on the thread that made it.

    Events that do not fit (an end without a beginning, a batch that never ends) are corrected and raise nothing. Each
    interval is also a slice in the trace of the active tracekit profiler; the parts of the downtime are, unless all
    actions have slices. ``wait`` waits for the device before the clock is read for a batch, a backward pass or a
    step. ``resumed`` has the times of an interrupted epoch by stage, to go on with when Lightning resumes in its
    middle.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, wait: Callable[[], None] | None = None, *, slices_of_parts: bool = True
    ) -> None:
        self.resumed: Epoch | None = None
        self._now_ns = clock.monotonic_ns
        self._wait = wait or _no_wait
        self._slices_of_parts = slices_of_parts
        self._slices = NestedMarkers()
        self._thread = threading.get_ident()
        self._booked_until_ns = 0
        self._stages: Epoch = {}  # open stages, the innermost last
        self._epoch: Epoch | None = None  # the open epoch of training
        self._batch_since_ns: int | None = None
        self._actions: list[tuple[str, str]] = []  # (name, part) of running actions, the innermost last
        self._expected: str | None = None  # the part of the time until the next event
        self._since_ns: dict[str, int] = {}  # starts of running intervals within the batch
        self._passed_ns: Counter[str] = Counter()  # and their durations until they were paused

    def begin_epoch(self, resumed: Epoch | None = None, within: str | None = None) -> None:
        """Begin an epoch, or continue an interrupted one; drop an open one. Its slice ends ``within`` an action."""
        self.end_epoch()
        self.resumed = None
        between = self.end_stage(BETWEEN_EPOCHS) or StageTimes()
        self._epoch = resumed or {"train": StageTimes(), "validation": StageTimes(), BETWEEN_EPOCHS: between}
        self.begin_stage("train", within)

    def end_epoch(self) -> Epoch | None:
        """End the epoch and return its times by stage, or None."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self.end_stage("train")
            self.begin_stage(BETWEEN_EPOCHS)
        return epoch

    def epoch_until_now(self) -> Epoch | None:
        """Return the times of the open epoch until now, or None."""
        self._settle()
        return self._epoch

    def begin_stage(self, stage: str, within: str | None = None) -> None:
        """Begin a stage within the innermost one: a validation, a test or a prediction."""
        self.end_stage(stage)
        self._settle()
        # The runs of validation within an epoch are added up.
        self._stages[stage] = (self._epoch or {}).get(stage) or StageTimes()
        if stage != BETWEEN_EPOCHS:
            self._begin_slice(f"{stage} epoch", within)

    def end_stage(self, stage: str) -> StageTimes | None:
        """End a stage and those within it. Return its times, or None if it is not open."""
        if stage not in self._stages:
            return None
        self._slices.end(f"{stage} epoch")
        self._drop_batch()
        self._settle()
        while stage in self._stages:
            _, times = self._stages.popitem()
        times.runs += 1
        return times

    def begin_batch(self) -> None:
        """Begin a batch of the innermost stage."""
        self._begin_slice(f"{next(reversed(self._stages), 'train')} batch", _BATCH)
        self._wait()
        self._drop_batch()
        self._batch_since_ns = self._settle()

    def end_batch(self, samples: int) -> None:
        """End the batch."""
        self._wait()
        begun_ns, now_ns = self._batch_since_ns, self._settle()
        self._batch_since_ns = None
        if begun_ns is not None and self._stages:
            times = next(reversed(self._stages.values()))
            times.samples += samples
            times.batches.add(now_ns - begun_ns)
        self._slices.end(_BATCH)

    def begin(self, name: str) -> None:
        """Begin an interval within a batch ("backward", "optimizer step"), or continue it after `pause`."""
        self._begin_slice(name)
        self._wait()
        self._since_ns[name] = self._now_ns()

    def pause(self, name: str) -> None:
        """Exclude the time until the next `begin`, as that of the loss which LBFGS computes in the middle of its step."""
        if name in self._since_ns:
            self._wait()
            self._passed_ns[name] += self._now_ns() - self._since_ns.pop(name)
            self._slices.end(name)

    def end(self, name: str) -> None:
        """End an interval, if it has begun."""
        self.pause(name)
        passed_ns = self._passed_ns.pop(name, None)
        if passed_ns is not None and self._epoch is not None:
            self._epoch["train"].within[name].add(passed_ns)

    def start(self, action_name: str) -> None:
        """Record the start of an action of Lightning."""
        if threading.get_ident() != self._thread:
            return
        action = action_of(action_name)
        if self._batch_since_ns is None:  # within a batch it makes no difference
            self._settle()
        # Only actions within callbacks may have a part that differs from that of the action around them.
        around = self._actions[-1][1] if self._actions else OTHER
        part = action.part if action.part is not None and around in (OTHER, CALLBACKS) else around
        self._actions.append((action_name, part))
        if part != around and self._slices_of_parts and part != CALLBACKS:
            self._begin_slice(part, action_name)
        if action_name == _RUN_EPOCH:
            if self._epoch is None:  # Lightning calls no hook when it resumes within an epoch
                self.begin_epoch(self.resumed, action_name)
            self._expected = DATA_LOADING  # next, the workers of the loader are started
        elif action.hook == "training_step":
            self.pause(_STEP)

    def stop(self, action_name: str) -> None:
        """Record the end of an action, and of those that began within it."""
        if threading.get_ident() != self._thread:
            return
        hook = action_of(action_name).hook
        if hook == "optimizer_step":
            self.end(_STEP)
        elif action_name == _RUN_EPOCH:  # an exception may have ended it; then no hook ends the batch
            self._slices.close(inside="train epoch")
        self._slices.end(action_name)
        if self._batch_since_ns is None:
            self._settle()
        for place in reversed(range(len(self._actions))):
            if self._actions[place][0] == action_name:
                del self._actions[place:]
                break
        if hook == "on_validation_model_zero_grad":
            self._expected = DATA_LOADING  # as above, for the validation that follows

    def close(self) -> None:
        """End the open slices."""
        self._slices.close()

    def _settle(self) -> int:
        """Book the time since the last event; return the time now, ns."""
        now_ns = self._now_ns()
        if self._batch_since_ns is None and self._stages:
            part = self._expected or (self._actions[-1][1] if self._actions else OTHER)
            next(reversed(self._stages.values())).downtime_ns[part] += now_ns - self._booked_until_ns
        self._booked_until_ns, self._expected = now_ns, None
        return now_ns

    def _drop_batch(self) -> None:
        """Book an open batch as downtime: the loop has left it out."""
        if self._batch_since_ns is not None:
            self._booked_until_ns, self._batch_since_ns = self._batch_since_ns, None

    def _begin_slice(self, name: str, key: str | None = None) -> None:
        self._slices.begin(key or name, marker(name, _CATEGORIES))


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
            f"which the first {len(DEFAULT_KEYS)} are always on, and True selects the {len(OPTIONAL_KEYS)} after them"
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
