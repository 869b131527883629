"""The values of counters: what is no finite number is left out and counted, and the user is told once."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any

from tracekit.events import COUNTER, WIDTH, places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.events import Label

__all__ = ["CounterValues"]

logger = logging.getLogger("tracekit")


class CounterValues:
    """Cleans the counters of one recording. Used by one thread.

    Attributes:
        refused: How many values were left out.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._told = False

    def clean(self, records: list[Any], labels: Sequence[Label]) -> None:
        """Leave out of the counters among records what is no finite number."""
        for index in places(records, COUNTER, COUNTER):
            values = records[index * WIDTH + 3]
            numbers = records[index * WIDTH + 3] = _numbers(values)
            if len(numbers) < len(values):
                self.refused += len(values) - len(numbers)
                if not self._told:
                    self._tell(f"counter {labels[records[index * WIDTH]].name!r}: {_first_refused(values)}")

    def tell_of_others(self) -> None:
        """Tell of counters whose values were no mapping, which nothing is known of."""
        if not self._told:
            self._tell("a counter was given no mapping of numbers by name, such as {'loss': 0.5}")

    def _tell(self, what: str) -> None:
        self._told = True
        logger.warning(
            "tracekit: %s. Such values are left out and counted (a tensor's item() is a number, but waits for its device); "
            "this is logged once.",
            what,
        )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, as int or float.

    A tensor is no number here: reading it could wait for the device, and it may be another one by now.
    """
    numbers: dict[str, float] = {}
    for series, value in values.items():
        if isinstance(value, Real):
            with suppress(Exception):  # a number of somebody's own, whose methods may do anything
                number = int(value) if isinstance(value, int) else float(value)
                if math.isfinite(number) and abs(number) < 1 << 63:
                    numbers[str(series)] = number
    return numbers


def _first_refused(values: Mapping[str, Any]) -> str:
    for series, value in values.items():
        with suppress(Exception):  # see above
            if not _numbers({series: value}):
                what = repr(value) if type(value) is float else f"of type {type(value).__name__}"
                return f"{str(series)[:80]!r} is {what}, which is no finite number below 2**63"
    return "two of its names are the same as text"
