"""Termination: what SIGTERM does to a recording that was asked to end politely."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Termination"]

_HANDOVER_S: Final = 0.5
"""How long the main thread is given to carry on with the signal; beyond it, it is taken for stuck."""


class Termination:
    """Gives a recording some seconds between SIGTERM and what SIGTERM means to the process.

    Python runs signal handlers on the main thread, between any two of its instructions: in the middle of a step, or with a
    lock held that the writer needs. So the handler only hands the signal on to a thread of this object, which writes the
    recording out while the main thread goes on, and then sends the signal again. This time the handler lets it through: the
    handler that was there before is called, or, where there was none, the process ends by the signal, so that its exit status
    is that of SIGTERM.

    A main thread that waits in C code (a collective that hangs) runs no handler at all. The interpreter's own C handler
    writes to Python's wakeup descriptor at once, so the thread learns of the signal nevertheless, unless somebody else has
    taken the descriptor (asyncio; a flight recorder's signal). The process is then ended from the thread: a signal
    handler of Python must not turn a process that SIGTERM would have ended into one that it does not.

    A handler that was set before gets to run with everything on the disk, but the recording goes on: such handlers often
    note the signal only, and training ends some steps later. Without one, the files are completed. An ignored signal stays
    ignored.

    Args:
        flush: Writes everything out that was recorded, within so many seconds; called on this object's thread.
        end: Does that and completes the files; likewise.
        grace_s: How long that may take.

    Raises:
        ConfigError: This is not the main thread, or SIGTERM has a handler that Python knows nothing of.
    """

    received: ClassVar[bool] = False
    """True once the process has received SIGTERM: it is expected to end soon, even if a handler of the user lets it continue."""

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
        self._pid = -1  # of the process in which it is installed
        self._previous: Any = signal.SIG_DFL
        self._handler = self._on_signal  # one object, to be known again
        self._written = False  # the recording is, and the next signal is let through
        self._thread: threading.Thread | None = None
        self._pipe = -1, -1
        self._has_wakeup = False
        self._let_through = threading.Event()

    def install(self) -> None:
        """Begin; on the main thread."""
        self._pid = os.getpid()
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        taken = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._has_wakeup = taken == -1
        if not self._has_wakeup:  # somebody else's
            signal.set_wakeup_fd(taken)
        self._thread = threading.Thread(target=self._wait, name="tracekit-sigterm", daemon=True)
        self._thread.start()
        self._previous = signal.signal(signal.SIGTERM, self._handler)

    def remove(self) -> None:
        """Set back what was there before. Elsewhere than on the main thread, the handler stays and lets everything through."""
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return
        self._pid = -1
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, self._previous)
            self._release_wakeup()
        thread, self._thread = self._thread, None
        if thread is not None:
            os.write(self._pipe[1], b"\0")
            thread.join(self._grace_s)

    def leave_in_child(self) -> None:
        """Take it back in a forked child, whose signals the parent would be told of through the pipe."""
        if self._pid == -1:
            return
        self._pid, self._thread = -1, None
        if signal.getsignal(signal.SIGTERM) is self._handler:
            signal.signal(signal.SIGTERM, self._previous)
        self._release_wakeup()
        for end in self._pipe:
            os.close(end)

    def _release_wakeup(self) -> None:
        if not self._has_wakeup:
            return
        self._has_wakeup = False
        current = signal.set_wakeup_fd(-1)
        if current != self._pipe[1]:
            signal.set_wakeup_fd(current)  # somebody else's by now

    # ---- on the main thread -------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pid == os.getpid() and not self._written:
            # Also where the C handler should have done so: somebody may have taken the wakeup descriptor since.
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], bytes([number]))
            return
        if self._pid == os.getpid():
            # The signal has written here up to three times by now; what comes from now on is another one.
            self._drain()
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
        written.register(self._pipe[0], select.POLLIN)
        try:
            while True:
                written.poll()
                woken_by = self._drain()
                if 0 in woken_by:
                    return
                # Every signal that Python handles writes its number.
                if signal.SIGTERM in woken_by and self._serve(time.monotonic() + self._grace_s) and 0 in self._drain():
                    return
        finally:
            for end in self._pipe:
                os.close(end)

    def _drain(self) -> bytes:
        """Return what has been written into the pipe, and take it out."""
        try:
            return os.read(self._pipe[0], 4096)
        except BlockingIOError:
            return b""

    def _serve(self, until_s: float) -> bool:
        """Write everything out and pass the signal on. Returns whether it may have written more than is read by now."""
        previous = self._previous
        ignored = previous == signal.SIG_IGN
        Termination.received = Termination.received or not ignored
        with contextlib.suppress(Exception):  # counted and logged where it happened; the signal has to be passed on
            if ignored or (callable(previous) and not _is_ours(previous)):
                self._flush(self._grace_s)
            else:
                self._end(self._grace_s)
        if ignored:
            return False
        self._let_through.clear()
        self._written = True
        os.kill(os.getpid(), signal.SIGTERM)
        # The main thread has what is left of the time: it may be busy, not stuck.
        if self._let_through.wait(max(until_s - time.monotonic(), _HANDOVER_S)):
            return False
        if callable(previous):
            return True
        # Only C can set a signal back from here. Python's own table is left as it is: nobody will read it again.
        self._c_library.signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)
        return True


def _is_ours(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), Termination)
