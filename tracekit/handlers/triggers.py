"""Triggers of a flight recorder: a signal, an uncaught exception, a slow step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.handlers.signal_pipe import SignalPipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Signals that are free for programs to use. The others end a process, and must still do so.
_FREE_SIGNALS: Final = {
    number for name in ("SIGUSR1", "SIGUSR2") if (number := getattr(signal, name, None)) is not None
} | (set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)) if hasattr(signal, "SIGRTMIN") else set())
_NEVER_CAUGHT: Final = frozenset({"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL", "SIGABRT"})


class SignalTrigger:
    """Detects a signal, even while the main thread is in C code that has released the interpreter lock.

    The signal is detected in two ways: by a Python handler, and by a `SignalPipe`. `arrived`, called on another thread,
    checks both. Asyncio may take the pipe's descriptor away (``loop.add_signal_handler``); then the Python handler
    remains. While C code holds the interpreter lock, no Python runs in any thread, and the signal is detected afterwards.

    The previous Python handler is still called. A handler that was set outside of Python (``faulthandler.register``) is
    replaced, because Python cannot see it: set it after this one, with ``chain=True``. In forked children, the handler only
    calls the previous one.

    Raises:
        ConfigError: There is no such signal, or it cannot be caught.
    """

    def __init__(self, number: int) -> None:
        try:
            self.name = signal.Signals(number).name
        except (ValueError, TypeError):
            self.name = f"signal {number}"
        valid = isinstance(number, int) and not isinstance(number, bool) and number in signal.valid_signals()
        if not valid or self.name in _NEVER_CAUGHT:
            raise ConfigError(f"on_signal must be a signal that can be caught, such as signal.SIGUSR1, not {number!r}")
        self._number = number
        self._pid = -1  # of the process that has installed it; -1: not installed
        self._previous: Any = signal.SIG_DFL
        self._handler = self._on_signal  # one object, for comparison by identity
        self._pipe: SignalPipe | None = None  # while it is installed
        self._called = False
        self._call_expected = False
        self._arrived_before_removal = False
        self._lock = threading.Lock()  # so that the pipe is not closed while it is read

    def install(self) -> None:
        """Begin to detect the signal; on the main thread. Refuse a signal that would then no longer end the process."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "on_signal: Python sets signal handlers on the main thread only; start the profiler there"
            )
        previous = signal.getsignal(self._number)
        if previous is None or (previous == signal.SIG_DFL and self._number not in _FREE_SIGNALS):
            raise ConfigError(
                f"on_signal: a dump or a capture in the place of what {self.name} does by itself would change what becomes of "
                "this process; use signal.SIGUSR1 or SIGUSR2, or set a handler of your own first, which is called as well"
            )
        self._previous = previous
        self._pid = os.getpid()
        self._pipe = SignalPipe()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(_release_in_child, weakref.ref(self)))
        signal.signal(self._number, self._handler)

    def arrived(self) -> bool:
        """Return True if the signal has arrived since the last call. Thread-safe."""
        with self._lock:
            return self._arrived()

    def _arrived(self) -> bool:
        # Read the flag before the pipe: if the handler has been called, the byte of its signal is already in the pipe.
        before, self._arrived_before_removal = self._arrived_before_removal, False
        called, self._called = self._called, False
        written = self._pipe is not None and self._number in self._pipe.read()
        if called and self._call_expected and not written:
            self._call_expected = False  # the main thread has now handled a signal that was already detected
            return before
        if written:
            self._call_expected = not called
        return before or called or written

    def remove(self) -> None:
        """Stop detecting the signal.

        On a thread other than the main thread, the handler stays set, but only calls the previous one.
        """
        if self._pid != os.getpid():
            return
        self._pid = -1
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(self._number) is self._handler:
            signal.signal(self._number, self._previous)
        with self._lock:
            self._arrived_before_removal = self._arrived()
            self._release_pipe()

    def _release_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.release()
            self._pipe.close()
            self._pipe = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._called = True
        if callable(self._previous):
            self._previous(number, frame)
        elif self._pid == -1 and signal.getsignal(number) is self._handler:
            # Removed on another thread, which could not restore the previous handler. Restore it now, and repeat the signal.
            signal.signal(number, self._previous)
            signal.raise_signal(number)


def _release_in_child(reference: weakref.ref[SignalTrigger]) -> None:
    """Remove the wakeup descriptor in a forked child; otherwise the parent would detect the signals of the child."""
    if (trigger := reference()) is not None:
        # Without the lock: a thread that does not exist in the child may have held it.
        trigger._release_pipe()  # noqa: SLF001 - two halves of one thing


class ExceptionTrigger:
    """Detects uncaught exceptions, in the main thread and in others.

    Chains ``sys.excepthook`` and ``threading.excepthook``: the previous hook is called afterwards. `remove` does not
    remove a hook that other code has set later. This hook then stays in the chain, but only calls the previous one.
    ``notice`` is called with the exception and with True if it ends the main thread, on the thread that it ends.
    """

    def __init__(self, notice: Callable[[BaseException, bool], None]) -> None:
        self._notice: Callable[[BaseException, bool], None] | None = notice
        self._previous = sys.excepthook
        self._previous_of_threads = threading.excepthook
        self._hook, self._hook_of_threads = self._on_exception, self._on_exception_in_thread

    def install(self) -> None:
        """Begin to detect exceptions."""
        self._previous, sys.excepthook = sys.excepthook, self._hook
        self._previous_of_threads, threading.excepthook = threading.excepthook, self._hook_of_threads

    def remove(self) -> None:
        """Stop detecting exceptions; on any thread."""
        self._notice = None
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous
        if threading.excepthook is self._hook_of_threads:
            threading.excepthook = self._previous_of_threads

    def _on_exception(self, kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        try:
            if self._notice is not None:
                self._notice(error, True)
        finally:
            self._previous(kind, error, traceback)

    def _on_exception_in_thread(self, args: Any) -> None:
        try:
            if self._notice is not None and args.exc_value is not None and args.exc_type is not SystemExit:
                self._notice(args.exc_value, False)
        finally:
            self._previous_of_threads(args)


class SlowSteps:
    """Detects a batch that takes ``factor`` times the running median of the ``window`` batches before it.

    The first batches of a run are slow by nature, so there must be ``least`` of them before.
    """

    def __init__(self, factor: float, *, window: int = 64, least: int = 16) -> None:
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 < factor < float("inf"):
            raise ConfigError(
                f"slow_step must be a number above 1, the times by which a step is longer than usual, not {factor!r}"
            )
        self._factor = factor
        self._least = least
        self._durations_s: deque[float] = deque(maxlen=window)

    def usual_s(self, duration_s: float) -> float | None:
        """Add the duration of a batch; return the median of the batches before it if it is slow, else None."""
        from statistics import median  # here: it costs 5 ms, and on_demand() needs the signal only

        median_s = median(self._durations_s) if len(self._durations_s) >= self._least else None
        self._durations_s.append(duration_s)
        return median_s if median_s is not None and duration_s > self._factor * median_s else None
