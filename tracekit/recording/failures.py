"""What goes wrong while recording: counted, logged once, and raised only under ``TRACEKIT_STRICT=1``."""

from __future__ import annotations

import logging
import os
from collections import Counter

from tracekit.errors import HandlerError, TracekitError

__all__ = ["Failures"]

logger = logging.getLogger("tracekit")


class Failures:
    """The failures of one profiler. Thread-safe enough: a count may be short by one when two threads fail at once.

    Attributes:
        counts: How often each handler, source or part of tracekit has failed.
    """

    __slots__ = ("_first", "_strict", "counts")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._strict = os.environ.get("TRACEKIT_STRICT", "") not in ("", "0")
        self._first: TracekitError | None = None

    def report(self, who: str, error: BaseException) -> None:
        """Count a failure; log the first of each ``who``. Under ``TRACEKIT_STRICT=1`` the training thread will raise it."""
        self.counts[who] += 1
        if self.counts[who] > 1:
            return
        if self._strict and self._first is None:
            self._first = HandlerError(f"{who}: {type(error).__name__}: {error}")
            self._first.__cause__ = error
        logger.warning(
            "tracekit: %s failed; training goes on. Its failures are counted, and logged this once; "
            "TRACEKIT_STRICT=1 raises it.",
            who,
            exc_info=(type(error), error, error.__traceback__),
        )

    def raise_pending(self) -> None:
        """Raise the first failure, once, under ``TRACEKIT_STRICT=1``; called on the training thread."""
        if self._first is not None:
            error, self._first = self._first, None
            raise error
