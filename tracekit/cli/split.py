"""``tracekit split INPUT...``: splits a trace into parts by time or rank."""

from __future__ import annotations

import argparse
import re
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tracekit.cli.arguments import add_option, add_output, add_printing, add_traces
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_json, print_lines
from tracekit.errors import ConfigError
from tracekit.merge.report import happened
from tracekit.merge.split import Part, split
from tracekit.storage import basename, expand
from tracekit.traces.inputs import TRACE_SUFFIXES
from tracekit.view.open.prepare import prepare

_SECONDS: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)

_WILD: Final = re.compile(r"[*?\[]")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(parser, "a trace; or several, which are merged first")
    how = parser.add_mutually_exclusive_group(required=True)
    add_option(how, "--seconds S", "write a part for every S seconds")
    add_option(how, "--by-rank", "write a part for each rank")
    add_output(
        parser,
        "the file or URL of a part, with {part} for its number, .json or .pftrace, with .gz packed "
        "(default: INPUT-{part}.json.gz here)",
        metavar="NAME",
        force="replace parts that exist",
    )
    add_printing(parser, "print the parts and their reports as JSON", "print only the names of the parts")
    parser.epilog = (
        "A slice that reaches over a border is in both parts; spans without events have no part. The input is read once for "
        "each part. Exit code: 0 done, 1 failed, 2 wrong usage, 3 written, but events were lost."
    )


def run(args: argparse.Namespace) -> int:
    if args.seconds is not None and not _SECONDS.fullmatch(args.seconds):
        raise ConfigError(f"--seconds {args.seconds}: give a number of seconds, such as 10 or 0.5")
    output = args.output or f"{_stem(args.inputs)}-{{part}}.json.gz"
    with (
        tempfile.TemporaryDirectory(prefix="tracekit-split-") as folder,
        ProgressBar(enabled=not (args.json or args.quiet)) as bar,
    ):
        prepared = prepare(args.inputs, Path(folder), progress=bar.update)
        parts = split(
            str(prepared.path),
            output,
            seconds=None if args.seconds is None else Decimal(args.seconds),
            overwrite=args.force,
            progress=bar.update,
        )
    complete = all(part.report is None or part.report.complete for part in parts)
    if prepared.merge is not None:
        complete = complete and prepared.merge.complete
    if args.json:
        document = {"parts": [_as_json(part) for part in parts if part.report is not None], "complete": complete}
        print_json(document)
    else:
        for part in parts:
            if part.report is not None:
                words = "" if args.quiet else f": {part.words}, {_events(part):,} events"
                print_lines(f"{part.output}{words}")
    return OK if complete else PROBLEMS


def _stem(inputs: list[str]) -> str:
    name = basename(inputs[0].rstrip("/")) if len(inputs) == 1 else "merged"
    if _WILD.search(name):
        files = expand(inputs[0], TRACE_SUFFIXES)
        name = basename(files[0]) if len(files) == 1 else "merged"
    for suffix in sorted(TRACE_SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    # In the name of a part, only ``{part}`` is a placeholder.
    return name.replace("{part}", "part") or "trace"


def _events(part: Part) -> int:
    return 0 if part.report is None else happened(part.report.events_out)


def _as_json(part: Part) -> dict[str, Any]:
    report = None if part.report is None else part.report.to_json()
    return {"file": part.output, "part": part.name, "holds": part.words, "events": _events(part), "report": report}
