"""A progress bar on standard error, only where a person watches it."""

from __future__ import annotations

import importlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ProgressBar"]

_INTERVAL_S: Final = 0.1
_WIDTH: Final = 30


class ProgressBar:
    """Shows how much of a piece of work is done: with rich where it is installed, else with plain characters.

    Args:
        enabled: Whether it may be shown; it never is where standard error is no terminal.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._rich: Any = None
        self._task: Any = None
        self._shown = False
        self._next_s = 0.0

    def __enter__(self) -> ProgressBar:
        if self._enabled:
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
        """Show that ``share`` (0 to 1) is done, and what is being done now."""
        now = time.monotonic()
        if not self._enabled or now < self._next_s:
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
