"""``tracekit doctor [PLACE...]``: reports the environment of tracekit on this machine, and its problems."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import zipfile
from collections.abc import Sequence
from typing import Any, Final

from tracekit.check.doctor import examine_clocks, examine_environment, examine_packages, examine_place, examine_rank
from tracekit.check.validation import validate_file
from tracekit.cli.arguments import add_option, add_printing, path_or_url
from tracekit.cli.terminal import OK, PROBLEMS, print_answer, print_json, print_lines
from tracekit.errors import TracekitError
from tracekit.outbox.spool import default_root
from tracekit.storage import atomic_write, basename, refuse_existing, without_secrets
from tracekit.structs import to_builtins
from tracekit.traces.inputs import trace_files
from tracekit.wording import counted

_COUNTED: Final = ("kind", "form", "events", "errors", "warnings", "counts", "not_checked")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "places",
        type=path_or_url,
        nargs="*",
        metavar="PLACE",
        help="folders and URLs that traces will be written to (default: this folder); writes a small file to each and "
        "removes it",
    )
    add_option(
        parser,
        "--bundle FILE",
        "also write a zip for a bug report: these findings, the versions of all packages, and the counts of tracekit "
        "validate for the traces in the places; it holds no event and no secret",
        type=path_or_url,
    )
    add_option(parser, "-f --force", "replace the bundle if it exists")
    add_printing(parser, "print what was found as JSON", "print problems only")
    parser.epilog = "Exit code: 0 no problems, 2 wrong usage, 3 problems found."


def run(args: argparse.Namespace) -> int:
    if args.bundle is not None and not args.force:
        refuse_existing(args.bundle)
    places = [*(args.places or ["."]), str(default_root())]
    sections = [
        examine_environment(),
        examine_rank(),
        examine_clocks(),
        *map(examine_place, places),
        examine_packages(),
    ]
    problems = [problem for section in sections for problem in section.problems]
    document = {"sections": [to_builtins(section) for section in sections], "problems": problems}
    if args.bundle is not None:
        _write_bundle(args.bundle, document, args.places, overwrite=args.force)
    if args.json:
        print_json(document)
        return PROBLEMS if problems else OK
    lines = []
    for section in [] if args.quiet else sections:
        width = max(map(len, section.facts), default=0)
        lines += [section.title, *(f"  {name.ljust(width)}  {_words(value)}" for name, value in section.facts.items())]
        lines += [f"  note: {note}" for note in section.notes]
    print_answer([*lines, *(f"WRONG: {problem}" for problem in problems)], has_tables=False)
    if args.bundle is not None and not args.quiet:
        print_lines(f"wrote {args.bundle}: attach it to the bug report")
    if not args.quiet:
        found = f"{counted(len(problems), 'problem')} found" if problems else "no problems found"
        print_answer([found], style="bad" if problems else "good")
    return PROBLEMS if problems else OK


def _write_bundle(path: str, document: dict[str, Any], places: Sequence[str], *, overwrite: bool) -> None:
    """Write the zip of a bug report."""
    packages = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()}, key=str.lower)
    traces = [_described(trace) for place in places for trace in _traces(place)]
    with atomic_write(path, overwrite=overwrite) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("doctor.json", json.dumps(document, indent=2))
        archive.writestr("packages.txt", "\n".join(packages) + "\n")
        archive.writestr("traces.json", json.dumps(traces, indent=2))


def _traces(place: str) -> list[str]:
    try:
        return trace_files(place)
    except TracekitError:
        return []  # a folder for traces, still empty


def _described(trace: str) -> dict[str, Any]:
    """Return the counts of `tracekit validate` for a trace, without its messages, because these quote events."""
    try:
        reports = [report.as_dict() for report in validate_file(trace)]
        return {"file": basename(trace), "checks": [{key: report[key] for key in _COUNTED} for report in reports]}
    except TracekitError as error:
        return {"file": basename(trace), "error": without_secrets(str(error))}


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return "-" if value is None else str(value)
