"""LiveTable: a table on the whole screen of a terminal, drawn anew with every look; needs rich."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli.terminal import printable

if TYPE_CHECKING:
    from tracekit.watching.table import RunTable

__all__ = ["LiveTable"]

_STYLES: Final = {"bad": "bold red", "slow": "yellow", "done": "dim", "": ""}


class LiveTable:
    """Has the screen of the terminal until it is closed, and gives back what was on it then."""

    def __init__(self, live: Any) -> None:
        self._live = live

    @classmethod
    def open(cls) -> LiveTable | None:
        """Take the screen; None where rich is not installed, or the terminal cannot do that."""
        try:
            console = importlib.import_module("rich.console").Console()
            live = importlib.import_module("rich.live").Live(console=console, screen=True, auto_refresh=False)
        except ImportError:
            return None
        if not console.is_terminal or console.is_dumb_terminal:
            return None
        live.start()
        return cls(live)

    @property
    def size(self) -> tuple[int, int]:
        """How many characters a line has now, and how many lines there are."""
        size = self._live.console.size
        return size.width, size.height

    def show(self, table: RunTable) -> None:
        """Draw a table in place of the one before."""
        text = importlib.import_module("rich.text").Text
        group = importlib.import_module("rich.console").Group
        grid = importlib.import_module("rich.table").Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in table.head:
            grid.add_column(
                printable(heading),
                justify="left" if heading == table.head[-1] else "right",
                no_wrap=True,
                overflow="ellipsis",
                header_style="bold",
            )
        for row, mark in zip(table.rows, table.marks, strict=True):
            # A Text is not searched for markup.
            grid.add_row(*(text(printable(cell)) for cell in row), style=_STYLES[mark])
        lines = [text(printable(line), no_wrap=True, overflow="ellipsis") for line in table.title]
        below = [text(printable(line), no_wrap=True, overflow="ellipsis", style="dim") for line in table.below]
        self._live.update(group(*lines, *([grid] if table.rows else ()), *below), refresh=True)

    def close(self) -> None:
        """Give the screen back."""
        self._live.stop()
