"""``tracekit recover INPUT...``: repairs cut and damaged traces, and reports the losses."""

from __future__ import annotations

import argparse
from typing import Any

from tracekit.check.recovery import SUFFIXES, RecoveryReport, recover_trace
from tracekit.cli.arguments import add_option, add_output, add_printing, add_traces, check_single
from tracekit.cli.terminal import FAILED, OK, PROBLEMS, complain, message_of, print_answer, print_json, print_lines
from tracekit.errors import StorageError, TraceFormatError
from tracekit.storage import same_file, without_secrets
from tracekit.traces.inputs import is_other_json, trace_files


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(
        parser,
        "traces: files, folders, globs or URLs, .json, .json.gz or .json.zst; whole ones are passed over; "
        "- for standard input, with -o",
    )
    add_output(
        parser,
        "where to write, for a single input (default: NAME.recovered.json, or .json.gz, beside the input)",
        force="replace files that exist",
    )
    add_option(
        parser, "--in-place", "replace the input when the recovered trace is complete, and keep it as NAME.broken"
    )
    add_option(
        parser,
        "--close-open-slices",
        "end the slices that were open at the end at the time of the last event; "
        "without, they stay open, and Perfetto shows that they did not end",
    )
    add_printing(
        parser, "print one JSON document with all reports", "print nothing unless events are lost or a file failed"
    )
    parser.epilog = (
        "Exit code: 0 whole, or recovered with nothing lost but the torn end; 1 a file failed, nothing was written for it; "
        "2 wrong usage; 3 recovered, but events were lost in the middle."
    )


def run(args: argparse.Namespace) -> int:
    files = _files(args.inputs)
    check_single(args, files)
    reports: list[RecoveryReport] = []
    others: list[str] = []
    failed: list[tuple[str, str]] = []
    for path, named in files:
        try:
            report = recover_trace(
                path,
                args.output,
                overwrite=args.force,
                in_place=args.in_place,
                close_open_slices=args.close_open_slices,
            )
        except (StorageError, TraceFormatError) as error:
            if not named and isinstance(error, TraceFormatError) and is_other_json(path):
                others.append(without_secrets(path))
                if not (args.json or args.quiet):
                    print_lines(f"{without_secrets(path)}: no trace, passed over")
                continue
            failed.append((without_secrets(path), message_of(error)))
            complain(message_of(error), "recover")
            continue
        reports.append(report)
        if not args.json and not (args.quiet and report.complete):
            print_answer(report.lines(), has_tables=False, style="good" if report.complete else "warning")
    if args.json:
        document: dict[str, Any] = {
            "files": [report.to_json() for report in reports],
            "no_traces": others,
            "failed": [{"file": file, "reason": reason} for file, reason in failed],
        }
        print_json(document)
    elif len(files) > 1 and not (args.quiet and not failed and all(report.complete for report in reports)):
        whole = sum(report.whole for report in reports)
        words = f"{len(files)} files: {len(reports) - whole} recovered, {whole} whole, {len(failed)} failed"
        print_answer([words], style="bad" if failed else "")
    if failed:
        return FAILED
    return OK if all(report.complete for report in reports) else PROBLEMS


def _files(inputs: list[str]) -> list[tuple[str, bool]]:
    """Return each file once, with True if the user named the file itself and not a folder or glob."""
    found: dict[str, bool] = {}
    for pattern in inputs:
        files = trace_files(pattern, SUFFIXES)
        named = len(files) == 1 and same_file(files[0], pattern)
        for path in files:
            found[path] = found.get(path, False) or named
    return list(found.items())
