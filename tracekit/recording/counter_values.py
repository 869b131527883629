"""CounterValues: keeps finite numbers; discards, counts and reports everything else."""

from __future__ import annotations

import decimal
import logging
import math
import sys
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

from tracekit.events import WIDTH, odd_counters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.events import Label

logger = logging.getLogger("tracekit")
_MAX_NOTICES: Final = 100  # maximum number of notices per recording: changing metric names and types would fill the log
_LIMIT: Final = 1 << 63


class CounterValues:
    """Cleans the counters of one recording, and counts discarded values in ``refused``. Used by one thread."""

    def __init__(self) -> None:
        self.refused = 0
        self._reported: set[tuple[str, str]] = set()  # (counter, reason)

    def clean(self, records: list[Any], labels: Sequence[Label]) -> None:
        """Remove every value that is not a finite number from the counters in the records."""
        for index in odd_counters(records):
            values = records[index * WIDTH + 3]
            numbers = records[index * WIDTH + 3] = finite_numbers(values)
            if len(numbers) < len(values):
                self.refused += len(values) - len(numbers)
                self._report_refused(labels[records[index * WIDTH]].name, values)

    def report_others(self, refusals: Mapping[str, str]) -> None:
        """Log a warning for each counter call with a value that is not a mapping, by marker name and type of the value."""
        for name, kind in list(refusals.items()):
            what = f"counter {name!r} was given {kind}, not a mapping of numbers by name, such as {{'loss': 0.5}}"
            self._report(name, "no mapping", what)

    def _report_refused(self, name: str, values: Mapping[str, Any]) -> None:
        refused = 0
        for series, value in values.items():
            reason = _reason(value)
            if reason is not None:
                refused += 1
                what = f"counter {name!r}: {_text(series)!r} is {reason}, which is no finite number below 2**63"
                self._report(name, "not finite" if isinstance(value, float) else reason, what)
        if not refused:
            self._report(name, "names", f"counter {name!r}: two of its names are the same as text")

    def _report(self, name: str, reason: str, what: str) -> None:
        if (name, reason) in self._reported or len(self._reported) >= _MAX_NOTICES:
            return
        self._reported.add((name, reason))
        logger.warning(
            "tracekit: %s. Such values are left out and counted (a tensor's item() is a number, but waits for its device); "
            "%s.",
            what,
            "this is logged once for each counter and reason"
            if len(self._reported) < _MAX_NOTICES
            else f"this is notice {_MAX_NOTICES} of this kind, and the last",
        )


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, as int or float."""
    numbers: dict[str, float] = {}
    for series, value in values.items():
        number = _number(value)
        if number is not None:
            with suppress(Exception):  # `__str__` of a user's name may raise anything
                numbers[str(series)] = number
    return numbers


def _number(value: Any) -> float | None:
    """Return a value as int or float, or None if it is not a finite number below 2**63.

    Rejects tensors: reading one could wait for the device, and its value may have changed since the call.
    """
    with suppress(Exception):  # methods of a user's number may raise anything
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if isinstance(value, numpy.ndarray) and value.ndim == 0:
                value = value[()]
            if isinstance(value, numpy.bool_):
                value = bool(value)
        if not isinstance(value, Real | decimal.Decimal):
            return None
        # Keep integers of any type exact: a float has 53 bits.
        whole = isinstance(value, Integral) or (
            isinstance(value, decimal.Decimal) and value == value.to_integral_value()
        )
        number: float = int(value) if whole and abs(value) < _LIMIT else float(value)  # type: ignore[arg-type, operator]
        if math.isfinite(number) and abs(number) < _LIMIT:
            return number
    return None


def _reason(value: Any) -> str | None:
    """Return the reason to refuse a value, or None if it is accepted."""
    if _number(value) is not None:
        return None
    return repr(value) if type(value) is float else f"of type {type(value).__name__}"


def _text(series: object) -> str:
    with suppress(Exception):  # a user's `__str__` may raise anything
        return str(series)[:80]
    return f"<{type(series).__name__}>"
