"""Writing: what may take minutes, done on a thread of its own, with a line in the log now and then."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Writing"]

logger = logging.getLogger("tracekit")

HEARTBEAT_S: Final = 30.0


class Writing:
    """Does something on a thread, which the interpreter waits for at its end.

    Args:
        work: What to do; raises nothing.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="tracekit-jax-writing")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            work()

    def is_alive(self) -> bool:
        """Tell whether it is still being done."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Return when it is done. Every half minute a line in the log says what is waited for."""
        seconds = 0.0
        while self._thread.is_alive():
            self._thread.join(HEARTBEAT_S)
            seconds += HEARTBEAT_S
            if self._thread.is_alive():
                logger.warning("tracekit: JAX has been writing its trace for %d s; training waits for it", seconds)
