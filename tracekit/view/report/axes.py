"""Scales of plots: round ticks, with units as people write them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

_LEAST: Final = 1e-200
_MAX_PLAIN: Final = 1e12  # larger numbers have an exponent


Units: TypeAlias = tuple[tuple[float, str], ...]
"""The units of a quantity, the largest first, each with how many of the quantity it is."""

TIMES: Final[Units] = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
"""Of ns."""
BYTES: Final[Units] = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
NUMBERS: Final[Units] = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
PERCENTS: Final[Units] = ((0.01, "%"),)
"""Of a share, 1 being all."""


class Axis(NamedTuple):
    """A scale: its ends, True if equal distances are equal ratios, and the values with marks and their labels."""

    low: float
    high: float
    log: bool
    ticks: list[tuple[float, str]]

    def at(self, value: float) -> float:
        """Return where a value is: 0 at the lower end, 1 at the upper; never outside."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        # Halves, since the difference of two huge numbers may be infinite.
        return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2)))


def axis(low: float, high: float, units: Units, *, log: bool = False) -> Axis:
    """Return a scale that includes two finite values; a logarithmic one needs values above 1e-200."""
    if log and low >= _LEAST:
        return _log_axis(low, high, units)
    size = max(abs(low), abs(high))
    if size < _LEAST:
        low, high = 0.0, 1.0
    elif high - low < size * 1e-9:
        low, high = (0.0, high) if high > 0 else (low, 0.0)
    factor, unit = _best(max(abs(low), abs(high)), units)
    step, values = round_ticks(low / factor, high / factor, 4)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = [(value * factor, _tick(value, digits, unit)) for value in values]
    return Axis(ticks[0][0], ticks[-1][0], False, ticks)


def round_ticks(low: float, high: float, most: int) -> tuple[float, list[float]]:
    """Return 1, 2 or 5 times a power of ten, and its multiples from below one value to above the other; about so many."""
    size = 10.0 ** math.floor(math.log10((high / 2 - low / 2) * 2 / most)) if high > low else 1.0
    step = next((size * by for by in (1, 2, 5) if (high - low) <= size * by * most), size * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return step, [number * step for number in range(first, max(last, first + 1) + 1)]


def words(value: float, units: Units) -> str:
    """Return a value with its unit, with three digits that count."""
    if not value:
        return f"0{_space(units[-1][1])}{units[-1][1]}"
    factor, unit = _best(value * 1.0005, units)
    number = value / factor
    size = abs(number)
    if size < 0.1 or size >= _MAX_PLAIN:
        return f"{number:.2g}{_space(unit)}{unit}".replace("-", "−")
    digits = 0 if size >= 99.95 or (units is NUMBERS and number.is_integer()) else 1 if size >= 9.995 else 2
    return f"{number:,.{digits}f}{_space(unit)}{unit}".replace("-", "−")


def _best(value: float, units: Units) -> tuple[float, str]:
    """Return the largest unit that a value reaches."""
    return next((step for step in units if abs(value) >= step[0]), units[-1])


def _tick(value: float, digits: int, unit: str) -> str:
    return f"{value:,.{digits}f}{_space(unit)}{unit}".replace("-", "−") if value else "0"


def _space(unit: str) -> str:
    return "" if unit in ("", "%", "k", "M", "G", "T") else "\N{NO-BREAK SPACE}"


def _log_axis(low: float, high: float, units: Units) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first > 2:
        every = -(-(last - first) // 5)
        values = [10.0**power for power in range(first, last + every, every)]
    else:
        values = [10.0**power * by for power in range(first, last + 1) for by in (1, 2, 5)]
        values = [value for at, value in enumerate(values) if not at + 1 < len(values) or values[at + 1] > low * 1.0001]
        values = values[: 1 + next(at for at, value in enumerate(values) if value >= high * 0.9999)]
        if len(values) < 2:
            values.append(10 * values[0])
    return Axis(values[0], values[-1], True, [(value, _short(words(value, units))) for value in values])


def _short(text: str) -> str:
    return text.replace(".00", "").replace(".0", "")
