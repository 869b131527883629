"""Checks of arguments that many constructors share: one wording, one idea of what a number is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_choice", "check_seconds", "check_whole"]


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the texts that are accepted.

    Raises:
        ConfigError: It is not; the message names it and them.
    """
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


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
