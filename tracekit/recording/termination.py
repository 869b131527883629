"""Termination: completes a recording when the process receives SIGTERM."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracekit.errors import ConfigError
from tracekit.handlers.signal_pipe import SignalPipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Minimum time that the main thread gets to handle the signal. After the timeout it counts as stuck.
_HANDOVER_S: Final = 0.5
_END: Final = 0  # the number in the pipe that ends the thread; no signal has it


class Termination:
    """Writes a recording out between the arrival of SIGTERM and its effect on the process.

    Python runs signal handlers on the main thread, between any two instructions. That may be in the middle of a step,
    or while the main thread holds a lock that the writer needs. Therefore the handler only forwards the signal to the
    thread of this object. The thread writes the recording while the main thread continues, and then sends the signal
    again. This time the handler passes it on to the previous handler. Without a previous handler, the signal ends the
    process, so that the exit status is that of SIGTERM.

    A main thread that is blocked in C code (a collective that hangs) runs no Python handler. The `SignalPipe` still
    receives the signal, unless another library has the wakeup descriptor. The thread then ends the process itself:
    SIGTERM must still end a process that it would end without tracekit.

    A previous handler runs after the events are on the disk (``flush``), and the recording goes on: such handlers
    often only set a flag, and training ends some steps later. Without a previous handler, the files are completed
    (``end``). An ignored signal stays ignored. Both are called on this object's thread with ``grace_s``, their
    timeout.

    Raises:
        ConfigError: This is not the main thread, or SIGTERM has a handler that Python did not install.
    """

    received: ClassVar[bool] = False
    """True after the process has received SIGTERM. It should end soon, even if a user's handler lets it continue."""

    def __init__(self, flush: Callable[[float], object], end: Callable[[float], object], grace_s: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "sigterm_grace: Python sets signal handlers on the main thread only; start the profiler there"
            )
        if signal.getsignal(signal.SIGTERM) is None:
            raise ConfigError("sigterm_grace: SIGTERM has a handler that was not set by Python, and would be lost")
        import ctypes  # here: not at the signal, when the main thread may be in the middle of an import

        self._c_library = ctypes.CDLL(None)
        self._flush = flush
        self._end = end
        self._grace_s = grace_s
        self._pid = -1  # pid of the process where the handler is installed
        self._previous: Any = signal.SIG_DFL
        self._handler = self._on_signal  # one object, for comparison by identity
        self._written = False  # True if the recording is written and the next signal is passed on
        self._thread: threading.Thread | None = None
        self._let_through = threading.Event()

    def install(self) -> None:
        """Install the signal handler, and start the thread. Call on the main thread."""
        self._pid = os.getpid()
        self._pipe = SignalPipe()
        self._thread = threading.Thread(target=self._wait, name="tracekit-sigterm", daemon=True)
        self._thread.start()
        self._previous = signal.signal(signal.SIGTERM, self._handler)

    def remove(self) -> None:
        """Restore the previous handler. Outside the main thread, the handler stays installed and passes signals on."""
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return
        self._pid = -1
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, self._previous)
            self._pipe.release()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._pipe.write(_END)
            thread.join(self._grace_s)

    def leave_in_child(self) -> None:
        """Restore the previous handler in a forked child. The shared pipe would report its signals to the parent."""
        if self._pid == -1:
            return
        self._pid, self._thread = -1, None
        if signal.getsignal(signal.SIGTERM) is self._handler:
            signal.signal(signal.SIGTERM, self._previous)
        self._pipe.release()
        self._pipe.close()

    # ---- on the main thread -------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pid == os.getpid() and not self._written:
            # Write even if the C handler should have: another library may have taken the wakeup descriptor since.
            self._pipe.write(number)
            return
        if self._pid == os.getpid():
            # This signal has written up to three bytes. Discard them, so that further bytes mean another signal.
            self._pipe.read()
        self._let_through.set()
        if callable(self._previous):
            self._written = False
            self._previous(number, frame)
        elif self._previous != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    # ---- on the thread ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        written = select.poll()
        written.register(self._pipe, select.POLLIN)
        try:
            while True:
                written.poll()
                woken_by = self._pipe.read()
                if _END in woken_by:
                    return
                if signal.SIGTERM in woken_by:
                    is_over = self._serve(time.monotonic() + self._grace_s)
                    if is_over and _END in self._pipe.read():
                        return
        finally:
            self._pipe.close()

    def _serve(self, until_s: float) -> bool:
        """Write the recording, and pass the signal on. Return True if the pipe may have more bytes from this signal."""
        previous = self._previous
        ignored = previous == signal.SIG_IGN
        Termination.received = Termination.received or not ignored
        with contextlib.suppress(Exception):  # already counted and logged; the signal must be passed on
            if ignored or (callable(previous) and not _is_ours(previous)):
                self._flush(self._grace_s)
            else:
                self._end(self._grace_s)
        if ignored:
            return False
        self._let_through.clear()
        self._written = True
        os.kill(os.getpid(), signal.SIGTERM)
        # Give the main thread the rest of the time: it may be busy, not stuck.
        if self._let_through.wait(max(until_s - time.monotonic(), _HANDOVER_S)):
            return False
        if callable(previous):
            return True
        # On this thread, only C can reset a signal. Python's table of handlers stays as it is; nothing will read it
        # again.
        self._c_library.signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)
        return True


def _is_ours(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), Termination)
