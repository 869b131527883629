"""``tracekit link URL``: prints a link that opens a trace of an object store in Perfetto."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import add_option, add_ui, chosen_ui, positive
from tracekit.cli.terminal import OK, PROBLEMS, complain, print_json, print_lines


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a trace: s3://, gs://, hf://, https://, or another URL of fsspec")
    add_option(
        parser,
        "--seconds N",
        "how long the link works, where the storage can limit that (default: %(default)d)",
        type=positive,
        default=86_400,
    )
    add_ui(parser)
    add_option(parser, "--json", "print one JSON document")
    parser.epilog = (
        "Whoever has the link can read the trace. Nothing is uploaded or published. Exit code: 0 the link works, 1 failed, "
        "2 wrong usage, 3 the storage does not let the UI fetch the trace."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.view.link import trace_link

    link = trace_link(args.url, chosen_ui(args), args.seconds)
    if args.json:
        print_json({"link": link.address, "problem": link.problem})
    else:
        print_lines(link.address)
        if link.problem is not None:
            complain(link.problem)
    return OK if link.problem is None else PROBLEMS
