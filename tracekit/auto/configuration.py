"""Options of ``tracekit run`` and ``TRACEKIT_AUTO=1`` from ``TRACEKIT_*`` variables and from ``[tool.tracekit]``.

The command line is above the variables, and these above the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import is_set
from tracekit.auto.notes import OPTIONS_VARIABLE
from tracekit.auto.options import DEFAULTS, FLAGS, OPTIONS, READERS, RunOptions
from tracekit.errors import ConfigError
from tracekit.wording import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = ("tracekit.toml", "pyproject.toml")
_EXCLUSIVE: Final = ("on_demand", "flight_recorder")


def options_of_process() -> RunOptions:
    """Return the options of this process: those that ``tracekit run`` passes, else those of files and variables.

    Raises:
        ConfigError: A file or variable is wrong.
    """
    passed = os.environ.get(OPTIONS_VARIABLE)
    if passed:
        return RunOptions.from_json(passed)
    chosen, _ = read_options(Path.cwd(), os.environ)
    return RunOptions.of(chosen, merged=f"{chosen['folder']}/merged-{{attempt}}.json.gz" if chosen["merge"] else "")


def read_options(
    folder: Path, environ: Mapping[str, str], given: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Path | None]:
    """Return all options: those given, of the environment, of the nearest file, and the defaults, and the path of the file.

    Args:
        folder: See `read_file`.
        environ: The environment.
        given: Options of the command line.

    Raises:
        ConfigError: See `read_file` and `read_environment`.
    """
    of_file, path = read_file(folder)
    return {**DEFAULTS, **overlay(overlay(of_file, read_environment(environ)), given or {})}, path


def read_file(folder: Path) -> tuple[dict[str, Any], Path | None]:
    """Return the options of the nearest file that has some, and its path.

    The file is a ``tracekit.toml``, or a ``pyproject.toml`` with the table ``[tool.tracekit]``, in the folder or above it.

    Args:
        folder: First folder of the search; an absolute path.

    Raises:
        ConfigError: A file cannot be read, or has an unknown key or a wrong value. The message names file and key.
    """
    for path in (parent / name for parent in (folder, *folder.parents) for name in _NAMES):
        table = _table(path)
        if table is not None:
            return _checked(table, path), path
    return {}, None


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the environment: ``TRACEKIT_`` and the name of the option in capitals.

    Raises:
        ConfigError: A variable has a wrong value. The message names it.
    """
    names = {key: f"TRACEKIT_{key.upper()}" for key in OPTIONS}
    given = [key for key, name in names.items() if environ.get(name)]
    values = {key: is_set(names[key], environ) if key in FLAGS else environ[names[key]] for key in given}
    chosen = {key: _converted(key, value, names[key]) for key, value in values.items()}
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
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(data.decode())
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None
    tool = document.get("tool") if is_project else {"tracekit": document}
    table = tool.get("tracekit") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.tracekit must be a table of options: [tool.tracekit]")
    return table


def _checked(table: dict[str, Any], path: Path) -> dict[str, Any]:
    place = f"{path}: [tool.tracekit]" if path.name == "pyproject.toml" else f"{path}:"
    chosen = {}
    for key, value in table.items():
        if key not in OPTIONS:
            nearest = suggestion(key, OPTIONS) or f"; known are {', '.join(sorted(OPTIONS))}"
            raise ConfigError(f"{place} {key} is not an option{nearest}")
        chosen[key] = _converted(key, value, f"{place} {key}")
    _refuse_both(chosen, place)
    return chosen


def _converted(key: str, value: Any, place: str) -> Any:
    """Return a value as the command line would have it."""
    if key in FLAGS:
        if not isinstance(value, bool):
            raise ConfigError(f"{place} must be true or false, not {value!r}")
        return value
    if isinstance(value, list) and all(type(item) in (int, str) for item in value):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{place} must be one text or number, not {value!r}")
    try:
        return READERS[key](str(value))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _refuse_both(chosen: Mapping[str, Any], place: str) -> None:
    if all(chosen.get(key) for key in _EXCLUSIVE):
        raise ConfigError(f"{place}: on_demand and flight_recorder exclude each other; keep one")
