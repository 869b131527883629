"""Points in tracekit's own code where CPython may run a signal handler or change threads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AtPoint"]


class AtPoint:
    """Does something once: at the n-th call or return in tracekit while some work is done.

    Args:
        number: At which point, from 0.
        action: What it does.
    """

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self._left = number
        self._action = action
        self.has_come = False

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if self.has_come or event == "c_call" or "tracekit" not in frame.f_code.co_filename:
            return
        self._left -= 1
        if self._left < 0:
            self.has_come = True
            self._action()

    def during(self, work: Callable[[], None]) -> bool:
        """Do the work, and return whether the point was reached."""
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        return self.has_come
