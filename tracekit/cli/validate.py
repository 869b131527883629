"""``tracekit validate FILE...``: checks that Perfetto will load all of a trace, and that tracekit's format is valid."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from tracekit.check.validation import ValidationReport, validate_file
from tracekit.cli.arguments import add_option, add_printing, add_traces
from tracekit.cli.terminal import FAILED, OK, PROBLEMS, complain, print_answer, print_json, print_lines
from tracekit.errors import StorageError, TraceFormatError
from tracekit.storage import without_secrets
from tracekit.traces.inputs import trace_files
from tracekit.wording import counted

_COUNTED: Final = {"archive": "trace", "manifest": "file"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(
        parser,
        "trace: a file or URL, .json or .json.gz; a folder of them; an archive of traces, .tar or .zip, or its "
        "perfetto_manifest.json; - for standard input",
        name="files",
        metavar="FILE",
    )
    add_option(parser, "--strict", "take warnings for problems too")
    add_option(parser, "--no-schema", "do not apply the JSON Schemas")
    add_printing(parser, "print one JSON document with all reports", "print nothing for files without problems")
    parser.epilog = "Exit code: 0 no problems, 1 a file cannot be read, 2 wrong usage, 3 problems found."


def run(args: argparse.Namespace) -> int:
    reports: list[ValidationReport] = []
    unreadable: list[tuple[str, str]] = []
    files: list[str] = []
    for path in args.files:
        try:
            # A single file is checked whatever its name. pathlib raises where it may not look.
            files += [path] if os.path.isfile(path) else trace_files(path)  # noqa: PTH113
        except StorageError as error:
            unreadable.append((without_secrets(path), str(error)))
            complain(str(error), "validate")
    for path in files:
        try:
            found = validate_file(path, schema=not args.no_schema)
        except (StorageError, TraceFormatError, ValueError) as error:
            unreadable.append((without_secrets(path), str(error)))
            complain(str(error), "validate")
            continue
        reports += found
        for report in [] if args.json else found:
            _print(report, quiet=args.quiet, strict=args.strict)
    if args.json:
        document = {
            "files": [report.as_dict() for report in reports],
            "unreadable": [{"file": file, "reason": reason} for file, reason in unreadable],
        }
        print_json(document)
    elif max(len(files), len(args.files)) > 1 and not (args.quiet and _all_fine(reports, strict=args.strict)):
        print_answer([_summary(reports, len(unreadable))])
    if unreadable:
        return FAILED
    return OK if _all_fine(reports, strict=args.strict) else PROBLEMS


def _all_fine(reports: list[ValidationReport], *, strict: bool) -> bool:
    return not any(report.errors or (strict and report.warnings) for report in reports)


def _print(report: ValidationReport, *, quiet: bool, strict: bool) -> None:
    if quiet and _all_fine([report], strict=strict):
        return
    shown: dict[str, int] = {}
    for problem in report.problems:
        shown[problem.rule] = shown.get(problem.rule, 0) + problem.count
        print_answer([str(problem)], style="warning" if problem.severity == "warning" else "bad")
    for rule, count in report.counts.items():
        if count > shown.get(rule, 0):
            print_answer([f"{report.file}: [{rule}] {count - shown.get(rule, 0)} more"])
    is_fine = _all_fine([report], strict=strict)
    verdict = "ok" if is_fine else "problems"
    found = [
        counted(number, word) for number, word in ((report.errors, "error"), (report.warnings, "warning")) if number
    ]
    line = f"{report.file}: {verdict}: {counted(report.events, _COUNTED.get(report.form, 'event'))}"
    print_answer([", ".join([line, *found])], style="good" if is_fine else "bad")
    if report.not_checked:
        print_lines(f"{report.file}: the schemas were not applied: {report.not_checked}", stream=sys.stderr)


def _summary(reports: list[ValidationReport], unreadable: int) -> str:
    parts = [
        counted(len(reports) + unreadable, "file"),
        counted(sum(report.errors for report in reports), "error"),
        counted(sum(report.warnings for report in reports), "warning"),
    ]
    if unreadable:
        parts.append(f"{unreadable} unreadable")
    return ", ".join(parts)
