"""torch.compile: a marker inside a compiled function makes no graph break, and records nothing there.

Dynamo follows the Python code of a compiled function and breaks its graph at context managers that it does not know. This
module tells it what to do with markers: nothing. Dynamo has no public way to say so for objects, so its own tables of types are
used; where they are not what torch 2.13 has, a marker breaks the graph, and works.

torch is never imported here.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from tracekit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["pass_over_markers", "pass_over_profilers"]

logger = logging.getLogger("tracekit")

_DYNAMO: Final = "torch._dynamo"


def pass_over_markers(marker_types: Iterable[type], make_marker: Callable[..., Any]) -> None:
    """Have Dynamo pass over markers, now or when it is imported.

    Args:
        marker_types: The classes whose instances are markers.
        make_marker: The function that returns one, to be passed over as well.
    """
    _tell(functools.partial(_tell_of_markers, tuple(marker_types), make_marker))


def pass_over_profilers(profiler_type: type) -> None:
    """Have Dynamo pass over the markers that the method ``marker`` of a profiler returns."""
    _tell(functools.partial(_tell_of_profilers, profiler_type))


def _tell_of_markers(marker_types: tuple[type, ...], make_marker: Callable[..., Any]) -> None:
    builder = importlib.import_module("torch._dynamo.variables.builder")
    variable = _marker_variable()
    table = builder.VariableBuilder._type_dispatch()  # noqa: SLF001 - see the head of this module
    table.update(dict.fromkeys(marker_types, lambda _builder, _marker: variable()))
    builder.SourcelessBuilder._type_handlers[marker_types[0]] = lambda _tx, _marker: variable()  # noqa: SLF001
    any_marker = marker_types[0]("", (), frozenset())
    substitute = importlib.import_module("torch.compiler").substitute_in_graph
    substitute(make_marker, skip_signature_check=True)(lambda *_args, **_kwargs: any_marker)


def _tell_of_profilers(profiler_type: type) -> None:
    builder = importlib.import_module("torch._dynamo.variables.builder")
    variables = importlib.import_module("torch._dynamo.variables")
    variable = _marker_variable()

    class ProfilerVariable(variables.UserDefinedObjectVariable):  # type: ignore[misc, name-defined]
        """A profiler: its method ``marker`` gives markers to pass over, the rest is followed as usual."""

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
        """A marker, as Dynamo sees it: a context manager whose every method does nothing."""

        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name == "begin":
                return MarkerVariable()
            if name in ("start", "finish", "end", "instant", "counter"):
                return variables.ConstantVariable.create(None)
            return super().call_method(tx, name, args, kwargs)

    return MarkerVariable


def _tell(what: Callable[[], None]) -> None:
    when_imported(_DYNAMO, lambda _dynamo: _try(what))


def _try(what: Callable[[], None]) -> None:
    try:
        what()
    except Exception as error:  # noqa: BLE001 - private parts of torch: nothing may depend on them
        logger.debug("tracekit: markers will break the graphs of torch.compile: %r", error)
