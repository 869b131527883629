"""The units of training time, and the strings that name an amount of one: ``"10ba"``, ``"0.5dur"``, ``"1h30m"``."""

from __future__ import annotations

import enum
import math
import re

from tracekit.errors import TimeError


class TimeUnit(str, enum.Enum):
    """A unit of training time.

    ``TimeUnit(x)`` takes a member, a value or a member name, in upper or lower case; anything else is a `TimeError`.
    A member is also the string of its value: ``TimeUnit.EPOCH == "ep"``.

    Differences: comparing with a string gives no warning, and compares with the exact value (``"EP"`` is not equal),
    because equal objects must have equal hashes. A wrong unit is always a `TimeError`.
    """

    ITERATION = "iter"
    """A group of epochs, as in reinforcement learning loops."""
    EPOCH = "ep"
    BATCH = "ba"
    """One optimizer step."""
    SAMPLE = "sp"
    TOKEN = "tok"  # noqa: S105 - a unit, not a password
    DURATION = "dur"
    """A fraction of the whole training; the only unit whose values are floats."""
    SECOND = "sec"

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def _missing_(cls, value: object) -> TimeUnit:
        if isinstance(value, str):
            wanted = value.lower()
            for unit in cls:
                if wanted in (unit.value, unit.name.lower()):
                    return unit
        accepted = ", ".join(f"{unit.value} ({unit.name.lower()})" for unit in cls)
        raise TimeError(f"{shown(value)} is not a unit of training time; the units are {accepted}")


# The limit of a 64-bit counter, in traces and in the JSON of any language. It also keeps "1e999999999tok" from filling memory.
LARGEST_COUNT = 2**63 - 1
_LONGEST = 64

_NUMBER = (
    r"(?P<sign>[+-]?)(?=\.?\d)(?P<whole>\d+(?:_\d+)*)?(?:\.(?P<fraction>\d+(?:_\d+)*)?)?(?:e(?P<exponent>[+-]?\d+))?"
)
_COUNT = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>[a-z]+)\s*", re.ASCII | re.IGNORECASE)
_NUMBER_PREFIX = re.compile(rf"\s*{_NUMBER}\s*", re.ASCII | re.IGNORECASE)
# Lower case only: "5M" in a configuration means five million more often than five minutes.
_CLOCK = re.compile(r"\s*(?=\d)(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?(?P<rest>\s*)", re.ASCII)
_WORD = re.compile(r"[a-z]+\s*", re.ASCII | re.IGNORECASE)
_SUFFIXES = {unit.value: unit for unit in TimeUnit}
ACCEPTED = (
    "accepted are a number and a unit - whole numbers of iter, ep, ba, sp, tok or sec such as '10ba' or '1e9tok', "
    "or a fraction such as '0.5dur' - and hours, minutes and seconds in this order such as '1h30m', '90m' or '45s'"
)


def parse_timestring(text: str) -> tuple[int | float, TimeUnit]:
    """Return the number and the unit of a time string; `Time.from_timestring` describes the form.

    Raises:
        TimeError: The string is invalid. The message has the error, its position from 0, and the accepted forms.
    """
    _check_length(text)
    if _CLOCK.fullmatch(text):
        return parse_clock(text), TimeUnit.SECOND
    match = _COUNT.fullmatch(text)
    unit = _SUFFIXES.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise _syntax_error(text)
    if unit is not TimeUnit.DURATION:
        return _whole_number(match, unit), unit
    fraction = float(match["number"])
    if math.isinf(fraction):
        raise _error(text, f"{match['number']} is too large", match.start("number"))
    return fraction, unit


def parse_clock(text: str) -> int:
    """Return the seconds of a string of hours, minutes and seconds; errors as in `parse_timestring`."""
    _check_length(text)
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise _syntax_error(text)
    seconds = int(match["h"] or 0) * 3600 + int(match["m"] or 0) * 60 + int(match["s"] or 0)
    return _fitting(text, seconds, TimeUnit.SECOND, 0)


def _whole_number(match: re.Match[str], unit: TimeUnit) -> int:
    """Return the exact number of a matched time string; a float would lose digits beyond 2**53."""
    whole, fraction = ((match[part] or "").replace("_", "") for part in ("whole", "fraction"))
    fraction = fraction.rstrip("0")
    digits = int(whole + fraction or "0")
    exponent = int(match["exponent"] or 0) - len(fraction)
    # The text is short, so the capped powers exceed every number that is accepted or divides evenly.
    if exponent >= 0:
        digits *= 10 ** min(exponent, 2 * _LONGEST)
    else:
        digits, rest = divmod(digits, 10 ** min(-exponent, 2 * _LONGEST))
        if rest:
            problem = f"{match['number']} is not a whole number, and only durations (dur) have fractions"
            raise _error(match.string, problem, match.start("number"))
    return _fitting(match.string, -digits if match["sign"] == "-" else digits, unit, match.start("number"))


def _fitting(text: str, number: int, unit: TimeUnit, position: int) -> int:
    if abs(number) > LARGEST_COUNT:
        raise _error(text, f"the number does not fit in 64 bits (at most {LARGEST_COUNT} {unit})", position)
    return number


def _check_length(text: str) -> None:
    if not isinstance(text, str):
        raise TimeError(f"a time string is needed, not {shown(text)}; {ACCEPTED}")
    if len(text) > _LONGEST:
        raise _error(text, f"it goes on after {_LONGEST} characters", _LONGEST)


def _syntax_error(text: str) -> TimeError:
    """Return the error for the position at which a string stops being a time string."""
    if not text.strip():
        return _error(text, "it is empty", 0)
    number, clock = _NUMBER_PREFIX.match(text), _CLOCK.match(text)
    if number is None:
        position = len(text) - len(text.lstrip())
        return _error(text, f"a number is needed, not {text[position:]!r}", position)
    if number.end() == len(text):
        return _error(text, "the unit is missing", number.end())
    if clock is not None and clock.end() > number.end() and not _WORD.fullmatch(text, number.end()):
        position = clock.start("rest")
        return _error(text, f"{text[position:]!r} cannot follow {text[:position].strip()!r}", position)
    unit = text[number.end() :].strip()
    name = TimeUnit.__members__.get(unit.upper().removesuffix("ES" if unit.lower() == "batches" else "S"))
    return _error(text, f"{unit!r} is not a unit" + (f" (write {name.value!r})" if name else ""), number.end())


def _error(text: str, problem: str, position: int) -> TimeError:
    return TimeError(f"time string {shown(text)}, position {position}: {problem}; {ACCEPTED}")


def shown(value: object) -> str:
    """Return a value for a message, cut to a readable length; a huge integer cannot even be printed."""
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return "an integer beyond 64 bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
