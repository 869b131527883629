"""Shared checks of arguments, with the same messages and the same rules for numbers and paths everywhere."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from tracekit.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

StrPath: TypeAlias = "str | os.PathLike[str]"
"""A file, folder, glob or URL; a URL is a string."""
Paths: TypeAlias = "StrPath | Iterable[StrPath]"
"""One path or URL, or several."""

MAX_SECONDS: Final = 1_000_000_000
LOG_SERVICES: Final = ("wandb", "mlflow")
"""Services that take traces as artifacts. Each name is that of its library, and of the extra that installs it."""

_FILE_URL: Final = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
_RANKS: Final = re.compile(r"([0-9]{1,9})(?: *- *([0-9]{1,9}))?")
_MAX_RANKS: Final = 1_000_000
_URL_IN_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_set(variable: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if a variable of the environment says yes: it is neither empty nor ``0`` nor ``false``."""
    return (os.environ if environ is None else environ).get(variable, "").lower() not in ("", "0", "false")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ConfigError: The value is not accepted; the message names the argument and the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_service(service: str, option: str) -> None:
    """Check that the library of a service in `LOG_SERVICES` is installed; import nothing.

    Raises:
        MissingExtraError: It is not. The message names the option.
    """
    try:
        spec = importlib.util.find_spec(service)
    except ValueError:  # a script has put another module in its place
        spec = None
    if spec is None or spec.origin is None:  # both libraries make a folder of their name where they run
        raise MissingExtraError(service, service, f"{option}{service}")


def check_whole(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of ``least`` or more; refuse anything else, including ``True``, which is a mistake.

    Raises:
        ConfigError: The value is not such a number; the message names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
    return value


def check_seconds(name: str, value: object) -> None:
    """Refuse a value that is not a number of seconds above 0, or that is too large for the timers of the system.

    Raises:
        ConfigError: The value is not such a number; the message names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")
    if value > MAX_SECONDS:
        raise ConfigError(f"{name} must be at most {MAX_SECONDS:,} seconds (31 years), not {value!r}")


def check_path(name: str, value: object) -> str:
    """Return a path or URL as a string, resolved by `resolve_path`.

    Raises:
        ConfigError: The value is neither a string nor a path, it holds a NUL, or it is a path made from a URL, which loses a
            slash. The message names the argument.
    """
    text = value
    if not isinstance(value, str) and isinstance(value, os.PathLike):
        text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"{name} must be a path or URL, not {_short(value)}")
    if text is not value and _URL_IN_PATH.match(text):
        raise ConfigError(f"{name}: pathlib makes another thing of a URL ({text}); give it as text")
    return resolve_path(text)


def resolve_path(text: str) -> str:
    """Return the local path for a ``file:`` URL or a path with ``~``; return other paths and URLs unchanged.

    Call it once, where a path enters tracekit: file systems know neither form.
    """
    match = _FILE_URL.match(text)
    path = text if match is None else unquote(text[match.end() :], errors="surrogateescape").replace("\0", "%00")
    return os.path.expanduser(path)  # noqa: PTH111 - pathlib would take the double slash out of a URL


def check_profiler(name: str, value: object) -> None:
    """Raise ConfigError, which shows how to make one, for anything but a profiler, or an object that stands in for one."""
    if isinstance(value, type) or not hasattr(value, "next_epoch"):
        raise ConfigError(
            f"{name} must be a tracekit.Profiler, such as Profiler(JSONTraceHandler('traces/{{run_id}}/rank{{rank}}.json')), "
            f"not {_short(value)}"
        )


def check_paths(name: str, values: object) -> list[str]:
    """Return one path or URL, or several, as strings.

    Raises:
        ConfigError: A value is not a path or URL; the message names the argument.
    """
    if isinstance(values, str | os.PathLike):
        return [check_path(name, values)]
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} must be paths or URLs, not {_short(values)}")
    return [check_path(name, value) for value in values]


def check_names(name: str, values: object) -> None:
    """Refuse a single string where several are expected: each letter would count as one.

    Raises:
        ConfigError: The value is one string; the message names the argument.
    """
    if isinstance(values, str):
        raise ConfigError(f"{name} must be several names, such as [{values!r}], not one text")


def parse_ranks(name: str, text: str) -> tuple[int, ...]:
    """Return the ranks, in order, of a list such as "0,8-15".

    Raises:
        ConfigError: The text is not such a list, or names more than a million ranks. The message starts with ``name``.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        low = int(match[1]) if match else 0
        high = int(match[2] or low) if match else -1
        if not 0 <= high - low < _MAX_RANKS - len(ranks):
            raise ConfigError(f"{name} {text[:100]}: give ranks and spans of ranks, for example 0,8-15")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def parse_steps(name: str, text: str) -> tuple[int | None, int | None]:
    """Return the first step and the one after the last of "10:20", "10:", ":20" or "10"; None for an open end.

    Raises:
        ConfigError: The text is not such a span. The message starts with ``name``.
    """
    low, colon, high = text.partition(":")
    if not all(end.isdecimal() or (colon and not end) for end in (low, high or low)) or len(text) > 40:
        raise ConfigError(f"{name} {text}: give the first step and the one after the last, for example {name} 10:20")
    if not colon:
        return int(low), int(low) + 1
    return int(low) if low else None, int(high) if high else None


def read_seconds(text: str) -> float:
    """Return a number of seconds of 0 or more.

    Raises:
        ConfigError: The text is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ConfigError(f"{text!r} is not a number of seconds from 0 on")
    return value


def read_log_service(text: str) -> str:
    """Return the name of a service in `LOG_SERVICES`.

    Raises:
        ConfigError: There is no such service.
    """
    if text not in LOG_SERVICES:
        raise ConfigError(f"{text!r} is none of {', '.join(LOG_SERVICES)}")
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
