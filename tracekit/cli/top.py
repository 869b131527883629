"""``tracekit top DIR``: shows a running job from its rank traces."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shutil
import sys
import time
from typing import Any, Final

from tracekit.cli.arguments import add_inside, add_option, number, path_or_url
from tracekit.cli.named_runs import find_run
from tracekit.cli.terminal import OK, PROBLEMS, print_json, print_lines, printable, styled_console
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import without_secrets
from tracekit.structs import replace
from tracekit.view.live import Look, RunState, Watch
from tracekit.view.live.screen import ORDERS, RunTable, run_table
from tracekit.view.live.states import CUT_AFTER_NS, look_document

_MIN_INTERVAL_S: Final = 0.1
_STYLES: Final = {"bad": "bold red", "slow": "yellow", "done": "dim", "head": "bold", "below": "dim", "": ""}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root", type=path_or_url, nargs="?", metavar="DIR", help="folder or URL of the rank traces of one run or many"
    )
    add_option(
        parser,
        "--interval SECONDS",
        "time between two looks (default: %(default)s; an object store is listed every 5 s at most)",
        type=_interval,
        default=1.0,
    )
    add_option(parser, "--once", "print the state once and exit")
    add_option(parser, "--json", "print one JSON document on a line for each update")
    add_option(parser, "--run ID", "the run to show (default: the newest that records)")
    add_option(
        parser,
        "--sort",
        "the order of the ranks (default: by rank if all fit, else the worst)",
        choices=ORDERS,
        default="auto",
    )
    add_option(
        parser,
        "--counter NAME",
        "show the last value of this counter (repeat for several; default: the first with 'loss' in its name)",
        repeated=True,
    )
    add_inside(parser)
    add_option(
        parser,
        "--cut-after SECONDS",
        "report a rank as cut after this time without a change, unless its process is on this machine "
        "(default: %(default)s)",
        type=_interval,
        default=CUT_AFTER_NS / 1e9,
    )
    parser.epilog = (
        "Ctrl-C ends it. Exit code: 0 done, 1 failed, 2 wrong usage, "
        "3 with --once: ranks are cut or lost, or data is lost."
    )


def run(args: argparse.Namespace) -> int:
    if args.root is None:
        if args.run is None:
            raise ConfigError("name the folder of rank traces, such as traces/, or a run: --run NAME")
        args.root, args.run = find_run(args.run), None
    watcher = _Watcher(args)
    if args.once:
        look, shown = watcher.look()
        if shown is None:
            raise StorageError(f"{without_secrets(args.root)}: no rank trace is there (yet)")
        _print(args, look, shown)
        return PROBLEMS if shown.unhealthy else OK
    with contextlib.suppress(KeyboardInterrupt):
        _watch(args, watcher)
    return OK


def _watch(args: argparse.Namespace, watcher: _Watcher) -> None:
    """Poll and show the run until Ctrl-C."""
    look, shown = good = watcher.look()
    screen = None if args.json or not sys.stdout.isatty() else open_screen()
    last = None
    try:
        while True:
            begun_s = time.monotonic()
            if screen is None:
                _print(args, look, shown)
            else:
                last = _table(args, look, shown, *screen.console.size)
                screen.update(_drawn(last), refresh=True)
            time.sleep(max(_MIN_INTERVAL_S, args.interval - (time.monotonic() - begun_s)))
            try:
                look, shown = good = watcher.look()
            except StorageError as error:  # the storage may come back
                look, shown = replace(good[0], notes=(str(error), *good[0].notes)), good[1]
    finally:
        if screen is not None:
            screen.stop()
            if last is not None:  # the last table stays above the prompt
                _print_table(last)


class _Watcher:
    """Polls the shown run, and detects the ends of other runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._watch = Watch(args.root, inside=args.inside, cut_after_s=args.cut_after)
        self._wanted: str | None = args.run
        self._shown: tuple[str, str] | None = None

    def look(self) -> tuple[Look, RunState | None]:
        """Poll the runs; return the state of all, and the run to show. Raises ConfigError if that of ``--run`` is missing."""
        look = self._watch.look(() if self._shown is None else (self._shown[0],))
        shown = self._choose(look)
        if shown is not None and (shown.run_id, shown.folder) != self._shown:
            self._shown = (shown.run_id, shown.folder)
            look = self._watch.look((shown.run_id,))
            shown = self._choose(look)
        return look, shown

    def _choose(self, look: Look) -> RunState | None:
        runs = [run for run in look.runs if self._wanted in (None, run.run_id)]
        if not runs:
            if self._wanted is not None and look.runs:
                named = ", ".join(repr(run.run_id) for run in look.runs[:5])
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
    return run_table(look, shown, width=max(width, 40), height=height, order=args.sort, counters=args.counter)


def _print(args: argparse.Namespace, look: Look, shown: RunState | None) -> None:
    if args.json:
        print_json(look_document(look, shown).as_dict(), indent=None)
    else:
        _print_table(_table(args, look, shown, shutil.get_terminal_size((120, 0)).columns, None))


def _print_table(found: RunTable) -> None:
    console = styled_console()
    if console is not None:
        console.print(_drawn(found))
    else:
        print_lines(*(line for line, _ in found.lines()), "")


def _interval(text: str) -> float:
    return number(text, _MIN_INTERVAL_S, 1e6, f"seconds from {_MIN_INTERVAL_S} on")


def open_screen() -> Any:
    """Return rich's live display, started on the whole screen; None without rich, or if the terminal does not support it."""
    try:
        console = importlib.import_module("rich.console").Console()
        live = importlib.import_module("rich.live").Live(console=console, screen=True, auto_refresh=False)
    except ImportError:
        return None
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    live.start()
    return live


def _drawn(found: RunTable) -> Any:
    """Return a table in the form that rich prints."""
    text = importlib.import_module("rich.text").Text
    lines = [
        text(printable(line), style=_STYLES[mark], no_wrap=True, overflow="ellipsis") for line, mark in found.lines()
    ]
    return importlib.import_module("rich.console").Group(*lines)
