"""Run an action when a module is imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]

_waiting: Final[dict[str, list[Callable[[ModuleType], object]]]] = {}
"""Actions by module name."""


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call an action with a module at the end of its import, or now if it is already imported. Errors are only logged.

    Args:
        name: The full name of the module.
        action: Called once, with the module.
    """
    module = sys.modules.get(name)
    if module is not None:
        _act(action, module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(action)


def _act(action: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - the import of the module must not fail
        import logging  # here: this module is imported at the start of every process of `tracekit run`

        logging.getLogger("tracekit").debug("tracekit: %s is not instrumented: %r", module.__name__, error)


class _Finder:
    """Runs the actions of `when_imported` at the end of an import. Removes itself after the last one; finds no modules."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the loader of a module with actions; leave every other module to the other finders."""
        if fullname not in _waiting or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for action in _waiting.pop(fullname, ()):
                    _act(action, module)
                if not _waiting and self in sys.meta_path:
                    sys.meta_path.remove(self)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
