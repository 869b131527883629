"""Warnings with a rate limit: at most one per minute of each kind, or one for each subject."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tracekit.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("tracekit")

_EVERY_NS: Final = 60_000_000_000


class Notices:
    """Logs a warning of each kind immediately, and again after a minute at the earliest. Used by one thread.

    Args:
        monotonic_ns: The clock; for tests.
    """

    def __init__(self, monotonic_ns: Callable[[], int] = SYSTEM_CLOCK.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._next_ns: dict[str, int] = {}

    def warn(self, kind: str, message: str, *args: object) -> None:
        """Log a warning, unless one of its kind was logged within the last minute."""
        now_ns = self._monotonic_ns()
        if now_ns >= self._next_ns.get(kind, now_ns):
            self._next_ns[kind] = now_ns + _EVERY_NS
            logger.warning(message, *args)


class WarnOnce:
    """Logs a warning once for each subject.

    Args:
        prefix: Start of every message.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._warned: set[object] = set()

    def __call__(self, subject: object, message: str) -> None:
        """Log a warning, unless one about this subject was logged before."""
        if subject not in self._warned:
            self._warned.add(subject)
            logger.warning("%s%s", self._prefix, message)
