"""Where the time of a training loop goes: the arithmetic of the time profiler, without Lightning.

A `Ledger` books every nanosecond on exactly one account: while a batch is open on that batch, else on a part of the downtime
of the innermost stage. Nothing is computed as a difference of means, so no number can be negative, and whatever was
subtracted from one account stands on another: train epoch = train batches + train downtime, and the time of a validation
run in the middle of a training epoch is the validation's only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.clock import SYSTEM_CLOCK
from tracekit.statistics import DurationStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.clock import Clock

__all__ = [
    "CALLBACKS",
    "CHECKPOINTING",
    "DATA_LOADING",
    "LOGGING",
    "OTHER",
    "PARTS",
    "TRANSFER",
    "Ledger",
    "StageTimes",
]

DATA_LOADING: Final = "data loading"
TRANSFER: Final = "transfer"
CALLBACKS: Final = "callbacks"
LOGGING: Final = "logging"
CHECKPOINTING: Final = "checkpointing"
OTHER: Final = "other"
PARTS: Final = (DATA_LOADING, TRANSFER, CALLBACKS, LOGGING, CHECKPOINTING, OTHER)
"""What downtime is made of."""


@dataclass
class StageTimes:
    """The times of one stage (training, validation ...), of one epoch or of several.

    Attributes:
        runs: How often the stage was gone through: epochs of training, runs of validation.
        samples: In all batches together, as far as it could be told.
        batches: The durations of the batches.
        downtime_ns: What passed between the batches, by part.
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
        """How long the stage took: its batches and its downtime."""
        return self.batches.total_ns + self.total_downtime_ns

    def add(self, other: StageTimes) -> None:
        """Add the times of another one, which stays as it is."""
        self.runs += other.runs
        self.samples += other.samples
        self.batches.merge(other.batches)
        self.downtime_ns.update(other.downtime_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for a checkpoint."""
        return {
            "runs": self.runs,
            "samples": self.samples,
            "batches": self.batches.to_dict(),
            "downtime_ns": dict(self.downtime_ns),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StageTimes:
        """Return what `to_dict` has stored."""
        batches = DurationStatistics.from_dict(stored["batches"])
        return cls(stored["runs"], stored["samples"], batches, Counter(stored["downtime_ns"]))


class Ledger:
    """Books the time that passes. Its methods are called when something begins or ends, on the training thread only.

    What does not fit (an end without a beginning, a batch that never ends) is put right and raises nothing.

    Args:
        clock: The clock to read; its monotonic side counts, which nobody can set.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._now_ns = clock.monotonic_ns
        self._since_ns = 0
        self._stages: list[StageTimes] = []
        self._batch_since_ns: int | None = None
        self._actions: list[tuple[str, str]] = []  # (name, part) of what runs, the innermost last
        self._coming: str | None = None

    def begin(self, times: StageTimes) -> None:
        """Begin a stage, within the one that runs, if one does; what it takes is added to ``times``."""
        self._pass()
        self._stages.append(times)

    def end(self, times: StageTimes) -> None:
        """End a stage, and what was begun within it."""
        if not any(stage is times for stage in self._stages):
            return
        self.drop_batch()
        self._pass()
        while self._stages.pop() is not times:
            pass
        times.runs += 1

    def begin_batch(self) -> None:
        """Begin a batch of the innermost stage."""
        self.drop_batch()
        self._batch_since_ns = self._pass()

    def end_batch(self, samples: int) -> None:
        """End the batch. Where none was begun, nothing happens."""
        begun_ns, now_ns = self._batch_since_ns, self._pass()
        self._batch_since_ns = None
        if begun_ns is None or not self._stages:
            return
        self._stages[-1].samples += samples
        self._stages[-1].batches.add(now_ns - begun_ns)

    def drop_batch(self) -> None:
        """Take a batch that was begun and will not end for downtime: the loop has left it out."""
        if self._batch_since_ns is not None:
            self._since_ns, self._batch_since_ns = self._batch_since_ns, None

    def begin_action(self, name: str, part: str | None = None) -> bool:
        """Begin something that takes time between batches.

        Args:
            name: What it is, for its end.
            part: To which part of the downtime it belongs; None leaves it to what runs around it. Within one of the named
                parts everything belongs to that, but what is within callbacks may have a part of its own.

        Returns:
            Whether a part begins with it that was not there around it.
        """
        if self._batch_since_ns is None:  # within a batch it makes no difference
            self._pass()
        around = self._actions[-1][1] if self._actions else OTHER
        begins = part not in (None, around) and around in (OTHER, CALLBACKS)
        self._actions.append((name, part if part is not None and begins else around))
        return begins

    def end_action(self, name: str) -> None:
        """End it, and what was begun within it. Where it was not begun, nothing happens."""
        if self._batch_since_ns is None:
            self._pass()
        for place in reversed(range(len(self._actions))):
            if self._actions[place][0] == name:
                del self._actions[place:]
                return

    def expect(self, part: str) -> None:
        """Book what passes until the next event on this part."""
        self._coming = part

    def settle(self) -> None:
        """Book what has passed until now."""
        self._pass()

    def _pass(self) -> int:
        """Book the time since the last event; return the time now."""
        now_ns = self._now_ns()
        if self._batch_since_ns is None and self._stages:
            part = self._coming or (self._actions[-1][1] if self._actions else OTHER)
            self._stages[-1].downtime_ns[part] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._coming = None
        return now_ns
