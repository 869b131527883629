"""Options of a command from ``TRACEKIT_*`` variables and from ``[tool.tracekit]``: below the command line, in this order."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli.arguments import suggestion
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMES: Final = ("tracekit.toml", "pyproject.toml")
_EXCLUSIVE: Final = ("on_demand", "flight_recorder")


def read_file(actions: Mapping[str, argparse.Action], folder: Path) -> tuple[dict[str, Any], Path | None]:
    """Return the options of the nearest file that has some, and its path.

    The file is a ``tracekit.toml``, or a ``pyproject.toml`` with the table ``[tool.tracekit]``, in the folder or above it.

    Args:
        actions: The arguments of the command by the keys of the file.
        folder: First folder of the search; an absolute path.

    Raises:
        ConfigError: A file cannot be read, or has an unknown key or a wrong value. The message names file and key.
    """
    for path in (parent / name for parent in (folder, *folder.parents) for name in _NAMES):
        table = _table(path)
        if table is not None:
            return _checked(actions, table, path), path
    return {}, None


def read_environment(actions: Mapping[str, argparse.Action], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the environment: ``TRACEKIT_`` and the name of the option in capitals.

    Raises:
        ConfigError: A variable has a wrong value. The message names it.
    """
    names = {key: f"TRACEKIT_{key.upper()}" for key in actions}
    texts = {key: environ[name] for key, name in names.items() if environ.get(name)}
    flags = {key for key, action in actions.items() if _is_flag(action)}
    values = {key: text != "0" if key in flags else text for key, text in texts.items()}
    chosen = {key: _converted(actions[key], value, names[key]) for key, value in values.items()}
    _refuse_both(chosen, " and ".join(names[key] for key in _EXCLUSIVE if key in names))
    return chosen


def overlay(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of higher precedence over them."""
    excluded = {
        other for key in _EXCLUSIVE if upper.get(key) for other in _EXCLUSIVE if other != key and other not in upper
    }
    return {**{key: value for key, value in lower.items() if key not in excluded}, **upper}


def _table(path: Path) -> dict[str, Any] | None:
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a folder may not be searched
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    is_project = path.name == "pyproject.toml"
    if is_project and b"tracekit" not in data:
        return None
    toml = _toml()
    try:
        document: dict[str, Any] = toml.loads(data.decode())
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None
    table = document.get("tool", {}).get("tracekit") if is_project else document
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.tracekit must be a table of options: [tool.tracekit]")
    return table


def _toml() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib


def _checked(actions: Mapping[str, argparse.Action], table: dict[str, Any], path: Path) -> dict[str, Any]:
    place = f"{path}: [tool.tracekit]" if path.name == "pyproject.toml" else f"{path}:"
    chosen = {}
    for key, value in table.items():
        if key not in actions:
            nearest = suggestion(key, list(actions)) or f"; known are {', '.join(sorted(actions))}"
            raise ConfigError(f"{place} {key} is not an option{nearest}")
        chosen[key] = _converted(actions[key], value, f"{place} {key}")
    _refuse_both(chosen, place)
    return chosen


def _converted(action: argparse.Action, value: Any, place: str) -> Any:
    """Return a value as the command line would have it."""
    if _is_flag(action):
        if not isinstance(value, bool):
            raise ConfigError(f"{place} must be true or false, not {value!r}")
        return value
    if isinstance(value, list) and all(type(item) in (int, str) for item in value):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{place} must be one text or number, not {value!r}")
    assert callable(action.type), "each option that is no flag has a function that reads it"
    try:
        return action.type(str(value))
    except (argparse.ArgumentTypeError, ConfigError) as error:
        raise ConfigError(f"{place}: {error}") from None


def _is_flag(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def _refuse_both(chosen: Mapping[str, Any], place: str) -> None:
    if all(chosen.get(key) for key in _EXCLUSIVE):
        raise ConfigError(f"{place}: on_demand and flight_recorder exclude each other; keep one")
