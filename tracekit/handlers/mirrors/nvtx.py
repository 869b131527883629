"""NVTX: tracekit's slices in Nsight Systems, Nsight Compute and other tools that take NVTX ranges."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError, MissingExtraError
from tracekit.handlers.mirrors.mirror import Mirror
from tracekit.imports import import_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.handlers.base import Recording
    from tracekit.handlers.mirrors.mirror import Moment


class NVTXMirror(Mirror):
    """Shows slices as NVTX ranges and instants as NVTX marks, with the marker's first category.

    Slices of threads are push/pop ranges, which tools draw nested below each other. If two slices of a thread overlap
    (``start`` and ``finish`` crosswise), the inner one is cut in two where the outer one ends, since NVTX can only end the
    innermost range. Slices of asyncio tasks, which take turns on one thread, are start/end ranges, which need no nesting.
    If another thread has a push/pop range open when the profiler stops, the range stays open in the tool.

    NVTX decides at process start if a tool listens. Without a tool, the mirror adds no cost to markers.

    Args:
        domain: The NVTX domain. Tools filter by it: ``nsys profile --nvtx-domain-include=tracekit``.
        color: Color of the ranges, in any form that nvtx takes; None leaves it to the tool.

    Raises:
        ConfigError: The domain is not a string, or is empty.
        MissingExtraError: nvtx is not installed, or older than 0.2.12.
    """

    def __init__(self, domain: str = "tracekit", *, color: str | int | None = None) -> None:
        super().__init__()
        if not isinstance(domain, str) or not domain:
            raise ConfigError(f"NVTXMirror: domain must be a name, not {domain!r}")
        self._nvtx = import_extra("nvtx", "nvtx", "NVTXMirror")
        if not hasattr(self._nvtx, "Domain"):
            raise MissingExtraError("nvtx 0.2.12 or later", "nvtx", "NVTXMirror")
        self._name = domain
        self._color = color
        self._domain: Any = None
        self._attributes: dict[tuple[str, Sequence[str]], Any] = {}
        self._local = _Pushes()

    def open(self, recording: Recording) -> None:
        """Determine if a tool listens."""
        self._domain = self._nvtx.get_domain(self._name)
        self.is_inactive = self._domain.get_event_attributes(message="tracekit") is None

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> Any:
        """Begin a range."""
        attributes = self._attributes_of(name, categories)
        if _in_event_loop():
            return self._domain.start_range(attributes)
        pushed = _Pushed(attributes, self._local.stack)
        self._domain.push_range(attributes)
        pushed.stack.append(pushed)
        return pushed

    def end(self, opened: Any, moment: Moment, exception: str | None) -> None:
        """End a range, as far as this thread can."""
        if not isinstance(opened, _Pushed):
            self._domain.end_range(opened)
            return
        stack = opened.stack
        if stack is not self._local.stack:
            return  # pushed by another thread, which alone could pop it; if that has ended, so have its ranges
        inner = stack[stack.index(opened) + 1 :]
        del stack[len(stack) - len(inner) - 1 :]
        for _ in range(len(inner) + 1):
            self._domain.pop_range()
        for pushed in inner:
            self._domain.push_range(pushed.attributes)
            stack.append(pushed)

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Set a mark."""
        self._domain.mark(self._attributes_of(name, categories))

    def _attributes_of(self, name: str, categories: Sequence[str]) -> Any:
        key = (name, categories)
        attributes = self._attributes.get(key)
        if attributes is None:
            # A string that UTF-8 cannot encode would fail, and a C string ends at the first NUL.
            text, *category = (
                text.encode("utf-8", "replace").replace(b"\0", b"?").decode() for text in (name, *categories)
            )
            attributes = self._attributes[key] = self._domain.get_event_attributes(
                message=text, color=self._color, category=category[0] if category else None
            )
        return attributes


@dataclass(eq=False, slots=True)
class _Pushed:
    """A push/pop range, and the stack of its thread."""

    attributes: Any
    stack: list[_Pushed]


class _Pushes(threading.local):
    """The ranges that this thread has pushed and not popped, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Pushed] = []


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - the others raise without a loop
