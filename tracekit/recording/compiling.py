"""torch.compile: a marker inside a compiled function causes no graph break, and records nothing there.

Dynamo traces the Python code of a compiled function and breaks its graph at unknown context managers. This module makes
Dynamo ignore markers. Dynamo has no public API for this, so this module changes its private type tables. If they differ
from those of torch 2.13, markers break the graph, but still work.

This module never imports torch.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from tracekit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("tracekit")

_DYNAMO: Final = "torch._dynamo"


def pass_over_markers(marker_types: Iterable[type], make_marker: Callable[..., Any]) -> None:
    """Make Dynamo ignore markers, and calls of the function that returns one, immediately or when it is imported."""
    _change_dynamo(functools.partial(_ignore_markers, tuple(marker_types), make_marker))


def pass_over_profilers(profiler_type: type) -> None:
    """Make Dynamo ignore the markers that a profiler's ``marker`` method returns."""
    _change_dynamo(functools.partial(_ignore_markers_of, profiler_type))


def _change_dynamo(change: Callable[[], None]) -> None:
    def try_change(_dynamo: object) -> None:
        try:
            change()
        except Exception as error:  # noqa: BLE001 - private parts of torch may be missing or different
            logger.debug("tracekit: markers will break the graphs of torch.compile: %r", error)

    when_imported(_DYNAMO, try_change)


def _ignore_markers(marker_types: tuple[type, ...], make_marker: Callable[..., Any]) -> None:
    builder = importlib.import_module("torch._dynamo.variables.builder")
    variable = _marker_variable()
    table = builder.VariableBuilder._type_dispatch()  # noqa: SLF001 - see the module docstring
    table.update(dict.fromkeys(marker_types, lambda _builder, _marker: variable()))
    builder.SourcelessBuilder._type_handlers[marker_types[0]] = lambda _tx, _marker: variable()  # noqa: SLF001
    any_marker = marker_types[0]("", (), frozenset())
    substitute = importlib.import_module("torch.compiler").substitute_in_graph
    substitute(make_marker, skip_signature_check=True)(lambda *_args, **_kwargs: any_marker)


def _ignore_markers_of(profiler_type: type) -> None:
    builder = importlib.import_module("torch._dynamo.variables.builder")
    variables = importlib.import_module("torch._dynamo.variables")
    variable = _marker_variable()

    class ProfilerVariable(variables.UserDefinedObjectVariable):  # type: ignore[misc, name-defined]
        """A profiler in Dynamo: ``marker`` returns markers that do nothing. Dynamo traces other methods as usual."""

        def var_getattr(self, tx: Any, name: str) -> Any:
            if name == "marker":
                return variables.LambdaVariable(lambda *_args, **_kwargs: variable())
            return super().var_getattr(tx, name)

    table = builder.VariableBuilder._type_dispatch()  # noqa: SLF001
    table[profiler_type] = lambda builder, profiler: ProfilerVariable(profiler, source=builder.source)


@functools.cache
def _marker_variable() -> Any:
    variables = importlib.import_module("torch._dynamo.variables")
    null_context = importlib.import_module("torch._dynamo.variables.ctx_manager").NullContextVariable

    class MarkerVariable(null_context):  # type: ignore[misc, valid-type]
        """A marker in Dynamo: a context manager with methods that do nothing."""

        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "begin":
                return MarkerVariable()
            if name in ("start", "finish", "end", "instant", "counter"):
                return variables.ConstantVariable.create(None)
            return super().call_method(tx, name, args, kwargs)

    return MarkerVariable
