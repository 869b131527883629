"""Failures during a recording: counted, logged once, and raised only under ``TRACEKIT_STRICT=1``."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Final

from tracekit.arguments import is_set
from tracekit.errors import HandlerError, TracekitError

logger = logging.getLogger("tracekit")

_MAX_IN_A_ROW: Final = 10


class Failures:
    """The failures of one profiler, in ``counts``, and the one that `raise_pending` raises, or None, as ``pending``.

    ``is_strict`` says that ``TRACEKIT_STRICT`` asks to raise it. Any thread may report; a count may be too low by one when
    two threads do.
    """

    __slots__ = ("counts", "is_strict", "pending")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_strict = is_set("TRACEKIT_STRICT")
        self.pending: TracekitError | None = None

    def report(self, who: str, error: BaseException) -> None:
        """Count a failure. Log the first of each ``who``; with ``TRACEKIT_STRICT=1`` the training thread raises it."""
        self.counts[who] += 1
        if self.counts[who] > 1:
            return
        if self.is_strict and self.pending is None:
            self.pending = HandlerError(f"{who}: {type(error).__name__}: {error}")
            self.pending.__cause__ = error
        logger.warning(
            "tracekit: %s failed; training goes on. Its failures are counted, and logged this once; "
            "TRACEKIT_STRICT=1 raises it.",
            who,
            exc_info=(type(error), error, error.__traceback__),
        )

    def raise_pending(self, ended_by: BaseException | None = None) -> None:
        """Raise the first failure, once, with ``TRACEKIT_STRICT=1``. Called on the training thread.

        An exception that ends the recording goes on instead, with the failure as a note.
        """
        if self.pending is not None:
            error, self.pending = self.pending, None
            if ended_by is None:
                raise error
            if sys.version_info >= (3, 11):
                ended_by.add_note(f"tracekit: {error}")


class FailureLimit:
    """Disables a handler that fails ten times in a row; ``is_reached`` is then True."""

    __slots__ = ("_failures", "_in_a_row", "_name", "is_reached")

    def __init__(self, name: str, failures: Failures) -> None:
        self.is_reached = False
        self._name = name
        self._failures = failures
        self._in_a_row = 0

    def failed(self, method: str, error: BaseException) -> None:
        """Report a failure of a method. The tenth in a row disables the handler."""
        self._failures.report(f"{self._name}.{method}", error)
        self._in_a_row += 1
        if self._in_a_row >= _MAX_IN_A_ROW and not self.is_reached and method != "close":
            self.is_reached = True
            logger.warning("tracekit: %s failed %d times in a row and is left out", self._name, self._in_a_row)

    def succeeded(self) -> None:
        """Reset the count of failures in a row."""
        self._in_a_row = 0
