"""A sink for people: the table as text, into the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.timers.table import TimerTable

__all__ = ["TextSink"]


class TextSink:
    """Hands the table as text, with its units, to a function.

    Args:
        output: What is called with the text, such as ``print`` or ``logger.info``; None logs it at level INFO as
            "tracekit.timers".
    """

    def __init__(self, output: Callable[[str], object] | None = None) -> None:
        self._output = logging.getLogger("tracekit.timers").info if output is None else output

    def write(self, table: TimerTable, step: int) -> None:
        """Write a table."""
        self._output(f"timers at step {step}:\n{table.text()}")
