"""record_function: tracekit's slices in the traces that torch.profiler writes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MissingExtraError
from tracekit.formats.kineto import plain_text
from tracekit.handlers.mirrors.mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.handlers.mirrors.mirror import Moment

__all__ = ["RecordFunctionMirror"]


_kept: Final[list[_Recorded]] = []
"""Record functions whose end has to wait. Of the process, because they must not be freed with a mirror either."""


class _Session(int):
    """Stands in for torch's flag ``_is_profiler_enabled``, with the same truth: which session of a profiler is on."""


class RecordFunctionMirror(Mirror):
    """Shows slices as ``record_function`` in torch's traces, while a torch profile is recording; else it does nothing.

    For torch's own tools: its tables, its memory timeline, TensorBoard, Holistic Trace Analysis. Any torch profile is
    taken, `TorchProfiler` or one of your own. torch records the thread that its profiler was started on (others only with
    its own ``profile_all_threads``), so what other threads do is in tracekit's trace alone. A slice that began before
    the profile is not in it; one that ends after it ends with it there. Instants are slices of no length. When tracekit's
    trace and torch's are merged, such a slice appears in both, on the rank's threads: that is what this mirror is for.

    Quotes and backslashes in names become ``'`` and ``/``: torch 2.13 writes files with them that nothing can read.

    Raises:
        ConfigError: This torch has no record functions that can be used from outside.
        MissingExtraError: torch is not installed.
    """

    # A record function that ends (or is freed) in another session than the one it began in writes to memory that is
    # gone, and crashes the process (torch 2.13). So each remembers its session, and one that meets another is kept
    # until none is on. torch's Python flag tells the sessions apart: `TorchWindow` sets it to a token of its own, and a
    # profiler of the user's gets one here. Whoever starts or stops a profiler sets it anew.

    def __init__(self) -> None:
        super().__init__()
        self._flags, self._enter, self._exit = _import_torch()

    def is_listening(self) -> bool:
        """Tell whether a torch profile is recording."""
        return bool(self._flags._is_profiler_enabled)  # noqa: SLF001 - torch has no other that is as quick

    def begin(self, name: str, categories: Sequence[str], moment: Moment) -> _Recorded:
        """Enter a record function."""
        session = self._session()
        return _Recorded(self._enter(plain_text(name)), session, self._exit)

    def end(self, opened: _Recorded, moment: Moment, exception: str | None) -> None:
        """Leave a record function."""
        self.leave(opened)

    def leave(self, opened: _Recorded) -> None:
        """Leave a record function, or keep it where that would crash."""
        session = self._flags._is_profiler_enabled  # noqa: SLF001
        if session and session is not opened.session:
            _kept.append(opened)
            return
        opened.exit()
        if _kept:
            self.flush()

    def mark(self, name: str, categories: Sequence[str], moment: Moment) -> None:
        """Record a slice of no length."""
        self._exit(self._enter(plain_text(name)))

    def flush(self) -> None:
        """Leave what was kept, once no profile is recording."""
        # One by one: threads may do this at once, one may keep another meanwhile, and a profile may begin.
        while _kept and not self.is_listening():
            with suppress(IndexError):
                _kept.pop(0).exit()

    def _session(self) -> object:
        flag = self._flags._is_profiler_enabled  # noqa: SLF001
        if flag is True:
            flag = self._flags._is_profiler_enabled = _Session(True)  # noqa: SLF001
        return flag


class _Recorded:
    """A record function that was entered, and the session that it was entered in."""

    __slots__ = ("_function", "_leave", "session")

    def __init__(self, function: Any, session: object, leave: Callable[[Any], object]) -> None:
        self._function = function
        self._leave = leave
        self.session = session

    def exit(self) -> None:
        """Leave it."""
        self._leave(self._function)


def _import_torch() -> tuple[Any, Callable[[str], Any], Callable[[Any], object]]:
    """Return torch's module of flags, and what enters and leaves a record function.

    Not ``record_function`` itself, which takes five times as long; nor ``_RecordFunctionFast``, whose slices are operators
    ("cpu_op") in the trace and not the user's ("user_annotation"), which is what torch's tools and its rows of the GPU go by.
    """
    try:
        import torch
        from torch.autograd import profiler
    except ImportError:
        raise MissingExtraError("torch", "torch", "RecordFunctionMirror") from None
    functions = torch._C._autograd  # noqa: SLF001 - see above
    try:
        return profiler, functions._record_function_with_args_enter, functions._record_function_with_args_exit  # noqa: SLF001
    except AttributeError:
        raise ConfigError(
            f"RecordFunctionMirror cannot enter record functions of torch {torch.__version__}; leave it out"
        ) from None
