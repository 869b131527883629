"""``tracekit anonymise INPUT...``: removes the names of people, machines and files from traces."""

from __future__ import annotations

import argparse

from tracekit.check.anonymise import anonymise_traces
from tracekit.cli.arguments import add_option, add_output, add_printing, add_traces, check_single
from tracekit.cli.terminal import OK, PROBLEMS, ProgressBar, print_answer, print_json
from tracekit.structs import to_builtins
from tracekit.traces.inputs import ANONYMOUS, trace_files


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(parser, "traces: files, folders, globs or URLs")
    add_output(
        parser,
        "where to write, for a single input: .json or .json.gz (default: NAME.anonymous.json.gz beside the input, without hosts "
        "and users in NAME)",
        force="replace files that exist",
    )
    add_option(
        parser,
        "--names",
        "also replace the names of events, processes and threads, except those of torch, CUDA and tracekit",
    )
    add_printing(parser, "print what was written as JSON", "print only the names of the files")
    parser.epilog = (
        "Replaces paths, hosts, users, mail and network addresses, in the same way in all files of one call. Keeps other free "
        "text: check the result before you share it. Exit code: 0 done, 1 failed, 2 wrong usage, 3 written without what could "
        "not be read."
    )


def run(args: argparse.Namespace) -> int:
    files = list(dict.fromkeys(file for pattern in args.inputs for file in trace_files(pattern)))
    files = [file for file in files if ANONYMOUS not in file or file in args.inputs]
    check_single(args, files)
    pairs = [(file, args.output) for file in files]
    with ProgressBar(enabled=not (args.json or args.quiet)) as bar:
        written, counts = anonymise_traces(pairs, names=args.names, overwrite=args.force, progress=bar.update)
    if args.json:
        print_json({"files": [to_builtins(trace) for trace in written], "replaced": counts})
    else:
        for trace in written:
            lost = f", {trace.lost:,} places LOST that could not be read" if trace.lost else ""
            words = trace.output if args.quiet else f"wrote {trace.output}: {trace.events:,} events{lost}"
            print_answer([words], style="bad" if trace.lost else "")
        if not args.quiet:
            words = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
            print_answer([f"replaced: {words or 'nothing'}"])
    return PROBLEMS if any(trace.lost for trace in written) else OK
