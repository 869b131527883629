"""Agreement: all processes of a run begin a trace after the same step, though each has a clock of its own."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, Final

from tracekit.integrations.jax.trace import coordination_client

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Agreement", "make_agreement", "steps_ahead"]

logger = logging.getLogger("tracekit")

_AHEAD_NS: Final = 2_000_000_000
_LISTEN_MS: Final = 500
_numbers = itertools.count()


def steps_ahead(step_ns: int) -> int:
    """Return how many steps ahead of its first step a trace is announced, so that everybody knows of it in time."""
    return 2 + math.ceil(_AHEAD_NS / max(step_ns, 1_000_000))


def make_agreement(index: int, announced: Callable[[int], None]) -> Agreement | None:
    """Return what the processes agree by; None, with a line in the log, where they have not been introduced to each other."""
    client = coordination_client()
    if client is None:
        logger.warning(
            "tracekit: without jax.distributed.initialize() the processes cannot agree on when to record: "
            "profile_every_n_minutes is off"
        )
        return None
    return Agreement(client, index, announced)


class Agreement:
    """Process 0 announces the step after which a trace begins; all others listen on a thread of their own.

    It uses the key-value store of ``jax.distributed``: no collective, and nothing on the path of a step waits.

    Args:
        client: The client of that store.
        index: The number of this process.
        announced: Called with the step, on any thread.
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
        """Note that it is time for a trace; process 0 then tells all processes, and this one, when it begins.

        Args:
            step: The step that is over.
            step_ns: How long a step takes, at least.
        """
        if self._thread is not None or step <= self._asked_for:
            return
        self._asked_for = step + steps_ahead(step_ns)
        self._client.key_value_set(f"{self._prefix}/{self._count}", str(self._asked_for))
        self._count += 1
        self._announced(self._asked_for)

    def close(self) -> None:
        """Stop listening; waits for half a second as a rule."""
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
