"""The option ``--run NAME`` of every command: a run of the folder ``traces`` instead of a path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracekit.errors import ConfigError

LATEST: Final = "latest"
ROOT_VARIABLE: Final = "TRACEKIT_TRACES"
_ROOT: Final = "traces"
_OWN_OPTION: Final = {"merge", "top"}
"""Verbs with another ``--run``, which selects among their inputs. Only ``--run latest`` becomes a path here. Without an input,
these verbs call `find_run`."""


def with_named_runs(arguments: Sequence[str], verb: str) -> list[str]:
    """Return the arguments of a command with each ``--run NAME`` replaced by the path of the run; raise ConfigError."""
    replaced: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        option, equals, name = argument.partition("=")
        if option != "--run" or argument == "--":
            replaced.append(argument)
            if argument == "--":
                return [*replaced, *waiting]
            continue
        name = name if equals else next(waiting, "")
        if not name or (verb in _OWN_OPTION and name != LATEST):
            replaced += [argument] if equals or not name else [argument, name]
        else:
            replaced.append(find_run(name))
    return replaced


def find_run(name: str) -> str:
    """Return the folder of a run, or of the `LATEST`, below `ROOT_VARIABLE` or ``traces``; raise ConfigError without one."""
    root = Path(os.environ.get(ROOT_VARIABLE) or _ROOT)
    if name != LATEST and (root / name).is_dir():
        return str(root / name)
    from tracekit.traces.inputs import find_runs  # only --run needs it

    runs = sorted((run for run in find_runs(root) if run.path != root), reverse=True)
    if name == LATEST and runs:
        return str(runs[0].path)
    known = ", ".join(str(run.path.relative_to(root)) for run in runs[:5])
    there = f"the newest are {known}" if runs else "it holds no run"
    raise ConfigError(f"--run {name}: no such run in {root} ({there}); {ROOT_VARIABLE} names another folder")
