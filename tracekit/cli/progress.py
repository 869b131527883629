"""Progress on standard error: a bar on a terminal, otherwise a line every 10 s."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import is_set
from tracekit.cli.terminal import printable

if TYPE_CHECKING:
    from types import TracebackType

_INTERVAL_S: Final = 0.1
_LINE_INTERVAL_S: Final = 10.0
_WIDTH: Final = 30


class ProgressBar:
    """Shows the progress of a command, with rich if it is installed, otherwise with plain characters.

    Prints one line every 10 s if standard error is not a terminal, except with ``TRACEKIT_QUIET=1``.
    """

    def __init__(self, *, enabled: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._on_terminal = enabled and sys.stderr.isatty()
        self._lines = enabled and not self._on_terminal and not is_set("TRACEKIT_QUIET")
        self._rich: Any = None
        self._task: Any = None
        self._shown = False
        self._next_s = monotonic() + _LINE_INTERVAL_S if self._lines else 0.0

    def __enter__(self) -> ProgressBar:
        if self._on_terminal:
            try:
                console = importlib.import_module("rich.console").Console(stderr=True)
                self._rich = importlib.import_module("rich.progress").Progress(console=console, transient=True)
            except ImportError:
                return self
            self._rich.start()
            self._task = self._rich.add_task("", total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def update(self, share: float, what: str) -> None:
        """Show the completed ``share`` (0 to 1), and the current activity."""
        if not (self._lines or self._on_terminal):
            return
        now = self._monotonic()
        if now < self._next_s:
            return
        if self._lines:
            self._next_s = now + _LINE_INTERVAL_S
            print(printable(f"tracekit: {share:.0%} {what}", sys.stderr), file=sys.stderr, flush=True)
            return
        self._next_s = now + _INTERVAL_S
        text = "".join(char if char.isprintable() else " " for char in what)
        if self._rich is not None:
            escaped = importlib.import_module("rich.markup").escape(text)
            self._rich.update(self._task, completed=share, description=escaped)
            return
        filled = round(_WIDTH * share)
        self._shown = True
        bar = "#" * filled + "-" * (_WIDTH - filled)
        print(f"\r\033[K[{bar}] {share:4.0%} {text[:60]}", end="", file=sys.stderr, flush=True)
