"""``tracekit top DIR``: shows a running job from its rank traces."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from typing import TYPE_CHECKING, Final

from tracekit.analysis.text import table
from tracekit.arguments import resolve_path
from tracekit.cli.arguments import add_inside
from tracekit.cli.live_table import LiveTable
from tracekit.cli.terminal import print_json, printable
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import without_secrets
from tracekit.watching import Look, Watch
from tracekit.watching.documents import look_document
from tracekit.watching.states import CUT_AFTER_NS
from tracekit.watching.table import ORDERS, RunTable, run_table

if TYPE_CHECKING:
    from tracekit.watching import RunState

__all__ = ["prepare_parser", "run"]

_UNHEALTHY: Final = 3
_LEAST_WIDTH: Final = 40
_LEAST_INTERVAL_S: Final = 0.1
_MOST_NAMED: Final = 5


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit top``."""
    parser.add_argument(
        "root", type=resolve_path, metavar="DIR", help="the folder or URL of a run's rank traces, or of many runs"
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="how often to look (default: %(default)s; an object store is listed every 5 s at most)",
    )
    parser.add_argument("--once", action="store_true", help="print the state once and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON document on a line for each update")
    parser.add_argument("--run", metavar="ID", help="the run to show (default: the newest of those that record)")
    parser.add_argument(
        "--sort",
        choices=ORDERS,
        default="auto",
        help="the order of the ranks (default: by rank if all fit, else the worst)",
    )
    add_inside(parser)
    parser.add_argument(
        "--cut-after",
        type=_interval,
        default=CUT_AFTER_NS / 1e9,
        metavar="SECONDS",
        help="take a rank for cut when nothing has come for so long; one whose process is seen to run, or to be gone, is "
        "not waited for (default: %(default)s)",
    )
    parser.epilog = (
        "Ctrl-C ends it. Exit code: 0 done, 1 failed, 2 wrong usage, 3 with --once: ranks are cut or lost, or data is."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit top``; return its exit code."""
    del parser
    watcher = _Watcher(args)
    if args.once:
        look, shown = watcher.look()
        if shown is None:
            raise StorageError(f"{without_secrets(args.root)}: no rank trace is there (yet)")
        _print(args, look, shown)
        return _UNHEALTHY if shown.unhealthy else 0
    with contextlib.suppress(KeyboardInterrupt):
        _watch(args, watcher)
    return 0


def _watch(args: argparse.Namespace, watcher: _Watcher) -> None:
    """Look until Ctrl-C."""
    look, shown = watcher.look()
    screen = None if args.json or not sys.stdout.isatty() else LiveTable.open()
    last = None
    try:
        while True:
            begun_s = time.monotonic()
            if screen is None:
                _print(args, look, shown)
            else:
                width, height = screen.size
                last = _table(args, look, shown, width, height)
                screen.show(last)
            time.sleep(max(_LEAST_INTERVAL_S, args.interval - (time.monotonic() - begun_s)))
            look, shown = watcher.look_or_note()
    finally:
        if screen is not None:
            screen.close()
            if last is not None:  # what was seen last stays, where the shell goes on
                _print_table(last)


class _Watcher:
    """Looks at the run that is to be shown, and of others at what they are."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._watch = Watch(args.root, inside=args.inside, cut_after_s=args.cut_after)
        self._wanted: str | None = args.run
        self._shown: tuple[str, str] | None = None
        self._last: tuple[Look, RunState | None] | None = None

    def look(self) -> tuple[Look, RunState | None]:
        """Look; return that, and the run to show.

        Raises:
            ConfigError: The run that was asked for is not there, and others are.
        """
        look = self._watch.look(() if self._shown is None else (self._shown[0],))
        shown = self._choose(look)
        if shown is not None and (shown.run_id, shown.folder) != self._shown:
            self._shown = (shown.run_id, shown.folder)
            look = self._watch.look((shown.run_id,))
            shown = self._choose(look)
        self._last = look, shown
        return self._last

    def look_or_note(self) -> tuple[Look, RunState | None]:
        """Look; where the storage fails for a moment, return the last look with a note of that."""
        try:
            return self.look()
        except StorageError as error:
            assert self._last is not None
            look, shown = self._last
            return Look(look.time_ns, look.runs, (str(error), *look.notes)), shown

    def _choose(self, look: Look) -> RunState | None:
        runs = [run for run in look.runs if self._wanted in (None, run.run_id)]
        if not runs:
            if self._wanted is not None and look.runs:
                named = ", ".join(repr(run.run_id) for run in look.runs[:_MOST_NAMED])
                raise ConfigError(f"--run: no run is named {self._wanted!r}; there are: {named}")
            return None
        before = next((run for run in runs if (run.run_id, run.folder) == self._shown), None)
        recording = [run for run in runs if run.state == "recording"]
        if before is not None and (before in recording or not recording):
            return before
        return (recording or runs)[0]


def _table(args: argparse.Namespace, look: Look, shown: RunState | None, width: int, height: int | None) -> RunTable:
    if shown is None:
        waiting = f"{without_secrets(args.root)}: no rank trace yet"
        return RunTable([waiting], (), [], [], [f"note: {note}" for note in look.notes])
    return run_table(look, shown, width=max(width, _LEAST_WIDTH), height=height, order=args.sort)


def _print(args: argparse.Namespace, look: Look, shown: RunState | None) -> None:
    if args.json:
        print_json(look_document(look, shown), indent=None)
        return
    width = shutil.get_terminal_size((120, 0)).columns
    _print_table(_table(args, look, shown, width, None))


def _print_table(found: RunTable) -> None:
    lines = [*found.title]
    if found.rows:
        # The last column is text, and is aligned by itself.
        numbers = table(found.head[:-1], [row[:-1] for row in found.rows], left=0)
        width = max(map(len, numbers))
        texts = [found.head[-1], *(row[-1] for row in found.rows)]
        lines += [f"{line.ljust(width)}  {text}".rstrip() for line, text in zip(numbers, texts, strict=True)]
    for line in (*lines, *found.below, ""):
        print(printable(line))
    sys.stdout.flush()


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST_INTERVAL_S <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {_LEAST_INTERVAL_S} on")
    return value
