"""Import optional modules; run an action when a module is imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def import_extra(name: str, extra: str, purpose: str, package: str | None = None) -> Any:
    """Import a module that is optional.

    Args:
        name: The module.
        extra: The extra of tracekit that brings it.
        purpose: The feature that needs it, as the start of a sentence.
        package: The name to install it by; None is that of the module.

    Raises:
        MissingExtraError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        from tracekit.errors import MissingExtraError  # here: see `_act`

        broken = "" if isinstance(error, ModuleNotFoundError) else f", which cannot be imported ({error})"
        raise MissingExtraError(f"{package or name}{broken}", extra, purpose) from None


def require_extra(verb: str, *modules: str) -> None:
    """Raise MissingExtraError unless modules of the extra of a verb's name are installed; import nothing."""
    from tracekit.errors import MissingExtraError  # here: see `_act`

    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, verb, f"tracekit {verb}")


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call an action with a module at the end of its import, or now if it is already imported. Errors are only logged.

    Args:
        name: The full name of the module.
        action: Called once, with the module.
    """
    module = sys.modules.get(name)
    if module is not None:
        _act(action, module)
    else:
        _finder.wait_for(name, action)


def act_on_imported() -> bool:
    """Stop watching imports, and call the actions of the modules that were imported since. Call it at each step.

    After the first call no import passes through a finder of tracekit. Actions run at the next call.

    Returns:
        True if such a module is being imported by another thread now: its actions wait for another call.
    """
    return _finder.leave()


def _act(action: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - the import of the module must not fail
        import logging  # here: this module is imported at the start of every process of `tracekit run`

        logging.getLogger("tracekit").debug("tracekit: %s is not instrumented: %r", module.__name__, error)


class _Finder:
    """Runs the actions of `when_imported` at the end of an import. Removes itself after the last one; finds no modules."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {}
        self._searching: set[str] = set()
        self._has_left = False

    def wait_for(self, name: str, action: Callable[[ModuleType], object]) -> None:
        """Keep an action for a module that is not imported."""
        self._waiting.setdefault(name, []).append(action)
        if not self._has_left and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def leave(self) -> bool:
        """Watch no more imports; act on the modules that are complete. Return True if others are being imported."""
        self._has_left, is_importing = True, False
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None and getattr(module.__spec__, "_initializing", False):
                is_importing = True
            elif module is not None:
                self._act_on(module, name)
        return is_importing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the loader of a module with actions; leave every other module to the other finders."""
        if fullname not in self._waiting or fullname in self._searching:
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
                self._act_on(module, fullname)
                if not self._waiting and self in sys.meta_path:
                    sys.meta_path.remove(self)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _act_on(self, module: ModuleType, name: str) -> None:
        for action in self._waiting.pop(name, ()):
            _act(action, module)


_finder: Final = _Finder()
