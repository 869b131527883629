"""Start the hooks in this process: wait for the imports of torch and JAX."""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Final

from tracekit.auto.notes import note
from tracekit.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType

AUTO_VARIABLE: Final = "TRACEKIT_AUTO"

_started: Final[list[int]] = []


def start() -> None:
    """Wait for torch and JAX, once. A process without them pays for two small modules only.

    The callers have looked at `AUTO_VARIABLE`: without it they import nothing of tracekit.
    """
    if _started:
        return
    _started.append(os.getpid())
    note("python")
    when_imported("torch", functools.partial(_instrument, "tracekit.auto.torch_hooks"))
    when_imported("jax.profiler", functools.partial(_instrument, "tracekit.auto.jax_hooks"))


def _instrument(hooks: str, module: ModuleType) -> None:
    try:
        importlib.import_module(hooks).instrument(module)
    except Exception as error:  # noqa: BLE001 - the import of the module must not fail
        note(f"failed-{os.getpid()}", {"error": f"{type(error).__name__}: {error}"})
    note(module.__name__)
