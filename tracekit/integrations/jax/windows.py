"""Windows: after which steps JAX traces begin and end. Uses neither JAX nor a clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    # The action after a step; to "ask" is to have all processes begin a trace with the same step.
    Decision: TypeAlias = Literal["", "start", "stop", "ask"]

logger = logging.getLogger("tracekit")

_MINUTE_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """The steps of a trace: those it holds and those it should; ``again`` if it is begun once more."""

    first: int
    steps: int
    wanted: int
    again: bool = False

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

    def __init__(self, config: Any) -> None:
        self.agreed = False  # several processes must agree: `announce` begins a trace, and the time alone does not
        self.first_step: int | None = None  # the running trace began after this step
        self.last_ns = 0  # start of the time until the next trace, by the monotonic clock
        self._config = config  # a JaxProfilerConfig, which is defined with what it makes
        self._last_step = 0
        self._end_step = 0
        self._first_is_due = True
        self._is_repeated = False
        self._repeat = False
        self._announced: int | None = None

    def announce(self, step: int) -> None:
        """Begin a trace after that step, as all other processes do."""
        self._announced = step

    def after_step(self, step: int, epoch: int, now_ns: int) -> Decision:
        """Return the action after a step of an epoch, given by their numbers; `started` and `ended` confirm it."""
        self._last_step = step
        config = self._config
        if self.first_step is not None:
            if self._first_is_due and step >= config.profile_first_step:
                self._first_is_due = False
                self._end_step = max(self._end_step, step + config.profile_n_steps)
            # A loop that begins to count anew has no later step to wait for.
            return "stop" if step >= self._end_step or step < self.first_step else ""
        announced = self._announced
        if announced is not None and step >= announced:
            self._announced = None
            if step > announced:
                logger.warning("tracekit: process 0 announced a JAX trace too late; this process does not record it")
        if config.every_n_epochs > 0 and epoch % config.every_n_epochs:
            return ""
        if self._repeat or step == announced or self._is_due_by_number(step):
            return "start"
        if config.profile_every_n_minutes >= 0 and now_ns - self.last_ns > config.profile_every_n_minutes * _MINUTE_NS:
            return "ask" if self.agreed else "start"
        return ""

    def _is_due_by_number(self, step: int) -> bool:
        first: int = self._config.profile_first_step
        every: int = self._config.every_n_steps
        return (self._first_is_due and step >= first) or (every > 0 and step > first and (step - first) % every == 0)

    def started(self) -> None:
        """Note that a trace begins."""
        self.first_step = self._last_step
        self._end_step = self._last_step + self._config.profile_n_steps
        self._first_is_due = self._first_is_due and self._last_step < self._config.profile_first_step
        self._is_repeated, self._repeat = self._repeat, False

    def ended(self, now_ns: int, *, early: bool = False) -> Held:
        """Note that the trace has ended, or could not begin. One that ended early is begun once more, but only once."""
        assert self.first_step is not None, "started before"
        wanted = self._end_step - self.first_step
        held = min(max(self._last_step - self.first_step, 0), wanted)
        self._repeat = early and held < wanted and not self._is_repeated
        self.last_ns = now_ns
        first, self.first_step = self.first_step + 1, None
        return Held(first, held, wanted, self._repeat)
