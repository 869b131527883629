"""Print text that is safe for terminals, JSON, and progress on standard error."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from tracekit.arguments import is_set
from tracekit.storage import ExistsError
from tracekit.wording import escape_surrogates, without_controls

if TYPE_CHECKING:
    from types import TracebackType

    from tracekit.explain.results import Result
    from tracekit.merge import MergeReport

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
PROBLEMS: Final = 3
"""The exit codes of all verbs: done, failed, wrong usage, and done with problems or findings."""
_STYLES: Final = {"bad": "bold red", "warning": "yellow", "good": "green", "": ""}
_INDENT: Final = "  "
_MAX_DRAWN_ROWS: Final = 1000  # rich takes 0.1 ms a cell
_LINE_INTERVAL_S: Final = 10.0
_WIDTH: Final = 30
_PROBLEM: Final = re.compile(r"\s*(?:WRONG|LOST|NOT MERGED|NOT ALIGNED)")

# In JSON: an escaped backslash, a pair of surrogates, or (group 1) a lone surrogate, which many readers reject.
_LONE_SURROGATE: Final = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|\\u(d[89a-f]..)")


def printable(text: str, stream: TextIO | None = None) -> str:
    r"""Return text that is safe to print.

    Replaces control characters by U+FFFD and characters that the stream cannot encode by ``?``. Escapes surrogates
    (``\xff`` for bytes of a file name that are not UTF-8). The stream is standard output unless it is given.
    """
    encoding = (stream or sys.stdout).encoding or "utf-8"
    return escape_surrogates(without_controls(text)).encode(encoding, "replace").decode(encoding, "replace")


def print_lines(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines as in `printable`, and flush the stream; None means standard output."""
    for line in lines:
        print(printable(line, stream), file=stream)
    (stream or sys.stdout).flush()


def complain(what: str, verb: str = "") -> None:
    """Print a line to standard error, after the name of the program and the verb."""
    print_lines(f"tracekit {verb}: {what}" if verb else f"tracekit: {what}", stream=sys.stderr)


def print_answer(lines: Iterable[str], *, has_tables: bool = True, style: str = "") -> None:
    """Print the lines of an answer.

    In a terminal, headings and the heads of tables are bold and problems are red. That needs rich; ``NO_COLOR`` and a dumb
    terminal switch it off. The text is the same everywhere. Lines below a heading are indented; the first of them is the head of
    a table, unless ``has_tables`` is False. ``style`` is that of the other lines: bad, warning or good.
    """
    console = styled_console()
    before, pending = "", iter(lines)
    line = next(pending, None)
    while line is not None:
        following = next(pending, None)
        if console is None:
            print(printable(line))
        else:
            chosen = _style(before, line, following or "", has_tables=has_tables) or _STYLES[style]
            console.print(_rich_text()(printable(line), style=chosen), soft_wrap=True)
        before, line = line, following
    sys.stdout.flush()


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> bool:
    """Print a table as wide as the terminal; long cells get several lines. Needs rich, as in `print_answer`.

    ``numbers`` is True for each column that is aligned to the right. Returns False if nothing is printed, because standard output
    shows no styles or the table is too long to draw.
    """
    console = styled_console() if head and len(rows) <= _MAX_DRAWN_ROWS else None
    if console is None:
        return False
    text = _rich_text()
    box = importlib.import_module("rich.box").SIMPLE_HEAD
    drawn = importlib.import_module("rich.table").Table(box=box, pad_edge=False)
    for name, is_number in zip(head, numbers, strict=True):
        drawn.add_column(text(printable(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(text(printable(cell)) for cell in row))
    console.print(drawn)
    return True


def styled_console() -> Any:
    """Return rich's console; None if standard output is not a terminal that shows styles."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        console = importlib.import_module("rich.console").Console(highlight=False)
    except ImportError:
        return None
    return None if console.color_system is None else console


def _rich_text() -> Any:
    return importlib.import_module("rich.text").Text


def _style(before: str, line: str, following: str, *, has_tables: bool) -> str:
    if _PROBLEM.match(line):
        return _STYLES["bad"]
    if line.startswith(_INDENT):
        return "bold" if has_tables and not before.startswith(_INDENT) else ""
    return "bold" if line and following.startswith(_INDENT) else ""


def message_of(error: Exception) -> str:
    """Return the message of an error in the words of the command line."""
    return error.message("--force") if isinstance(error, ExistsError) else str(error)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print a document as JSON, with surrogates escaped as in `printable`, on one line if ``indent`` is None."""
    # Print in pieces: the steps of many ranks as one string would take several times their memory.
    for piece in json.JSONEncoder(indent=indent).iterencode(document):
        sys.stdout.write(_LONE_SURROGATE.sub(_escaped_again, piece) if "\\ud" in piece else piece)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_result(result: Result, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as lines or JSON."""
    if as_json:
        print_json(result.as_dict())
    else:
        print_answer(lines)


def print_merge(
    report: MergeReport, *, as_json: bool, quiet: bool, action: str = "merged", verbose: bool = False
) -> int:
    """Print a report as text or JSON. Return its exit code. See `MergeReport.lines` for ``action`` and ``verbose``."""
    if as_json:
        print_json(report.to_json())
    elif not quiet or not report.complete:
        lines = report.lines(action, verbose=verbose)
        if quiet:
            print_lines(*lines, stream=sys.stderr)
        else:
            print_answer(lines, has_tables=False)
    return OK if report.complete else PROBLEMS


def _escaped_again(match: re.Match[str]) -> str:
    lone = match[1]
    return match[0] if lone is None else escape_surrogates(chr(int(lone, 16))).replace("\\", "\\\\")


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
        self._next_s = now + 0.1
        text = "".join(char if char.isprintable() else " " for char in what)
        if self._rich is not None:
            escaped = importlib.import_module("rich.markup").escape(text)
            self._rich.update(self._task, completed=share, description=escaped)
            return
        filled = round(_WIDTH * share)
        self._shown = True
        bar = "#" * filled + "-" * (_WIDTH - filled)
        print(f"\r\033[K[{bar}] {share:4.0%} {text[:60]}", end="", file=sys.stderr, flush=True)
