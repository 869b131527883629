"""The optional compiled core. Pure Python gives the same results, only slower.

Merged JSON has the same events in the same order: the core keeps the white space within an event, and Python writes none.

The installation builds it if there is a compiler. Python is used with ``TRACEKIT_PURE_PYTHON=1`` in the environment, or if the
core cannot be loaded. This module logs once, at level DEBUG, which of the two is in use.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["FREE_THREADED", "merge", "record"]

FREE_THREADED: Final = "t" in getattr(sys, "abiflags", "")
"""True if this CPython is built to run without the interpreter lock. It may still use one (``PYTHON_GIL=1``)."""

_PURE: Final = "TRACEKIT_PURE_PYTHON"
_MODULES: Final = ("_merge", "_record")

_log = logging.getLogger(__name__)


def _load() -> list[ModuleType | None]:
    if os.environ.get(_PURE, "").lower() not in ("", "0", "false"):
        _log.debug("pure Python, as %s says", _PURE)
        return [None] * len(_MODULES)
    if FREE_THREADED:
        _log.debug("pure Python: the core relies on the interpreter lock, which this Python is built without")
        return [None] * len(_MODULES)
    found: list[ModuleType | None] = []
    errors = []
    for name in _MODULES:
        try:
            found.append(import_module(f"{__name__}.{name}"))
        except ImportError as error:
            found.append(None)
            errors.append(str(error))
    if errors:
        _log.debug("pure Python%s: %s", " in part" if any(found) else "", "; ".join(errors))
    else:
        _log.debug("compiled core: %s", __path__[0])
    return found


merge, record = _load()
"""`tracekit.core._merge` and `tracekit.core._record`, or None for pure Python. Read them at each use, because tests set them.
Exception: `tracekit.recording` chooses the implementation of markers once, at import."""
