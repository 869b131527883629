"""Schedules: the actions of the profiler, and functions that choose one for each batch."""

from __future__ import annotations

import dataclasses
import enum
import sys
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from tracekit.arguments import check_whole
from tracekit.errors import ConfigError
from tracekit.handlers.base import TraceHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.timestamp import Timestamp


class ProfilerAction(enum.Enum):
    """The action of the profiler during one batch.

    ``ProfilerAction(x)`` accepts a member, or its name in upper or lower case. A member equals its value and has the
    same hash: ``ProfilerAction.ACTIVE == "active"``.
    """

    SKIP = "skip"
    """Record nothing."""
    WARMUP = "warmup"
    """Record markers; torch.profiler warms up and keeps nothing."""
    ACTIVE = "active"
    """Record everything."""
    ACTIVE_AND_SAVE = "active_and_save"
    """Record everything, and save the window when this batch ends."""

    def __eq__(self, other: object) -> bool:
        return self._value_ == other if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self._value_)

    @classmethod
    def _missing_(cls, value: object) -> ProfilerAction:
        for action in cls:
            if isinstance(value, str) and action == value.lower():
                return action
        raise ConfigError(f"{value!r} is not a ProfilerAction; the actions are {', '.join(one.value for one in cls)}")


Schedule: TypeAlias = "Callable[[Timestamp], ProfilerAction]"
"""A function of the training time at the start of a batch. It is called once for each batch.

`Profiler` also accepts the result of ``torch.profiler.schedule(...)``, a function of the step number.
"""

_TORCH_ACTIONS: Final = {
    "NONE": ProfilerAction.SKIP,
    "WARMUP": ProfilerAction.WARMUP,
    "RECORD": ProfilerAction.ACTIVE,
    "RECORD_AND_SAVE": ProfilerAction.ACTIVE_AND_SAVE,
}


def action_of(answer: object) -> ProfilerAction:
    """Return the result of a schedule as a ProfilerAction. Convert actions of torch.profiler; refuse others."""
    if isinstance(answer, ProfilerAction):
        return answer
    if _is_torch_action(answer):
        return _TORCH_ACTIONS[answer.name]  # type: ignore[attr-defined]
    raise ConfigError(f"the schedule returned {answer!r}, which is not a ProfilerAction")


def _is_torch_action(answer: object) -> bool:
    torch = sys.modules.get("torch.profiler")  # if torch is not imported, there are no such actions
    return torch is not None and isinstance(answer, torch.ProfilerAction)


def checked_schedule(schedule: Schedule, timestamp: Timestamp) -> tuple[Schedule, ProfilerAction]:
    """Call a schedule for the first batch. Return it, one of torch.profiler as a `StepSchedule`, and its result.

    Raises:
        ConfigError: It raises, or does not return an action. The message names the accepted schedules.
    """
    try:
        return schedule, action_of(schedule(timestamp))
    except Exception as error:
        function: Any = schedule
        with suppress(Exception):  # report the first error
            if _is_torch_action(function(0)):
                counted = StepSchedule(function, int(timestamp.batch))
                return counted, counted(timestamp)
        failed = str(error) if isinstance(error, ConfigError) else f"it raised {type(error).__name__}: {error}"
        raise ConfigError(
            f"schedule={schedule!r} was asked for the first batch, with its Timestamp, and {failed.removeprefix('the schedule ')}"
            f". Pass a function of the Timestamp that returns a tracekit.ProfilerAction, tracekit.cyclic_schedule(...) or "
            f"torch.profiler.schedule(...). A schedule of Composer takes a State: give it to "
            f"tracekit.integrations.composer.Profiler"
        ) from error


