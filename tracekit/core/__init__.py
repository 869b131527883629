"""The compiled core, an option: what it does, Python does too, to the byte, only slower.

It is built where there is a compiler when tracekit is installed. ``TRACEKIT_PURE_PYTHON=1`` in the environment forces
Python; so does a core that cannot be loaded. The log of this module says, once and at level DEBUG, which is in use.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["merge"]

_PURE: Final = "TRACEKIT_PURE_PYTHON"

_log = logging.getLogger(__name__)


def _load() -> ModuleType | None:
    if os.environ.get(_PURE, "") not in ("", "0"):
        _log.debug("pure Python, as %s says", _PURE)
        return None
    try:
        found = import_module(f"{__name__}._merge")
    except ImportError as error:
        _log.debug("pure Python: %s", error)
        return None
    _log.debug("compiled core: %s", found.__file__)
    return found


merge: ModuleType | None = _load()
"""`tracekit.core._merge`, or None for pure Python. Read it when it is needed: tests set it."""
