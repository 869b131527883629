"""Checks of arguments that many constructors share: one wording, one idea of what a number is."""

from __future__ import annotations

import math

from tracekit.errors import ConfigError

__all__ = ["check_seconds", "check_whole"]


def check_whole(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of ``least`` or more; refuse anything else. ``True`` is none: it is a mistake for a number.

    Raises:
        ConfigError: It is not; the message names it.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
    return value


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no finite number of seconds above 0.

    Raises:
        ConfigError: It is not; the message names it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")