class CaptureSchedule(TraceHandler):
    """A schedule that starts captures on request; `tracekit.OnDemand` implements it.

    The profiler asks it like any schedule, and attaches it as a trace handler, so that it learns of windows and traces.

    Attributes:
        base: The schedule for the time between captures; None to record nothing.
    """

    base: Schedule | None

    @abstractmethod
    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""

    @property
    @abstractmethod
    def has_open_window(self) -> bool:
        """True while the window of a capture is open; it stays open at the end of an epoch."""

    @abstractmethod
    def attach(
        self, handlers: Sequence[TraceHandler], flush_handlers: Callable[[float], bool], *, warms_up: bool
    ) -> None:
        """Attach the schedule to its profiler, which calls this once.

        ``files_of`` and ``live_path`` of a handler report the files of a capture. ``flush_handlers`` waits for them,
        for a number of seconds at most. ``warms_up`` is True if the profiler has sources that need a batch to warm
        up.
        """

    @abstractmethod
    def capture(self, *, steps: int | None, seconds: float | None, warmup: int | None) -> bool:
        """Record the next batches; see `tracekit.OnDemand.capture`."""

    @abstractmethod
    def ended(self, timeout_s: float) -> None:
        """Finish the last capture, after all handlers have closed; wait for ``timeout_s`` at most."""


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """A schedule that counts steps since the start or the resumption of the run, like ``torch.profiler.schedule``.

    Its windows may cross the end of an epoch, like those of torch.profiler. ``first_batch`` is the batch of step 0.
    """

    function: Callable[[int], Any]
    first_batch: int = 0
    per: ClassVar[Literal["run"]] = "run"

    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""
        return action_of(self.function(int(timestamp.batch) - self.first_batch))

    def resumed_at(self, timestamp: Timestamp) -> StepSchedule:
        """Return the same schedule, counted from the resumption of a run."""
        return dataclasses.replace(self, first_batch=int(timestamp.batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSchedule:
    """A schedule of cycles, made by `cyclic_schedule`. Call it with the training time to get the action of a batch.

    Immutable, so any thread may call it. Ranks with the same arguments have the same windows.

    Attributes:
        skip_first: Batches to skip before the first cycle.
        wait: Batches of each cycle that are skipped.
        warmup: Batches of each cycle that warm up.
        active: Batches of each cycle that are recorded.
        repeat: Number of cycles; 0 means unlimited.
        per: "epoch" restarts the count with every epoch; "run" counts through the run.
        epoch_length: Batches in an epoch, or None if unknown. Used only per epoch.
        resumed_batch: Batches before the resumption: of the resumed epoch, or of the run.
        resumed_epoch: Epoch of the resumption. Used only per epoch.
    """

    skip_first: int = 0
    wait: int = 0
    warmup: int = 1
    active: int = 4
    repeat: int = 1
    per: Literal["epoch", "run"] = "epoch"
    epoch_length: int | None = None
    resumed_batch: int = 0
    resumed_epoch: int = 0

    def __post_init__(self) -> None:
        for name in ("skip_first", "wait", "warmup", "repeat", "resumed_batch", "resumed_epoch"):
            check_whole(f"cyclic_schedule: {name}", getattr(self, name), 0)
        check_whole("cyclic_schedule: active", self.active)
        if self.epoch_length is not None:
            check_whole("cyclic_schedule: epoch_length", self.epoch_length)
        if self.per not in ("epoch", "run"):
            raise ConfigError(f'cyclic_schedule: per must be "epoch" or "run", not {self.per!r}')

    def __call__(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``."""
        per_epoch = self.per == "epoch"
        batch = int(timestamp.batch_in_epoch) if per_epoch else int(timestamp.batch)
        first = self.skip_first
        if not per_epoch or int(timestamp.epoch) == self.resumed_epoch:
            first += self.resumed_batch
        length = self.wait + self.warmup + self.active
        if batch < first or (self.repeat and batch >= first + length * self.repeat):
            return ProfilerAction.SKIP
        phase = (batch - first) % length
        if phase < self.wait:
            return ProfilerAction.SKIP
        last = self.epoch_length - 1 if per_epoch and self.epoch_length is not None else None
        if last is not None and batch > last:
            return ProfilerAction.SKIP  # the profiler asks for the next batch before it knows that the epoch is over
        if phase < self.wait + self.warmup:
            # Skip a warm-up if the epoch ends before the first active batch.
            window_start = batch - phase + self.wait + self.warmup
            return ProfilerAction.SKIP if last is not None and window_start > last else ProfilerAction.WARMUP
        if phase == length - 1 or batch == last:
            return ProfilerAction.ACTIVE_AND_SAVE
        return ProfilerAction.ACTIVE

    def with_epoch_length(self, batches: int | None) -> CyclicSchedule:
        """Return the same schedule for epochs of this length, so that the last batch of an epoch saves its window.

        Args:
            batches: The length of the data loader in batches. None if unknown; the profiler then ends an open window
                when the epoch ends.
        """
        return dataclasses.replace(self, epoch_length=batches)

    def resumed_at(self, timestamp: Timestamp) -> CyclicSchedule:
        """Return the same schedule, counted from the resumption of a run.

        ``skip_first`` counts from the resumption, so that a resumed run is profiled too (composer#2986). Per epoch this
        applies to the resumed epoch only. Later epochs count from their start.

        Args:
            timestamp: The training time of the loaded checkpoint.
        """
        batch = timestamp.batch_in_epoch if self.per == "epoch" else timestamp.batch
        return dataclasses.replace(self, resumed_batch=int(batch), resumed_epoch=int(timestamp.epoch))


class CurrentSchedule:
    """The schedule of one profiler, as it follows the resumptions of the run and the lengths of epochs.

    Attributes:
        whole: The schedule that decides; None records always. A function of the step number until `check`.
    """

    def __init__(self, whole: Schedule | Callable[[int], Any] | None) -> None:
        self.whole: Any = whole

    @property
    def on_demand(self) -> CaptureSchedule | None:
        """The schedule, if it starts captures on request."""
        return self.whole if isinstance(self.whole, CaptureSchedule) else None

    @property
    def base(self) -> Any:
        """The schedule for the time between captures."""
        return self.whole if self.on_demand is None else self.on_demand.base

    @base.setter
    def base(self, schedule: Schedule) -> None:
        if self.on_demand is None:
            self.whole = schedule
        else:
            self.on_demand.base = schedule

    @property
    def _counting(self) -> CyclicSchedule | StepSchedule | None:
        """The base schedule if it depends on the length of epochs and on where the run was resumed."""
        return self.base if isinstance(self.base, CyclicSchedule | StepSchedule) else None

    @property
    def ends_with_epoch(self) -> bool:
        """True if an open window ends with the epoch."""
        is_capturing = self.on_demand is not None and self.on_demand.has_open_window
        return not is_capturing and (self._counting is None or self._counting.per != "run")

    def check(self, timestamp: Timestamp) -> ProfilerAction | None:
        """Return the action of the first batch, before anything is opened; None if the schedule is not ready yet."""
        if self.base is None:
            return None
        self.base, action = checked_schedule(self.base, timestamp)
        return None if self.on_demand is not None else action

    def action(self, timestamp: Timestamp) -> ProfilerAction:
        """Return the action of the batch that begins at ``timestamp``. A user's function may raise anything."""
        return ProfilerAction.ACTIVE if self.whole is None else action_of(self.whole(timestamp))

    def resume_at(self, timestamp: Timestamp) -> None:
        """Count from the resumption of a run."""
        if self._counting is not None:
            self.base = self._counting.resumed_at(timestamp)

    def learn_epoch_length(self, batches: int, timestamp: Timestamp) -> bool:
        """Take the length of an epoch; return True if that may change the action of the batch."""
        counting = self._counting
        if (
            not isinstance(counting, CyclicSchedule)
            or counting.per != "epoch"
            or not counting.epoch_length != batches > 0
            # Only before the first batch of an epoch: an evaluation in the middle has a loader of another length.
            or int(timestamp.batch_in_epoch) != 0
        ):
            return False
        self.base = counting.with_epoch_length(batches)
        return True


def cyclic_schedule(
    *,
    skip_first: int = 0,
    wait: int = 0,
    warmup: int = 1,
    active: int = 4,
    repeat: int = 1,
    per: Literal["epoch", "run"] = "epoch",
    epoch_length: int | None = None,
) -> CyclicSchedule:
    """Return a schedule of cycles: skip ``wait`` batches, warm up for ``warmup``, record ``active``. Names as in torch.

    The last active batch of a cycle is ``ACTIVE_AND_SAVE``. Per epoch, an active batch that is known to be the last of
    its epoch is ``ACTIVE_AND_SAVE`` too. If the length of the epoch is unknown, the profiler ends an open window with
    the epoch.

    Example:
        >>> schedule = cyclic_schedule(wait=1, warmup=1, active=3, repeat=2)   # two windows in every epoch
        >>> schedule = cyclic_schedule(skip_first=100, active=5, per="run")    # one window in the whole run

    Args:
        skip_first: Batches to skip before the first cycle, 0 or more.
        wait: Batches of each cycle to skip, 0 or more.
        warmup: Batches of each cycle during which torch.profiler warms up, 0 or more.
        active: Batches of each cycle to record, 1 or more.
        repeat: Number of cycles; 0 means unlimited.
        per: "epoch" restarts with every epoch. "run" counts through the whole run, and its windows may cross the end of
            an epoch.
        epoch_length: Batches in an epoch, if known.

    Raises:
        ConfigError: An argument is not an integer in its range. The message names the argument.
    """
    return CyclicSchedule(
        skip_first=skip_first,
        wait=wait,
        warmup=warmup,
        active=active,
        repeat=repeat,
        per=per,
        epoch_length=epoch_length,
    )
