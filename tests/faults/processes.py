"""Child: a recording script in a process of its own, to be treated badly."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["Child", "wait_until"]

ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = "import os, signal, sys, threading, time\nfrom tests.faults.child import *\n"
PATIENCE_S = 120.0
GOOD = "tracekit"
writer = GOOD
"""Who writes the traces of children; see `tests.faults.writers`."""


# Python does not notice that it has written half a .pyc, as on a full disk, and every later process would fail at it.
ENVIRONMENT = {"PYTHONPATH": os.fspath(ROOT), "PYTHONFAULTHANDLER": "", "PYTHONDONTWRITEBYTECODE": "1"}


class Child:
    """Runs a program in a folder. It speaks with ``say(word)`` and ``hear()``, see `tests.faults.child`.

    The end of the ``with`` block kills it if it still runs.

    Args:
        program: Python source.
        folder: Where it runs, and where its files go.
        under: A command in front of it, such as strace with its options.
        environment: Variables for it, beside those of this process.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.tally = Tally(folder / "tally.bin")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", PROLOGUE + textwrap.dedent(program), writer],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
        )
        self._heard = b""

    def hear(self, word: str) -> str:
        """Wait until it says a line that begins with a word, and return the rest of that line.

        Raises:
            AssertionError: It ended, or took too long.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                if line.decode().startswith(word):
                    return line.decode()[len(word) :].strip()
                continue
            ready, _, _ = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"the child did not say {word!r}; {self._last_words()}"
            self._heard += piece

    def tell(self, word: str = "") -> None:
        """Say something to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL, self._last_words()

    def end(self, timeout_s: float | None = None) -> int:
        """Wait for its own end and return its exit code.

        Raises:
            AssertionError: It took too long.
        """
        try:
            return self.process.wait(PATIENCE_S if timeout_s is None else timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the child did not end in time; {self._last_words()}") from None

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def _last_words(self) -> str:
        return f"exit code {self.process.poll()}, stderr:\n{self.errors[-4000:]}"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            assert stream is not None
            stream.close()


def wait_until(condition: Any) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It took too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {condition}"
        time.sleep(0.005)
