"""The time of a training loop by stage and cause: the arithmetic of the time profiler, without Lightning.

A `StageTimer` books every nanosecond on exactly one account: while a batch is open on that batch, else on a part of the
downtime of the innermost stage. Nothing is computed as a difference of means, so no number can be negative, and
train epoch = train batches + train downtime. The time of a validation run in the middle of a training epoch is the
validation's only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.clock import SYSTEM_CLOCK
from tracekit.integrations.lightning.actions import CALLBACKS, OTHER
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Clock

__all__ = ["EpochTimes", "StageTimer", "StageTimes"]


@dataclass
class StageTimes:
    """The times of one stage (training, validation ...), of one epoch or of several.

    Attributes:
        runs: Number of epochs of training, or of runs of validation.
        samples: Number in all batches together, as far as it is known.
        batches: The durations of the batches.
        downtime_ns: The time between the batches, by part.
    """

    runs: int = 0
    samples: int = 0
    batches: DurationStatistics = field(default_factory=DurationStatistics)
    downtime_ns: Counter[str] = field(default_factory=Counter)

    @property
    def total_downtime_ns(self) -> int:
        """All parts of the downtime together."""
        return self.downtime_ns.total()

    @property
    def total_ns(self) -> int:
        """Duration of the stage: its batches and its downtime."""
        return self.batches.total_ns + self.total_downtime_ns

    def add(self, other: StageTimes) -> None:
        """Add the times of another one, which stays as it is."""
        self.runs += other.runs
        self.samples += other.samples
        self.batches.merge(other.batches)
        self.downtime_ns.update(other.downtime_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for a checkpoint."""
        return {**vars(self), "batches": self.batches.to_dict(), "downtime_ns": dict(self.downtime_ns)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StageTimes:
        """Return the times that `to_dict` has stored."""
        batches = DurationStatistics.from_dict(stored["batches"])
        return cls(stored["runs"], stored["samples"], batches, Counter(stored["downtime_ns"]))


@dataclass
class EpochTimes:
    """The times of one training epoch.

    Attributes:
        train: Training, without the validation in its middle.
        validation: All runs of validation.
        between: The time between the end of an epoch and the start of the next.
        backward: The durations of the backward passes.
        optimizer_step: The durations of the optimizer's steps.
    """

    train: StageTimes = field(default_factory=StageTimes)
    validation: StageTimes = field(default_factory=StageTimes)
    between: StageTimes = field(default_factory=StageTimes)
    backward: DurationStatistics = field(default_factory=DurationStatistics)
    optimizer_step: DurationStatistics = field(default_factory=DurationStatistics)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for a checkpoint."""
        return {name: value.to_dict() for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EpochTimes:
        """Return the times that `to_dict` has stored."""
        stages = {name: StageTimes.from_dict(stored[name]) for name in ("train", "validation", "between")}
        parts = {name: DurationStatistics.from_dict(stored[name]) for name in ("backward", "optimizer_step")}
        return cls(**stages, **parts)  # type: ignore[arg-type]  # each by its name


class StageTimer:
    """Books the time that passes. Its methods are called when something begins or ends, on the training thread only.

    Events that do not fit (an end without a beginning, a batch that never ends) are corrected and raise nothing.

    Args:
        clock: The clock to read; its monotonic side counts, which nobody can set.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._now_ns = clock.monotonic_ns
        self._since_ns = 0
        self._stages: list[StageTimes] = []
        self._batch_since_ns: int | None = None
        self._actions: list[tuple[str, str]] = []  # (name, part) of running actions, the innermost last
        self._expected: str | None = None

    def begin(self, times: StageTimes) -> None:
        """Begin a stage, within the running one, if there is one; its time is added to ``times``."""
        self.settle()
        self._stages.append(times)

    def end(self, times: StageTimes) -> None:
        """End a stage, and those that began within it."""
        if not any(stage is times for stage in self._stages):
            return
        self._drop_batch()
        self.settle()
        while self._stages.pop() is not times:
            pass
        times.runs += 1

    def begin_batch(self) -> None:
        """Begin a batch of the innermost stage."""
        self._drop_batch()
        self._batch_since_ns = self.settle()

    def end_batch(self, samples: int) -> None:
        """End the batch. Without a beginning, nothing happens."""
        begun_ns, now_ns = self._batch_since_ns, self.settle()
        self._batch_since_ns = None
        if begun_ns is not None and self._stages:
            self._stages[-1].samples += samples
            self._stages[-1].batches.add(now_ns - begun_ns)

    def begin_action(self, name: str, part: str | None = None) -> bool:
        """Begin an action that takes time between batches.

        Args:
            name: Its name, for its end.
            part: The part of the downtime that it belongs to; None is that of the action around it. Within one of the named
                parts everything belongs to that part, but actions within callbacks may have a part of their own.

        Returns:
            True if a part begins with it.
        """
        if self._batch_since_ns is None:  # within a batch it makes no difference
            self.settle()
        around = self._actions[-1][1] if self._actions else OTHER
        begins = part not in (None, around) and around in (OTHER, CALLBACKS)
        self._actions.append((name, part if part is not None and begins else around))
        return begins

    def end_action(self, name: str) -> None:
        """End an action, and those that began within it. Without a beginning, nothing happens."""
        if self._batch_since_ns is None:
            self.settle()
        for place in reversed(range(len(self._actions))):
            if self._actions[place][0] == name:
                del self._actions[place:]
                return

    def expect(self, part: str) -> None:
        """Book the time until the next event on this part."""
        self._expected = part

    def settle(self) -> int:
        """Book the time since the last event; return the time now, ns."""
        now_ns = self._now_ns()
        if self._batch_since_ns is None and self._stages:
            part = self._expected or (self._actions[-1][1] if self._actions else OTHER)
            self._stages[-1].downtime_ns[part] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._expected = None
        return now_ns

    def _drop_batch(self) -> None:
        """Book a batch that was begun and will not end as downtime: the loop has left it out."""
        if self._batch_since_ns is not None:
            self._since_ns, self._batch_since_ns = self._batch_since_ns, None
