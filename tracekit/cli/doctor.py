"""``tracekit doctor [PLACE...]``: what tracekit finds on this machine, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import resolve_path
from tracekit.cli.terminal import print_json, printable
from tracekit.diagnosis.clocks import examine_clocks
from tracekit.diagnosis.environment import examine_environment, examine_packages, examine_rank
from tracekit.diagnosis.places import examine_place
from tracekit.outbox.spool import default_root
from tracekit.wording import counted

if TYPE_CHECKING:
    import argparse

__all__ = ["prepare_parser", "run"]

OK: Final = 0
PROBLEMS: Final = 3


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit doctor``."""
    parser.add_argument(
        "places",
        type=resolve_path,
        nargs="*",
        metavar="PLACE",
        help="folders and URLs that traces will be written to (default: this folder); writes a small file to each and "
        "removes it",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print problems only")
    parser.epilog = "Exit code: 0 no problems, 2 wrong usage, 3 problems found."


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit doctor``; return its exit code."""
    del parser
    places = [*(args.places or ["."]), str(default_root())]
    sections = [
        examine_environment(),
        examine_rank(),
        examine_clocks(),
        *map(examine_place, places),
        examine_packages(),
    ]
    problems = [problem for section in sections for problem in section.problems]
    if args.json:
        print_json({"sections": [section.to_json() for section in sections], "problems": problems})
        return PROBLEMS if problems else OK
    for section in [] if args.quiet else sections:
        print(printable(section.title))
        width = max(map(len, section.facts), default=0)
        for name, value in section.facts.items():
            print(printable(f"  {name.ljust(width)}  {_words(value)}"))
        for note in section.notes:
            print(printable(f"  note: {note}"))
    for problem in problems:
        print(printable(f"WRONG: {problem}"))
    if not args.quiet:
        print(f"{counted(len(problems), 'problem')} found" if problems else "no problems found")
    return PROBLEMS if problems else OK


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return "-" if value is None else str(value)
