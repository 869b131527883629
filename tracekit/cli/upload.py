"""``tracekit upload [SPOOL...]``: completes the unfinished uploads of recordings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tracekit.cli.arguments import add_option, add_printing, path_or_url, positive
from tracekit.cli.terminal import FAILED, OK, PROBLEMS, complain, print_answer, print_json
from tracekit.errors import ConfigError, StorageError
from tracekit.outbox.finish import finish_spool, report_lines
from tracekit.outbox.spool import JOURNAL, BusyError, default_root, default_spools


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spools",
        type=path_or_url,
        nargs="*",
        metavar="SPOOL",
        help=f"spool folders named in the log of a recording, or a folder of them (default: {default_root()})",
    )
    add_option(parser, "--tries N", "number of attempts for each file (default: 4)", type=positive, default=4)
    add_printing(parser, "print one JSON document with all reports", "print nothing unless something is left")
    parser.epilog = (
        "Uploading twice gives the same objects, and never replaces one that somebody else has written. Exit code: 0 everything "
        "is uploaded, 1 something could not be, 2 wrong usage, 3 a spool is in use by another process."
    )


def run(args: argparse.Namespace) -> int:
    done: list[dict[str, Any]] = []
    busy: list[str] = []
    failed: list[tuple[str, str]] = []
    for folder in _spools([Path(name) for name in args.spools]):
        try:
            report = finish_spool(folder, tries=args.tries)
        except BusyError as error:
            busy.append(str(folder))
            complain(str(error), "upload")
            continue
        except StorageError as error:
            failed.append((str(folder), str(error)))
            complain(str(error), "upload")
            continue
        done.append(report)
        if not args.json and not (args.quiet and report["complete"]):
            print_answer(report_lines(report), style="good" if report["complete"] else "warning")
    if args.json:
        document: dict[str, Any] = {
            "spools": done,
            "busy": busy,
            "failed": [{"spool": spool, "reason": reason} for spool, reason in failed],
        }
        print_json(document)
    elif not (done or busy or failed) and not args.quiet:
        print_answer(["nothing is left to upload"], style="good")
    if failed or not all(report["complete"] for report in done):
        return FAILED
    return PROBLEMS if busy else OK


def _spools(folders: list[Path]) -> list[Path]:
    """Return the given spools, and the spools in the given folders."""
    if not folders:
        return default_spools()
    found: list[Path] = []
    for folder in folders:
        if (folder / JOURNAL).is_file():
            found.append(folder)
        elif folder.is_dir():
            found += sorted(path.parent for path in folder.glob(f"*/{JOURNAL}"))
        else:
            raise ConfigError(f"{folder}: no such folder; name one that a recording has named as its spool")
    return found
