"""Agreement: begin a trace after the same step in all processes of a run, although their clocks differ."""

from __future__ import annotations

import itertools
import math
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A trace is announced this long before its first step, so that all processes know of it in time
_AHEAD_NS: Final = 2_000_000_000
_LISTEN_MS: Final = 500
_numbers = itertools.count()


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
