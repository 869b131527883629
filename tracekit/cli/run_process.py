"""Run a command as a child that gets the signals of this process, and take its exit status over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracekit.errors import CommandError

_FORWARDED: Final = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
_FROM_KERNEL: Final = 0x80  # si_code of a signal that the terminal sends to all processes of the foreground
_PR_SET_PDEATHSIG: Final = 1
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; return its exit code, negative for a signal.

    A signal reaches the child once. In the foreground of a terminal both processes share a group, and Ctrl-C reaches both.
    Elsewhere the child has a new process group, and a signal to this process or its group is passed on.
    """
    signals = {getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)}
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return _run_with_handlers(command, environment, signals)
    in_terminal = _is_in_foreground()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})

    def prepare() -> None:
        if not in_terminal:
            os.setpgid(0, 0)
            if prctl is not None:  # the child also ends if SIGKILL ends this process
                prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        child = _started(command, environment, preexec_fn=prepare)
        while (code := child.poll()) is None:
            found = signal.sigwaitinfo({*signals, signal.SIGCHLD})
            if found.si_signo != signal.SIGCHLD and not (in_terminal and found.si_code == _FROM_KERNEL):
                child.send_signal(found.si_signo)
        return code
    finally:
        while signal.sigtimedwait(signals, 0) is not None:
            pass  # it came after the end of the child
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_in_foreground() -> bool:
    """Return True if this process is in the foreground of a terminal."""
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
                return True
    return False


def _run_with_handlers(command: Sequence[str], environment: Mapping[str, str], signals: set[signal.Signals]) -> int:
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        shared = number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()
        if child is not None and not shared:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in signals}
    try:
        child = _started(command, environment)
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, **options)  # noqa: S603 - the command of the user, no shell
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        problem = "no such command" if is_missing else error.strerror or str(error)
        if command[0].endswith(".py"):
            problem += "; python runs a script: tracekit run -- python " + command[0]
        raise CommandError(f"{command[0]}: {problem}", _NOT_FOUND if is_missing else _NOT_EXECUTABLE) from None


def end_like(code: int) -> int:
    """Return the exit code of a child, or end this process by the signal that has ended the child."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
