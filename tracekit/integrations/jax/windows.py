"""TraceConfig and Windows: when JAX traces begin and end. Uses neither JAX nor a clock."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from tracekit.arguments import check_whole
from tracekit.errors import ConfigError

_MINUTE_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The checked fields of `JaxProfilerConfig`, without the class that they configure."""

    every_n_epochs: int = -1
    every_n_steps: int = -1
    main_process_only: bool = True
    profile_every_n_minutes: float = 60
    profile_first_step: int = 10
    profile_n_steps: int = 5
    profile_log_dir: str = "tensorboard"

    def __post_init__(self) -> None:
        if isinstance(self.profile_log_dir, os.PathLike):
            object.__setattr__(self, "profile_log_dir", os.fspath(self.profile_log_dir))
        for name in ("every_n_epochs", "every_n_steps"):
            if getattr(self, name) != -1:
                check_whole(f"JaxProfilerConfig: {name} (-1 is off)", getattr(self, name))
        check_whole("JaxProfilerConfig: profile_first_step", self.profile_first_step, 0)
        check_whole("JaxProfilerConfig: profile_n_steps", self.profile_n_steps)
        minutes = self.profile_every_n_minutes
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not math.isfinite(minutes):
            raise ConfigError(
                f"JaxProfilerConfig: profile_every_n_minutes must be a number of minutes, not {minutes!r}"
            )
        if not isinstance(self.profile_log_dir, str) or not self.profile_log_dir:
            raise ConfigError(
                f"JaxProfilerConfig: profile_log_dir must be a path or URL that is not empty, not {self.profile_log_dir!r}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the name is unknown."""
        return self.to_dict().get(key, default)

    def to_dict(self) -> dict[str, int | float | bool | str]:
        """Return the fields and their values."""
        return asdict(self)


class Decision(Enum):
    """The action after a step."""

    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    ASK = "ask"
    """It is time for a trace, and all processes must begin it with the same step."""


@dataclass(frozen=True, slots=True)
class Held:
    """The steps of a trace: those it holds and those it should; ``again`` if it is begun once more."""

    first: int
    steps: int
    wanted: int
    again: bool

    def __str__(self) -> str:
        if self.steps < 2:
            return f"step {self.first}" if self.steps else "no whole step"
        return f"steps {self.first} to {self.first + self.steps - 1}"


class Windows:
    """Decides after each training step whether a trace begins or ends.

    A trace that begins after step 10 and holds 5 steps holds 11 to 15, and ends after step 15. Steps that are asked
    for by number are recorded whole: when a trace runs already as they come, it goes on until their end. A trace that
    is cut (by a validation or the end of an epoch) is begun once more after the next step. Used by the training
    thread; `announce` may be called by any other.
    """

    def __init__(self, config: TraceConfig) -> None:
        self.agreed = False  # several processes must agree: `announce` begins a trace, and the time alone does not
        self.first_step: int | None = None  # the running trace began after this step
        self.last_ns = 0  # start of the time until the next trace, by the monotonic clock
        self.missed = 0  # number of traces that were announced too late
        self._config = config
        self._last_step = 0
        self._end_step = 0
        self._first_is_due = True
        self._is_repeated = False
        self._repeat = False
        self._announced: int | None = None

    def reach(self, step: int) -> None:
        """Note that a step is over, and that a running trace is to end with it: another schedule decides."""
        self._last_step = self._end_step = step

    def announce(self, step: int) -> None:
        """Begin a trace after that step, as all other processes do."""
        self._announced = step

    def after_step(self, step: int, epoch: int, now_ns: int) -> Decision:
        """Return the action after a step of an epoch, given by their numbers; `started` or `ended` confirm it."""
        self._last_step = step
        config = self._config
        if self.first_step is not None:
            if self._first_is_due and step >= config.profile_first_step:
                self._first_is_due = False
                self._end_step = max(self._end_step, step + config.profile_n_steps)
            # A loop that begins to count anew has no later step to wait for.
            return Decision.STOP if step >= self._end_step or step < self.first_step else Decision.NOTHING
        announced = self._announced
        if announced is not None and step >= announced:
            self._announced = None
            self.missed += step > announced
        if config.every_n_epochs > 0 and epoch % config.every_n_epochs:
            return Decision.NOTHING
        if self._repeat or step == announced or self._is_due_by_number(step):
            return Decision.START
        if config.profile_every_n_minutes >= 0 and now_ns - self.last_ns > config.profile_every_n_minutes * _MINUTE_NS:
            return Decision.ASK if self.agreed else Decision.START
        return Decision.NOTHING

    def _is_due_by_number(self, step: int) -> bool:
        first, every = self._config.profile_first_step, self._config.every_n_steps
        if self._first_is_due and step >= first:
            return True
        return every > 0 and step > first and (step - first) % every == 0

    def started(self) -> None:
        """Note that a trace has begun."""
        self.first_step = self._last_step
        self._end_step = self._last_step + self._config.profile_n_steps
        self._first_is_due = self._first_is_due and self._last_step < self._config.profile_first_step
        self._is_repeated, self._repeat = self._repeat, False

    def ended(self, now_ns: int, *, early: bool = False) -> Held:
        """Note that the trace has ended, or that it could not begin. One that ended early is begun once more, but only once."""
        if self.first_step is None:
            self.started()
        assert self.first_step is not None
        wanted = self._end_step - self.first_step
        held = min(max(self._last_step - self.first_step, 0), wanted)
        self._repeat = early and held < wanted and not self._is_repeated
        self.last_ns = now_ns
        first, self.first_step = self.first_step + 1, None
        return Held(first, held, wanted, self._repeat)
