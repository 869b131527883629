"""record_function: tracekit's slices in the traces that torch.profiler writes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.kineto import plain_text
from tracekit.handlers.mirrors.mirror import Mirror
from tracekit.imports import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.handlers.mirrors.mirror import Moment

# Record functions that must not end yet. Kept for the process, because they must not be freed with a mirror either.
_kept: Final[list[Any]] = []


class Session(int):
    """Identifies a profiler session. Replaces the value of torch's flag ``_is_profiler_enabled`` with an equal one."""


class RecordFunctionMirror(Mirror):
    """Shows slices as ``record_function`` in torch's traces, while a torch profile is recording; else it does nothing.

    For torch's own tools: its tables, its memory timeline, TensorBoard, Holistic Trace Analysis. Works with any torch profile,
    of `TorchProfiler` or of the user. torch records the thread that starts its profiler (others only with its option
    ``profile_all_threads``), so slices of other threads are only in tracekit's trace. A slice that began before the profile
    is not in it. A slice that ends after the profile ends with it there. Instants are slices of length zero. When tracekit's
    trace and torch's are merged, such a slice appears in both, on the rank's threads: that is the purpose of this mirror. torch's
    encloses tracekit's. Those of asyncio tasks overlap in torch's trace, as the tasks take turns on one thread.

    Quotes and backslashes in names become ``'`` and ``/``: torch 2.13 writes files with them that nothing can read.

    Raises:
        ConfigError: This torch has no record functions that can be used from outside.
        MissingExtraError: torch is not installed.
    """

    # A record function that ends (or is freed) in another session than it began writes to freed memory, and crashes the
    # process (torch 2.13). So each remembers its session. If another session is active at its end, it is kept until no
    # session is active. torch's Python flag identifies the session: `TorchWindow` sets it to a new token, and a profiler
    # of the user gets a token here. Every start or stop of a profiler sets the flag again.

    def __init__(self) -> None:
        super().__init__()
        self._flags, self._enter, self._exit = _import_torch()

    def is_listening(self) -> bool:
        """Return True if a torch profile is recording."""
        return bool(self._flags._is_profiler_enabled)  # noqa: SLF001 - torch has no other that is as quick

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> tuple[Any, object]:
        """Enter a record function. Return it with its session."""
        session = self._flags._is_profiler_enabled  # noqa: SLF001
        if session is True:
            session = self._flags._is_profiler_enabled = Session(True)  # noqa: SLF001
        return self._enter(plain_text(name)), session

    def end(self, opened: tuple[Any, object], moment: Moment, exception: str | None) -> None:
        """Leave a record function, or keep it if leaving would crash."""
        function, its_session = opened
        session = self._flags._is_profiler_enabled  # noqa: SLF001
        if session and session is not its_session:
            _kept.append(function)
            return
        self._exit(function)
        if _kept:
            self.flush()

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Record a slice of length zero."""
        self._exit(self._enter(plain_text(name)))

    def flush(self) -> None:
        """Leave the kept record functions, once no profile is recording."""
        # One by one: several threads may do this, one may keep another meanwhile, and a profile may begin.
        while _kept and not self.is_listening():
            with suppress(IndexError):
                self._exit(_kept.pop(0))


def _import_torch() -> tuple[Any, Callable[[str], Any], Callable[[Any], object]]:
    """Return torch's module of flags, and the functions that enter and leave a record function.

    Use neither ``record_function`` itself, which takes five times as long, nor ``_RecordFunctionFast``, which makes operator
    slices ("cpu_op"). torch's tools and its GPU rows need user slices ("user_annotation").
    """
    torch = import_extra("torch", "torch", "RecordFunctionMirror")
    functions = torch._C._autograd  # noqa: SLF001 - see above
    try:
        enter, leave = functions._record_function_with_args_enter, functions._record_function_with_args_exit  # noqa: SLF001
    except AttributeError:
        raise ConfigError(
            f"RecordFunctionMirror cannot enter record functions of torch {torch.__version__}; leave it out"
        ) from None
    return torch.autograd.profiler, enter, leave
