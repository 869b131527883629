"""After which steps JAX traces begin and end: in one process, and the same in all. Uses neither JAX nor a clock."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    # The action after a step; to "ask" is to have all processes begin a trace with the same step.
    Decision: TypeAlias = Literal["", "start", "stop", "ask"]

logger = logging.getLogger("tracekit")

_MINUTE_NS: Final = 60_000_000_000
# A trace is announced this long before its first step, so that all processes know of it in time
_AHEAD_NS: Final = 2_000_000_000
_LISTEN_MS: Final = 500
_numbers = itertools.count()


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
        self._config = config  # a JaxProfilerConfig, which is defined next to the class that it makes
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
        """Record that a trace begins."""
        self.first_step = self._last_step
        self._end_step = self._last_step + self._config.profile_n_steps
        self._first_is_due = self._first_is_due and self._last_step < self._config.profile_first_step
        self._is_repeated, self._repeat = self._repeat, False

    def ended(self, now_ns: int, *, early: bool = False) -> Held:
        """Record that the trace has ended, or could not begin. One that ended early is begun once more, but only once."""
        assert self.first_step is not None, "started before"
        wanted = self._end_step - self.first_step
        held = min(max(self._last_step - self.first_step, 0), wanted)
        self._repeat = early and held < wanted and not self._is_repeated
        self.last_ns = now_ns
        first, self.first_step = self.first_step + 1, None
        return Held(first, held, wanted, self._repeat)


class Agreement:
    """Process 0 announces when a trace begins, by the step before it; each other process listens on a thread.

    It uses the key-value store of ``jax.distributed``: no collective, and nothing on the path of a step waits.
    ``announced`` is called with the step, on any thread.
    """

    def __init__(self, client: Any, index: int, announced: Callable[[int], None]) -> None:
        self._client = client
        self._announced = announced
        # The processes make the same ones in the same order.
        self._prefix = f"tracekit/jax_profiler/{next(_numbers)}"
        self._count = 0
        self._asked_for = -1
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if index != 0:
            self._thread = threading.Thread(target=self._listen, name="tracekit-jax-agreement", daemon=True)
            self._thread.start()

    def ask(self, step: int, step_ns: int) -> None:
        """Request a trace after a step of at least ``step_ns``; process 0 then announces to all when it begins."""
        if self._thread is not None or step <= self._asked_for:
            return
        self._asked_for = step + 2 + math.ceil(_AHEAD_NS / max(step_ns, 1_000_000))
        self._client.key_value_set(f"{self._prefix}/{self._count}", str(self._asked_for))
        self._count += 1
        self._announced(self._asked_for)

    def close(self) -> None:
        """Stop listening; usually waits for half a second."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(4 * _LISTEN_MS / 1000)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                text = self._client.blocking_key_value_get(f"{self._prefix}/{self._count}", _LISTEN_MS)
            except Exception as error:  # noqa: BLE001 - what JAX raises has no public type
                if "DEADLINE_EXCEEDED" not in str(error):
                    return  # the coordinator is gone, and with it the run
                continue
            self._count += 1
            self._announced(int(text))
