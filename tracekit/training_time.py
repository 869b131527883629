"""An amount of training time: a number of iterations, epochs, batches, samples, tokens or seconds."""

from __future__ import annotations

import math
import operator
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, final

from tracekit.errors import TimeError
from tracekit.timestring import ACCEPTED, LARGEST_COUNT, TimeUnit, parse_clock, parse_timestring, shown

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # of typing only since Python 3.13

    _ValueT_co = TypeVarWithDefault("_ValueT_co", bound=float, default=float, covariant=True)
else:
    _ValueT_co = TypeVar("_ValueT_co", bound=float, covariant=True)

_SECOND = timedelta(seconds=1)


@final
class Time(Generic[_ValueT_co]):
    """A number of one unit of training time, such as 10 batches. Immutable.

    Annotations may name the type of the value, as in Composer: ``Time[int]`` or, for a duration, ``Time[float]``.

    Arithmetic: ``+``, ``-`` and ``%`` take a number (of the own unit), a time string or a `Time` of the same unit.
    ``*`` and ``/`` by a number truncate toward zero to whole units; whole factors and divisors are exact. ``*`` by a
    duration takes that fraction (``Time(10, "ep") * "0.5dur"`` is 5 epochs); ``/`` by a `Time` of the same unit gives
    a duration. A division by zero is Python's own ``ZeroDivisionError``; an operand of a foreign type, None say, is
    Python's ``TypeError``.

    Comparison: with a `Time`, a time string, a number (of the own unit), and for seconds a ``timedelta``. ``==`` never
    raises and is False across units; an ordering across units raises `TimeError`. A number or a string that is equal
    hashes differently, so look up a `Time` in sets and dicts only by a `Time`.

    Differences to Composer: every error about a value is a `TimeError` (also a ``ValueError``); ``==`` across units
    or with an invalid string is False instead of an error; a float compares by value also with whole units; zero is
    false, as with ``timedelta``; ``bool``, nan, infinity and whole numbers beyond 64 bits are refused; integers of
    numpy are taken; whole factors keep large numbers exact; ``timedelta`` is accepted for seconds.

    Args:
        value: A whole number between -(2**63 - 1) and 2**63 - 1; for ``DURATION`` a finite float or integer; for
            ``SECOND`` also a ``timedelta`` of whole seconds.
        unit: The unit, or its value or name.

    Raises:
        TimeError: The value does not fit the unit, or there is no such unit.

    Attributes:
        value: The number: ``float`` for ``DURATION``, else ``int``.
        unit: The unit.
    """

    __slots__ = ("unit", "value")
    value: _ValueT_co
    unit: TimeUnit

    def __init__(self, value: _ValueT_co | timedelta, unit: TimeUnit | str) -> None:
        if type(unit) is not TimeUnit:
            unit = TimeUnit(unit)
        number: float | timedelta = value
        if type(number) is not int or unit is TimeUnit.DURATION or not -LARGEST_COUNT <= number <= LARGEST_COUNT:
            number = checked(number, unit)
        object.__setattr__(self, "value", number)
        object.__setattr__(self, "unit", unit)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Time is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Time is immutable: {name} cannot be deleted")

    def __reduce__(self) -> tuple[type[Time], tuple[float, TimeUnit]]:
        return Time, (self.value, self.unit)

    @classmethod
    def from_iteration(cls, iteration: int) -> Time[int]:
        """Return a number of iterations."""
        return Time(iteration, TimeUnit.ITERATION)

    @classmethod
    def from_epoch(cls, epoch: int) -> Time[int]:
        """Return a number of epochs."""
        return Time(epoch, TimeUnit.EPOCH)

    @classmethod
    def from_batch(cls, batch: int) -> Time[int]:
        """Return a number of batches."""
        return Time(batch, TimeUnit.BATCH)

    @classmethod
    def from_sample(cls, sample: int) -> Time[int]:
        """Return a number of samples."""
        return Time(sample, TimeUnit.SAMPLE)

    @classmethod
    def from_token(cls, token: int) -> Time[int]:
        """Return a number of tokens."""
        return Time(token, TimeUnit.TOKEN)

    @classmethod
    def from_duration(cls, duration: float) -> Time[float]:
        """Return a fraction of the training; 1.0 is all of it. Values outside 0..1 are allowed."""
        return Time(duration, TimeUnit.DURATION)

    @classmethod
    def from_timedelta(cls, duration: timedelta | str) -> Time[int]:
        """Return whole seconds from a ``timedelta``, or from hours, minutes and seconds such as ``"1h30m"``.

        Raises:
            TimeError: Not a whole number of seconds, or a string of another form.
        """
        if isinstance(duration, str):
            return Time(parse_clock(duration), TimeUnit.SECOND)
        if not isinstance(duration, timedelta):
            raise TimeError(
                f"a timedelta, or hours, minutes and seconds as in '1h30m', are needed, not {shown(duration)}"
            )
        return Time(duration, TimeUnit.SECOND)

    @classmethod
    def from_timestring(cls, timestring: str) -> Time:
        """Read a time string: a number and a unit (``"10ba"``), or hours, minutes and seconds (``"1h30m"``, ``"90m"``).

        The number may have a sign, ``_`` between digits, a fraction and an exponent. It is read exactly; only durations go
        through a float. The unit may be in upper or lower case; the letters h, m and s must be lower case. Spaces around the
        number and the unit are ignored.

        Differences to Composer: a number without a unit (``"5"``, ``"1h5"``, ``""``) is refused instead of read as
        seconds; hours, minutes and seconds have no upper limit; digits are ASCII; trailing spaces are accepted like leading
        ones.

        Raises:
            TimeError: The string is invalid. The message has the error, its position from 0, and the accepted forms.
        """
        return Time(*parse_timestring(timestring))

    @classmethod
    def from_input(cls, value: Time | str | float | timedelta, default_unit: TimeUnit | str | None = None) -> Time:
        """Convert user input to a `Time`.

        Args:
            value: A `Time` (returned as it is), a time string, a ``timedelta`` of whole seconds, or a number.
            default_unit: The unit of a number. The other types have a unit.

        Raises:
            TimeError: An invalid value, or a number without ``default_unit``.
        """
        if isinstance(value, Time):
            return value
        if isinstance(value, str):
            return Time.from_timestring(value)
        if isinstance(value, timedelta):
            return Time(value, TimeUnit.SECOND)
        if plain_number(value) is None:
            raise TimeError(f"a time, a time string or a number is needed, not {shown(value)}; {ACCEPTED}")
        if default_unit is None:
            raise TimeError(f"{shown(value)} has no unit; {ACCEPTED}")
        return Time(value, default_unit)

    def to_timestring(self) -> str:
        """Return the time string, such as ``"10ba"``; `from_timestring` reads it back exactly."""
        return f"{self.value}{self.unit.value}"

    __str__ = to_timestring

    def __repr__(self) -> str:
        return f"Time({self.value!r}, TimeUnit.{self.unit.name})"

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return self.value != 0

    def __hash__(self) -> int:
        return hash((self.value, self.unit))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Time):
            return self.unit is other.unit and self.value == other.value
        try:
            value = self._comparable(other)
        except TimeError:
            return False
        return NotImplemented if value is None else self.value == value

    def __lt__(self, other: Time | str | float | timedelta) -> bool:
        value = self._comparable(other)
        return NotImplemented if value is None else self.value < value

    def __le__(self, other: Time | str | float | timedelta) -> bool:
        value = self._comparable(other)
        return NotImplemented if value is None else self.value <= value

    def __gt__(self, other: Time | str | float | timedelta) -> bool:
        value = self._comparable(other)
        return NotImplemented if value is None else self.value > value

    def __ge__(self, other: Time | str | float | timedelta) -> bool:
        value = self._comparable(other)
        return NotImplemented if value is None else self.value >= value

    def __neg__(self) -> Time[_ValueT_co]:
        return self._of_same_unit(-self.value)

    def __pos__(self) -> Time[_ValueT_co]:
        return self

    def __add__(self, other: Time | str | float | timedelta) -> Time[_ValueT_co]:
        value = self._operand(other, "+")
        return NotImplemented if value is None else self._of_same_unit(self.value + value)

    __radd__ = __add__

    def __sub__(self, other: Time | str | float | timedelta) -> Time[_ValueT_co]:
        value = self._operand(other, "-")
        return NotImplemented if value is None else self._of_same_unit(self.value - value)

    def __rsub__(self, other: Time | str | float | timedelta) -> Time[_ValueT_co]:
        value = self._operand(other, "-")
        return NotImplemented if value is None else self._of_same_unit(value - self.value)

    def __mod__(self, other: Time | str | float | timedelta) -> Time[_ValueT_co]:
        value = self._operand(other, "%")
        return NotImplemented if value is None else self._of_same_unit(self.value % value)

    def __mul__(self, other: Time | str | float) -> Time:
        time = Time.from_timestring(other) if isinstance(other, str) else other
        if not isinstance(time, Time):
            factor = plain_number(time)
            return NotImplemented if factor is None else self._scaled(factor)
        if time.unit is TimeUnit.DURATION:
            return self._scaled(time.value)
        if self.unit is TimeUnit.DURATION:
            return time._scaled(self.value)
        raise TimeError(f"{self} * {time}: one of the two must be a duration (dur) or a number")

    __rmul__ = __mul__

    def __truediv__(self, other: Time | str | float | timedelta) -> Time:
        divisor = plain_number(other)
        if divisor is None:
            value = self._operand(other, "/")
            return NotImplemented if value is None else Time(self.value / value, TimeUnit.DURATION)
        if isinstance(self.value, int) and isinstance(divisor, int):
            # Truncate toward zero without using a float, so that large counts stay exact.
            quotient = abs(self.value) // abs(divisor)
            return Time(quotient if (self.value < 0) == (divisor < 0) else -quotient, self.unit)
        try:
            return self._truncated(self.value / divisor)
        except OverflowError:  # an integer beyond any float
            return Time(0, self.unit)

    def _of_same_unit(self, value: float) -> Time[_ValueT_co]:
        # The unit decides the type of the value; type checkers cannot see that.
        return Time(value, self.unit)  # type: ignore[arg-type]

    def _scaled(self, factor: float) -> Time:
        try:
            product = self.value * factor
        except OverflowError:
            product = math.inf
        return self._truncated(product)

    def _truncated(self, value: float) -> Time:
        """Return ``value`` in this unit, cut to whole units; nan and infinity stay floats, which `Time` refuses."""
        if isinstance(value, float) and math.isfinite(value) and self.unit is not TimeUnit.DURATION:
            value = int(value)
        return Time(value, self.unit)

    def _comparable(self, other: object) -> float | None:
        """Return ``other`` as a number to compare with this value, or None if it is not a time."""
        if isinstance(other, timedelta) and self.unit is TimeUnit.SECOND:
            seconds, rest = divmod(other, _SECOND)
            # Compared with whole seconds, any fraction of a second orders like a half, and a half is exact.
            return seconds + 0.5 if rest else seconds
        number = plain_number(other)
        return self._operand(other, "compared with") if number is None else number

    def _operand(self, other: object, operation: str) -> float | None:
        """Return the value of ``other`` in this unit, or None if it is not a time."""
        if plain_number(other) is not None:
            return checked(other, self.unit)
        if not isinstance(other, (Time, str, timedelta)):
            return None
        time = Time.from_input(other)
        if time.unit is not self.unit:
            raise TimeError(f"{self} {operation} {time}: the units differ, and there is no conversion between them")
        return time.value


def ensure_time(value: Time | str | float | timedelta, unit: TimeUnit | str | None = None) -> Time:
    """Convert user input to a `Time`; ``unit`` is the unit of a plain number. See `Time.from_input`."""
    return Time.from_input(value, unit)


def plain_number(value: object) -> int | float | None:
    """Return a plain number, also for integers of numpy, or None for anything else."""
    if isinstance(value, (int, float)):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def checked(value: object, unit: TimeUnit) -> int | float:
    """Return a value in the type of its unit, or raise `TimeError`."""
    if isinstance(value, timedelta) and unit is TimeUnit.SECOND:
        seconds, rest = divmod(value, _SECOND)
        if rest:
            raise TimeError(f"{shown(value)} is not a whole number of seconds")
        return seconds
    number = None if isinstance(value, bool) else plain_number(value)
    if unit is TimeUnit.DURATION:
        try:
            duration = math.nan if number is None else float(number)
        except OverflowError:
            duration = math.inf
        if not math.isfinite(duration):
            raise TimeError(f"a time in dur is a finite number, not {shown(value)}")
        return duration
    if not isinstance(number, int):
        raise TimeError(f"a time in {unit} is a whole number, not {shown(value)}")
    if abs(number) > LARGEST_COUNT:
        raise TimeError(
            f"a time in {unit} is a whole number of at most 64 bits (up to {LARGEST_COUNT}), this one is larger"
        )
    return number
